// Package freeze suspends writes to mounted file systems briefly, so that a
// consistent snapshot of their devices can be taken.
//
// The kernel keeps a file system frozen when the process that froze it dies,
// and its writers then hang forever. Therefore a separate guard process
// freezes: it thaws when its parent is gone or the bound has passed. If the
// guard is killed, the parent thaws. Only if both are killed at the same time
// (a whole container, say) the freeze remains; ThawPath ends it at the next
// start.
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
	// ErrFrozen means that another process has frozen the file system.
	ErrFrozen = errors.New("the file system is already frozen")
	// ErrUnsupported means that the file system cannot be frozen.
	ErrUnsupported = errors.New("this kind of file system cannot be frozen")
	// ErrNotMounted means that the path is not the root of a mount. Freezing it
	// would freeze the file system that contains the directory.
	ErrNotMounted = errors.New("not a mount point")
	// ErrExpired means that the bound passed before Thaw: a snapshot taken
	// meanwhile can be inconsistent.
	ErrExpired = errors.New("the freeze lasted longer than its bound and was ended")
	// ErrBroken means that the freeze ended before Thaw for another reason (the
	// guard was killed, another process thawed): a snapshot taken meanwhile can
	// be inconsistent.
	ErrBroken = errors.New("the freeze was ended by another process")
)

// MaxBound is the longest bound that Freeze accepts.
const MaxBound = 10 * time.Minute

// Freeze freezes the file systems mounted at the given mount points, in that
// order, all or none. They stay frozen until Thaw, until this process ends, or
// until bound has passed since the first freeze.
//
// Dirty data is written back before the first freeze, so that writers block
// only briefly. If ctx ends, frozen file systems are thawed at once. A freeze
// that hangs in the kernel cannot be interrupted: Freeze then returns after a
// moment, and the guard thaws that file system when the kernel returns.
//
// The guard only reads and maps files, which works on a frozen file system, so
// the program itself can be on one.
//
// Errors: ErrFrozen, ErrUnsupported, ErrNotMounted, ErrExpired (freezing alone
// took longer than bound), the context's cause.
func (g *Guard) Freeze(ctx context.Context, mountpoints []string, bound time.Duration) (*Frozen, error) {
	if len(g.command) == 0 || len(mountpoints) == 0 {
		return nil, errs.Errorf(errs.Internal, "freeze: a guard command and at least one mount point are required")
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
		return nil, f.freezeError()
	case <-ctx.Done():
		f.release()
		select {
		case <-f.done:
		case <-time.After(guardTimeout):
		}
		return nil, fmt.Errorf("freeze %q: gave up: %w", mountpoints, context.Cause(ctx))
	}
}

// ThawPath thaws the file system mounted at a mount point if it is frozen, for
// example by a previous run of this program. It is a no-op if the file system
// is not frozen or nothing is mounted there.
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

// openRoot opens a mount point and verifies that it is one.
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
