package mkfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// GrowOffline is Tools.GrowOffline with the installed tools.
func GrowOffline(ctx context.Context, path string, t Type) error {
	return Tools{}.GrowOffline(ctx, path, t)
}

// GrowOffline grows an unmounted ext4 to the size of its device with e2fsck and
// resize2fs. If it has that size already, this costs one read. xfs and btrfs
// grow only while mounted: a no-op.
//
// A cancelled context ends the check, but not a resize: one of ten interrupted
// resizes leaves a file system that "e2fsck -p" does not accept. So resize2fs
// continues even if this process dies, with a lock: another call gets
// errs.Busy. If it is still interrupted (power loss, a killed container), a
// marker in front of the file system makes the next call run "e2fsck -y"
// (measured: all of 149 interruptions were repaired without loss). Without the
// marker only "e2fsck -p" runs: damage of unknown origin is left to the
// administrator.
//
// Errors: ErrNoTool, ErrDamaged, errs.Busy, errs.Precondition if e2fsck needs
// manual decisions.
func (t Tools) GrowOffline(ctx context.Context, path string, fs Type) error {
	if _, err := ParseType(string(fs)); err != nil {
		return err
	}
	if fs != Ext4 {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("grow %s: %w", fs, err)
	}
	defer f.Close()
	if err := lockForTools(f); err != nil {
		return err
	}
	interrupted, err := findInterruptedResize(f)
	if err != nil {
		return err
	}
	if interrupted {
		if err := undoTornSuper(f); err != nil {
			return err
		}
	} else {
		full, err := ext4IsFull(f)
		if err != nil || full {
			return err
		}
	}
	if err := t.checkExt4(ctx, f, interrupted); err != nil {
		return err
	}
	return t.resizeExt4(ctx, f)
}

// lockForTools takes a lock that the tools inherit and that lasts until the
// last of them exits. It is an open file description lock, not flock, which
// callers can hold.
func lockForTools(f *os.File) error {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return errs.Errorf(errs.Busy, "the file system on %s is being resized; try again", f.Name())
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

func ext4IsFull(f *os.File) (bool, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return false, fmt.Errorf("size of %s: %w", f.Name(), err)
	}
	info, err := Probe(f)
	switch {
	case errors.Is(err, ErrDamaged):
		return false, fmt.Errorf("%s: %w; try \"e2fsck -f %[1]s\" on a copy of the volume", f.Name(), err)
	case err != nil:
		return false, fmt.Errorf("%s: %w", f.Name(), err)
	case info.Type != Ext4:
		return false, errs.Errorf(errs.Precondition, "%s does not contain ext4 but %s", f.Name(), describe(f, 0))
	}
	return IsFull(f, size)
}

func (t Tools) checkExt4(ctx context.Context, f *os.File, interrupted bool) error {
	how := "-p"
	if interrupted {
		how = "-y"
	}
	res, err := t.run(ctx, command{tool: "e2fsck", args: []string{"-f", how, "--", f.Name()}, hold: f})
	if err != nil {
		return fmt.Errorf("check the ext4 on %s: %w", f.Name(), err)
	}
	// 1: repaired; 2: repaired, reboot if mounted (it is not).
	const failed = ^3
	if res.code&failed == 0 {
		return nil
	}
	if res.code&4 != 0 {
		return errs.Errorf(errs.Precondition, "the ext4 on %s has damage that e2fsck does not repair automatically (exit code %d); copy the volume, then run \"e2fsck -f\" on it manually%s",
			f.Name(), res.code, quoteOutput(res.output))
	}
	return errs.Errorf(errs.Internal, "e2fsck could not check %s (exit code %d)%s", f.Name(), res.code, quoteOutput(res.output))
}

func (t Tools) resizeExt4(ctx context.Context, f *os.File) error {
	if _, err := t.find("resize2fs"); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	marked, err := markResize(f)
	if err != nil {
		return err
	}
	res, err := t.run(context.WithoutCancel(ctx), command{tool: "resize2fs", args: []string{"--", f.Name()}, hold: f, outlive: true})
	if err != nil {
		return fmt.Errorf("grow the ext4 on %s: %w", f.Name(), err)
	}
	if res.code != 0 {
		return errs.Errorf(errs.Internal, "resize2fs on %s failed with exit code %d%s", f.Name(), res.code, quoteOutput(res.output))
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("fsync %s: %w", f.Name(), err)
	}
	if !marked {
		return nil
	}
	return writeBoot(f, make([]byte, extSuperOffset))
}
