// Package mount mounts and unmounts file systems through the kernel's
// descriptor-based mount calls (Linux 5.12 and later): a mount gets all its
// attributes before anybody can see it, and the kernel's own words about a
// refusal reach the error.
package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrBusy: something still holds the mount, or the device that is to be mounted.
var ErrBusy = errors.New("in use")

// Spec is a file system to mount.
type Spec struct {
	Source string // path of the device
	Target string // an existing directory
	FSType string
	// Options in the words of mount(8), of the file system and of the mount,
	// as SplitOptions takes them.
	Options  []string
	ReadOnly bool // as the option ro
}

// BindOptions are the attributes of a bind mount.
type BindOptions struct {
	ReadOnly bool
	// Options of the mount alone, as SplitOptions returns them: nosuid, nodev,
	// noexec, noatime, nodiratime, relatime, strictatime, nosymfollow, ro and
	// their opposites. What is not named is as at the source.
	Options []string
}

// Mount mounts a file system on a directory; a symbolic link as the last
// element of the target is refused. Over a mount that is there already it
// stacks: ask At first.
// Invalid: an option that this file system does not know or that is not
// allowed. Unsupported: the kernel does not know the type. Precondition: what
// the source holds cannot be mounted so. ErrBusy: the source is in use
// exclusively.
func Mount(ctx context.Context, s Spec) error {
	target, err := openTarget(s.Target) // before the file system, which may replay its log
	if err != nil {
		return fmt.Errorf("mount %s: %w", s.Source, err)
	}
	defer unix.Close(target)
	tree, err := create(ctx, s)
	if err == nil {
		defer tree.Close()
		err = show(tree.fd, target)
	}
	if err != nil {
		return fmt.Errorf("mount %s (%s) at %s: %w", s.Source, s.FSType, s.Target, err)
	}
	return nil
}

// Bind shows source, a directory or a file, at target, which exists and is of
// the same kind. Mounts below source are not shown. Both must exist.
// Invalid: an option that is not one of a mount.
func Bind(ctx context.Context, source, target string, o BindOptions) error {
	return bind(ctx, source, target, o)
}

// Unmount takes away what is mounted at target, every layer if mounts are
// stacked there; nothing mounted, or no such path, is no error. It is never
// lazy: on return of nil the file system has let go, unless it is mounted
// elsewhere too. ErrBusy (and errs.Precondition) names who holds it, as far
// as that can be seen; a use of some milliseconds by others is waited for.
func Unmount(ctx context.Context, target string) error { return unmount(ctx, target) }
