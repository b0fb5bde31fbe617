// Package mount mounts and unmounts file systems with the kernel's
// descriptor-based mount calls (Linux 5.12 and later): a mount has all its
// attributes before it is visible, and errors include the kernel's messages.
package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrBusy: the mount, or the device to mount, is in use.
var ErrBusy = errors.New("in use")

// Spec is a file system to mount.
type Spec struct {
	Source string // path of the device
	Target string // an existing directory
	FSType string
	// Options as in mount(8), of the file system and of the mount; see
	// SplitOptions.
	Options  []string
	ReadOnly bool // same as the option ro
}

// BindOptions are the attributes of a bind mount.
type BindOptions struct {
	ReadOnly bool
	// Options of the mount only, as returned by SplitOptions: nosuid, nodev,
	// noexec, noatime, nodiratime, relatime, strictatime, nosymfollow, ro and
	// their opposites. Other attributes are as at the source.
	Options []string
}

// Mount mounts a file system on a directory; a symbolic link as the last
// element of the target is an error. It stacks on an existing mount: check with
// At first.
//
// Errors: errs.Invalid for an option that the file system does not support or
// that is not allowed; errs.Unsupported for an unknown type; errs.Precondition
// if the content of the source cannot be mounted this way; ErrBusy if the
// source is in exclusive use.
func Mount(ctx context.Context, s Spec) error {
	target, err := openTarget(s.Target) // before the mount, which can replay the log
	if err != nil {
		return fmt.Errorf("mount %s: %w", s.Source, err)
	}
	defer unix.Close(target)
	tree, err := create(ctx, s)
	if err == nil {
		defer tree.Close()
		err = moveMount(tree.fd, target)
	}
	if err != nil {
		return fmt.Errorf("mount %s (%s) at %s: %w", s.Source, s.FSType, s.Target, err)
	}
	return nil
}

// Bind bind-mounts source, a directory or a file, at target, which must be of
// the same kind. Both must exist. Mounts below source are not included. Errors:
// errs.Invalid for an option that is not a mount attribute.
func Bind(ctx context.Context, source, target string, o BindOptions) error {
	return bind(ctx, source, target, o)
}

// Unmount unmounts all mounts stacked at target. It is idempotent, also if the
// path does not exist. It is never lazy: when it returns nil the file system is
// released, unless it is mounted elsewhere too. ErrBusy (and errs.Precondition)
// lists the known users. It waits for short uses by other processes.
func Unmount(ctx context.Context, target string) error { return unmount(ctx, target) }
