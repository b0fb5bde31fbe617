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

// GrowOffline lets a file system fill its device before it is mounted, with
// the tools of the system; see Tools.GrowOffline.
func GrowOffline(ctx context.Context, path string, t Type) error {
	return Tools{}.GrowOffline(ctx, path, t)
}

// GrowOffline lets an ext4 fill the file or the block device that it is on,
// which is not mounted: e2fsck first, as resize2fs demands, then resize2fs.
// One that fills it already is left alone, and costs one read. xfs and btrfs
// grow only while mounted: for them nothing is done.
//
// A cancelled context ends the check, but not a resize: half of one leaves a
// file system that "e2fsck -p" does not accept (measured: in one of ten kills
// at random instants), so resize2fs goes on even if this process dies, and
// holds a lock meanwhile: until it is done a repeat gets errs.Busy. If it is
// cut all the same (power loss, a killed container) a marker that lies before
// it on the device makes the repeat run "e2fsck -y" (measured: 22 of 149 cuts
// needed it, all were mended without loss). Without the marker nothing but
// "e2fsck -p" is ever run: damage of unknown origin is for a person to look at.
//
// Errors: ErrNoTool, ErrDamaged, errs.Busy, errs.Precondition when e2fsck
// cannot repair the file system by itself.
func (t Tools) GrowOffline(ctx context.Context, path string, fs Type) error {
	if _, err := ParseType(string(fs)); err != nil {
		return err
	}
	if fs != Ext4 {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("growing %s: %w", fs, err)
	}
	defer f.Close()
	if err := lockForTools(f); err != nil {
		return err
	}
	cut, err := findCutResize(f)
	if err != nil {
		return err
	}
	if cut {
		if err := undoTornSuper(f); err != nil {
			return err
		}
	} else {
		full, err := ext4IsFull(f)
		if err != nil || full {
			return err
		}
	}
	if err := t.checkExt4(ctx, f, cut); err != nil {
		return err
	}
	return t.resizeExt4(ctx, f)
}

// lockForTools takes a lock that is inherited by the tools and lasts as long as
// the last of them. It is a record lock of the open file, not one of flock,
// which the callers may hold.
func lockForTools(f *os.File) error {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return errs.Errorf(errs.Busy, "the file system on %s is being grown just now; try again", f.Name())
	}
	if err != nil {
		return fmt.Errorf("locking %s: %w", f.Name(), err)
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
		return false, fmt.Errorf("%s: %w; \"e2fsck -f %[1]s\" can repair it from a copy", f.Name(), err)
	case err != nil:
		return false, fmt.Errorf("%s: %w", f.Name(), err)
	case info.Type != Ext4:
		return false, errs.Errorf(errs.Precondition, "there is no ext4 on %s, but %s", f.Name(), describe(f, 0))
	}
	return IsFull(f, size)
}

func (t Tools) checkExt4(ctx context.Context, f *os.File, cut bool) error {
	how := "-p"
	if cut {
		how = "-y"
	}
	res, err := t.run(ctx, command{tool: "e2fsck", args: []string{"-f", how, "--", f.Name()}, hold: f})
	if err != nil {
		return fmt.Errorf("checking the ext4 on %s: %w", f.Name(), err)
	}
	// The exit code is a sum: 1 repaired, 2 repaired and to be mounted anew
	// (nothing is mounted here), from 4 on failed.
	const failed = ^3
	if res.code&failed == 0 {
		return nil
	}
	if res.code&4 != 0 {
		return errs.Errorf(errs.Precondition, "the ext4 on %s has damage that e2fsck does not repair unasked (exit code %d); keep a copy of the volume, then run \"e2fsck -f\" on it by hand%s",
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
		return fmt.Errorf("growing the ext4 on %s: %w", f.Name(), err)
	}
	if res.code != 0 {
		return errs.Errorf(errs.Internal, "resize2fs on %s failed with exit code %d%s", f.Name(), res.code, quoteOutput(res.output))
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("flushing %s: %w", f.Name(), err)
	}
	if !marked {
		return nil
	}
	return writeBoot(f, make([]byte, extSuperOffset))
}
