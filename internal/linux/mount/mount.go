// Package mount mounts and unmounts file systems with descriptor-based calls
// (Linux 5.12): mounts have all attributes before they are visible, and errors
// include the kernel's messages.
package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrBusy: the mount or its device is in use.
var ErrBusy = errors.New("in use")

// Spec is a file system to mount.
type Spec struct {
	Source string
	Target string // an existing directory
	FSType string
	// Options as in mount(8); see SplitOptions.
	Options  []string
	ReadOnly bool
}

// BindOptions are the attributes of a bind mount.
type BindOptions struct {
	ReadOnly bool
	// Options of the mount only, as returned by SplitOptions. Other attributes
	// are as at the source.
	Options []string
}

// Mount mounts a file system on a directory, but not on a symbolic link. It
// stacks on an existing mount: check with At first.
//
// Errors: errs.Invalid for an unsupported or forbidden option; errs.Unsupported
// for an unknown type; errs.Precondition if the content cannot be mounted this
// way; ErrBusy if the source is in exclusive use.
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

// Bind bind-mounts a directory or file on an existing one of the same kind,
// without mounts below it. Errors: errs.Invalid for an option that is not a
// mount attribute.
func Bind(ctx context.Context, source, target string, o BindOptions) error {
	return bind(ctx, source, target, o)
}

// Unmount unmounts all mounts stacked at target. It is idempotent, also for a
// missing path, and never lazy: the file system is then released, unless
// mounted elsewhere. ErrBusy (and errs.Precondition) lists the known users. It
// waits for short uses.
func Unmount(ctx context.Context, target string) error { return unmount(ctx, target) }
