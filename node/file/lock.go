package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume/access"
)

const lockWait = 3 * time.Second

// Lock implements node.Attacher. A loop device keeps the open file that it is
// bound to, and so would keep its lock: Lock opens the file separately.
func (a *Attacher) Lock(ctx context.Context, t node.Target) (unlock func(), err error) {
	lock, err := a.open(t.Locator, os.O_RDONLY)
	if err != nil {
		return func() {}, nil // missing, or Attach returns the error
	}
	// Closing is not enough: until exec, a child process can have a copy of the
	// descriptor.
	unlock = func() { _, _ = flock.Unlock(lock), lock.Close() }
	err = retry.For(ctx, lockWait, func() (again bool, err error) {
		err = flock.TryShared(lock)
		return errors.Is(err, flock.ErrHeld), err
	})
	if err == nil {
		err = a.leadsTo(t.Locator, lock)
	}
	if err == nil {
		return unlock, nil
	}
	unlock()
	if errors.Is(err, flock.ErrHeld) {
		return nil, errs.Errorf(errs.Busy, "a snapshot, copy or deletion of the volume's file %s is in progress; try again", lock.Name())
	}
	return nil, err
}

// leadsTo checks that the name leads to the locked file, which then stays so.
func (a *Attacher) leadsTo(locator access.Access, lock *os.File) error {
	f, err := a.open(locator, os.O_RDONLY)
	if errors.Is(err, errs.NotFound) {
		return nil // deleted: Attach returns the error
	}
	if err != nil {
		return err
	}
	defer f.Close()
	locked, err := loop.BackingOf(lock)
	if err != nil {
		return err
	}
	if now, err := loop.BackingOf(f); err != nil || now != locked {
		return errs.Errorf(errs.Busy, "the volume's file %s was replaced during the call; try again", lock.Name())
	}
	return nil
}

// lockBinding keeps other processes from finding or creating the file's loop
// device: the kernel would bind a file twice. This open file description lock
// is independent of Lock's flock. A pool mounted read-only needs none.
func lockBinding(ctx context.Context, f *os.File) (unlock func(), err error) {
	lock, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
	if errors.Is(err, unix.EROFS) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	set := func(kind int16) error {
		return unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind})
	}
	unlock = func() { _, _ = set(unix.F_UNLCK), lock.Close() }
	err = retry.For(ctx, lockWait, func() (again bool, err error) {
		err = set(unix.F_WRLCK)
		return errors.Is(err, unix.EAGAIN), err
	})
	switch {
	case err == nil:
		return unlock, nil
	case errors.Is(err, unix.EAGAIN):
		err = errs.Errorf(errs.Busy, "another process is attaching the volume's file %s; try again", f.Name())
	default:
		err = fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	unlock()
	return nil, err
}
