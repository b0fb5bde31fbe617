// Package freeze stops all writing to mounted file systems for a moment, so
// that what lies under them can be cut consistently.
//
// The kernel keeps a file system frozen when the process that froze it dies:
// its writers then hang for ever. So a guard does the freezing: a process of
// its own that thaws when its parent is gone, or after a bound, whatever
// happens to the rest. If the guard itself is killed, the parent thaws. Only
// when both are killed at one moment (a whole container, say) the freeze stays;
// that is what ThawPath is for, at the next start.
package freeze

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

var (
	// ErrFrozen means that somebody has frozen the file system already.
	ErrFrozen = errors.New("the file system is frozen already")
	// ErrUnsupported means that the file system cannot be frozen.
	ErrUnsupported = errors.New("this kind of file system cannot be frozen")
	// ErrNotMounted means that the path is not the root of a mount. Freezing
	// there would freeze the file system that holds the directory.
	ErrNotMounted = errors.New("not a mount point")
	// ErrExpired means that the bound passed before Thaw: what was cut
	// meanwhile may be inconsistent.
	ErrExpired = errors.New("the freeze lasted longer than its bound and was ended")
	// ErrBroken means that the freeze ended before Thaw for another reason (the
	// guard was killed, somebody else thawed): what was cut meanwhile may be
	// inconsistent.
	ErrBroken = errors.New("the freeze was ended from outside")
)

// MaxBound is the longest time that Freeze accepts as bound.
const MaxBound = 10 * time.Minute

// Freeze freezes the file systems mounted at the given mount points, in that
// order, all or none. They stay frozen until Thaw, until this process is gone,
// or until bound has passed since the first was frozen.
//
// What is dirty is written back before the first is frozen, so that writers
// wait for little. When ctx ends what is frozen already is thawed at once. But
// a freeze that hangs in the kernel cannot be interrupted: after a moment
// Freeze returns without waiting for it, and the guard thaws that one as soon
// as the kernel lets go of it.
//
// The guard process reads and maps files but writes none, and reading goes on
// while a file system is frozen: the program may lie on one of them.
//
// Errors: ErrFrozen, ErrUnsupported, ErrNotMounted, ErrExpired (freezing alone
// took longer than bound), the context's.
func (g *Guard) Freeze(ctx context.Context, mountpoints []string, bound time.Duration) (*Frozen, error) {
	if len(g.command) == 0 || len(mountpoints) == 0 {
		return nil, errs.Errorf(errs.Internal, "freeze: a guard command and at least one mount point are needed")
	}
	if bound < time.Millisecond || bound > MaxBound {
		return nil, errs.Errorf(errs.Internal, "freeze: the bound is %v, it must be from 1ms to %v", bound, MaxBound)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("freeze %q: %w", mountpoints, context.Cause(ctx))
	}
	roots, err := openRoots(mountpoints)
	if err != nil {
		return nil, err
	}
	f, err := g.begin(roots, mountpoints, bound)
	if err != nil {
		closeAll(roots)
		return nil, err
	}
	select {
	case <-f.ready:
		return f, nil
	case <-f.done:
		return nil, f.whyNot()
	case <-ctx.Done():
		f.release()
		select {
		case <-f.done:
		case <-time.After(patience):
		}
		return nil, fmt.Errorf("freeze %q: gave up: %w", mountpoints, context.Cause(ctx))
	}
}

// ThawPath thaws the file system mounted at a mount point, if it is frozen: for
// the start of a program whose predecessor may have left it so. Nothing to do,
// and no error, when it is not frozen, or nothing is mounted there any more.
func ThawPath(mountpoint string) error {
	root, err := openRoot(mountpoint)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrNotMounted) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	switch err := thaw(root); err {
	case nil, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOTTY:
		return nil
	default:
		return errs.Errorf(errs.Internal, "thaw %s: %w", mountpoint, err)
	}
}

func openRoots(mountpoints []string) ([]*os.File, error) {
	var roots []*os.File
	for _, m := range mountpoints {
		root, err := openRoot(m)
		if err != nil {
			closeAll(roots)
			return nil, err
		}
		roots = append(roots, root)
	}
	return roots, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// openRoot opens a mount point and makes sure that it is one.
func openRoot(path string) (*os.File, error) {
	root, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, errs.Errorf(errs.Precondition, "open mount point: %w", err)
	}
	var stat unix.Statx_t
	if err := unix.Statx(int(root.Fd()), "", unix.AT_EMPTY_PATH, 0, &stat); err != nil {
		root.Close()
		return nil, errs.Errorf(errs.Internal, "stat %s: %w", path, err)
	}
	if stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		root.Close()
		return nil, errs.Errorf(errs.Precondition, "%s: %w", path, ErrNotMounted)
	}
	return root, nil
}
