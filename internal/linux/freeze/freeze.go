// Package freeze suspends writes to mounted file systems for a consistent
// snapshot of their devices.
//
// A file system stays frozen when the process that froze it dies, and its
// writers hang forever. Therefore a guard process freezes, and thaws when its
// parent is gone or the bound has passed. If the guard is killed, the parent
// thaws. If both are killed at once (a container, say), ThawPath ends the
// freeze at the next start.
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
	// ErrFrozen: another process has frozen the file system.
	ErrFrozen = errors.New("the file system is already frozen")
	// ErrUnsupported: the file system cannot be frozen.
	ErrUnsupported = errors.New("this kind of file system cannot be frozen")
	// ErrNotMounted: the path is not a mount point. Freezing it would freeze
	// the file system that contains the directory.
	ErrNotMounted = errors.New("not a mount point")
	// ErrExpired: the bound passed before Thaw, so a snapshot can be
	// inconsistent.
	ErrExpired = errors.New("the freeze lasted longer than its bound and was ended")
	// ErrBroken: the freeze ended before Thaw for another reason (guard killed,
	// thawed by another process), so a snapshot can be inconsistent.
	ErrBroken = errors.New("the freeze was ended by another process")
)

// MaxBound is the longest bound of Freeze.
const MaxBound = 10 * time.Minute

// Freeze freezes the mounted file systems in the given order, all or none,
// until Thaw, the end of this process, or bound after the first freeze.
//
// Dirty data is written back first, so that writers block only briefly. If ctx
// ends, everything is thawed at once. A freeze that hangs in the kernel cannot
// be interrupted: Freeze returns after a moment, and the guard thaws that file
// system later.
//
// The program itself can be on a frozen file system: the guard only reads and
// maps files.
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

// ThawPath thaws a file system that a previous run left frozen. It is a no-op
// if it is not frozen or not mounted.
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
