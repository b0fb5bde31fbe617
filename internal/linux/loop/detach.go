package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/holders"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

// detachBound is how long the short uses of others are waited for.
const detachBound = time.Second

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
	err = retry.For(ctx, detachBound, func() (again bool, err error) {
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
	return k.keep(ctx, before, err)
}

// tryDetach lets go of the file and looks whether it is really gone.
func (k kernel) tryDetach(d Device) error {
	f, err := k.openExclusively(d)
	if err != nil {
		return err
	}
	err = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
	f.Close() // the kernel acts now, unless there is another user
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

// openExclusively opens the device for this process alone. A mounted device, in
// whatever mount namespace, refuses that, so that nothing was asked of it that
// it would do later. The device is held open while it is asked: its number may
// have gone to another file, whose mount must not meet us.
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

// keep takes back the order to let go with the last user, which the kernel
// would carry out under whoever opens the device after the present one, and
// says who holds the device.
func (k kernel) keep(ctx context.Context, before Device, cause error) error {
	f, _, err := k.openBound(before, 0)
	if errors.Is(err, ErrGone) {
		return nil // the last user has just gone
	}
	if err == nil {
		err = setAutoClear(f, before.AutoClear)
		f.Close()
	}
	if err != nil {
		return fmt.Errorf("keep %s as it was: %w", before.Path, errors.Join(err, cause))
	}
	return errs.Errorf(errs.Precondition, "detach %s: %w: it is held by %s; unmount or close it there, then try again",
		before.Path, cause, holders.OfDevice(ctx, before.Major, before.Minor))
}

// tidy spares the next user of the number, who may be another program, what
// the kernel does not reset: a refusal of writes or of discards. It is a
// courtesy; Attach does not rely on it.
func (k kernel) tidy(before Device) {
	discards, err := k.discards(before.Number)
	if err != nil || discards && !before.ReadOnly {
		return
	}
	if control, err := k.openControl(); err == nil {
		_ = removeNumber(control, before.Number) // refused if it is in use again
		control.Close()
	}
}
