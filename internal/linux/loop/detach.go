package loop

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/holders"
)

func (k kernel) detach(ctx context.Context, d Device) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f, before, err := k.openBound(d, 0)
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	f.Close()
	err = holders.AwaitUnused(ctx, before.Major, before.Minor, func() (inUse bool, err error) {
		err = k.tryDetach(d)
		return errors.Is(err, ErrBusy), err
	})
	if err == nil || errors.Is(err, ErrGone) {
		k.tidy(before)
		return nil
	}
	if !errors.Is(err, ErrBusy) {
		return fmt.Errorf("detach: %w", err)
	}
	return k.cancelDetach(ctx, before, err)
}

func (k kernel) tryDetach(d Device) error {
	f, err := k.openExclusively(d)
	if err != nil {
		return err
	}
	err = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
	f.Close() // unbinds now, unless it has another user
	if err != nil && !isUnbound(err) {
		return fmt.Errorf("loop device %s: LOOP_CLR_FD: %w", d.Path, err)
	}
	f, _, err = k.openBound(d, 0)
	if err != nil {
		return err
	}
	f.Close()
	return ErrBusy
}

// openExclusively opens the device with O_EXCL. That fails if the device is
// mounted in any mount namespace, before LOOP_CLR_FD schedules a later unbind.
// The device is kept open during the check, so that its number cannot be bound
// to another file whose mount would fail because of O_EXCL.
func (k kernel) openExclusively(d Device) (*os.File, error) {
	held, _, err := k.openBound(d, 0)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	f, _, err := k.openBound(d, unix.O_EXCL)
	if errors.Is(err, unix.EBUSY) {
		return nil, ErrBusy
	}
	return f, err
}

// cancelDetach clears auto-clear again, which a failed LOOP_CLR_FD sets:
// otherwise the kernel would detach the device under a later user. The error
// names the device's users.
func (k kernel) cancelDetach(ctx context.Context, before Device, cause error) error {
	f, _, err := k.openBound(before, 0)
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err == nil {
		err = setAutoClear(ctx, f, before.AutoClear)
		f.Close()
	}
	if err != nil {
		return fmt.Errorf("keep %s as it was: %w", before.Path, errors.Join(err, cause))
	}
	return errs.Errorf(errs.Precondition, "detach %s: %w: it is used by %s; unmount or close it there, then try again",
		before.Path, cause, holders.OfDevice(ctx, before.Major, before.Minor))
}

// tidy resets a number that refuses writes or discards, which would last.
// Attach does not rely on it.
func (k kernel) tidy(before Device) {
	discards, err := k.discards(before.Number)
	if err != nil || discards && !before.ReadOnly {
		return
	}
	if control, err := k.openControl(); err == nil {
		_ = removeNumber(control, before.Number) // fails if in use again
		control.Close()
	}
}
