package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/blockdev"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

// Size returns the size of the device in bytes. Errors: ErrGone.
func Size(ctx context.Context, d Device) (int64, error) {
	var size int64
	err := host().with(ctx, d, func(f *os.File, _ Device) (err error) {
		size, err = blockdev.Size(f)
		return err
	})
	return size, err
}

// Flush writes out dirty data of the device and of the backing file. Errors:
// ErrGone.
func Flush(ctx context.Context, d Device) error {
	return host().with(ctx, d, func(f *os.File, _ Device) error { return kernelcall.Sync(ctx, f) })
}

func (k kernel) with(ctx context.Context, d Device, do func(f *os.File, now Device) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f, now, err := k.openBound(d, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := do(f, now); err != nil {
		return fmt.Errorf("loop device %s: %w", d.Path, err)
	}
	return nil
}

// openBound opens read-only: closing a writable file makes udev probe the
// device again.
func (k kernel) openBound(d Device, flags int) (*os.File, Device, error) {
	f, now, err := k.openNumber(d.Number, flags)
	switch {
	case isUnbound(err):
		return nil, Device{}, gone(d)
	case err != nil:
		return nil, Device{}, fmt.Errorf("loop device %s: %w", d.Path, err)
	case now.Silent != "" && d.Silent == "":
		f.Close()
		return nil, Device{}, errs.Errorf(errs.Unavailable, "loop device %s: the backing file %s does not respond, so it is unknown whether the device is still bound to %v", d.Path, now.Silent, d.Backing)
	case now.Silent != d.Silent, now.Silent == "" && now.Backing != d.Backing:
		f.Close()
		return nil, Device{}, gone(d)
	}
	return f, now, nil
}

func gone(d Device) error {
	return errs.Errorf(errs.NotFound, "%s, %v: %w", d.Path, d.Backing, ErrGone)
}

func (k kernel) openNumber(number, flags int) (*os.File, Device, error) {
	f, err := k.openOrCreate(k.node(number), k.block(number, "dev"), unix.S_IFBLK, unix.O_RDONLY|flags)
	if err != nil {
		return nil, Device{}, err
	}
	d, err := k.status(f, number)
	if err != nil {
		f.Close()
		return nil, Device{}, err
	}
	return f, d, nil
}

// status returns ENXIO if it is unbound.
func (k kernel) status(f *os.File, number int) (Device, error) {
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	silent := ""
	if err != nil && !isUnbound(err) {
		// The kernel calls getattr on the backing file and returns its error.
		if err = k.checkNode(f, number); err == nil {
			silent, err = k.shownName(number)
		}
	}
	if err != nil {
		return Device{}, fmt.Errorf("LOOP_GET_STATUS64: %w", err)
	}
	if silent != "" {
		info = &unix.LoopInfo64{}
	}
	readOnly, err := unix.IoctlGetUint32(int(f.Fd()), unix.BLKROGET)
	if err != nil {
		return Device{}, fmt.Errorf("BLKROGET: %w", err)
	}
	major, minor, err := blockdev.RdevOf(f)
	if err != nil {
		return Device{}, err
	}
	if silent == "" && int(info.Number) != number {
		return Device{}, staleNode(k.node(number), major, minor)
	}
	return Device{
		Number: number, Path: k.node(number), Major: major, Minor: minor,
		Backing:   Backing{Dev: info.Device, Inode: info.Inode},
		ReadOnly:  readOnly != 0,
		AutoClear: info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0,
		DirectIO:  info.Flags&unix.LO_FLAGS_DIRECT_IO != 0,
		Silent:    silent,
	}, nil
}

// isUnbound includes devices removed after they were listed.
func isUnbound(err error) bool {
	return errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || errors.Is(err, fs.ErrNotExist)
}

func setAutoClear(ctx context.Context, f *os.File, on bool) error {
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		return fmt.Errorf("LOOP_GET_STATUS64: %w", err)
	}
	flags := info.Flags &^ unix.LO_FLAGS_AUTOCLEAR
	if on {
		flags |= unix.LO_FLAGS_AUTOCLEAR
	}
	if flags == info.Flags {
		return nil
	}
	info.Flags = flags
	if _, err := kernelcall.Ioctl(ctx, f, unix.LOOP_SET_STATUS64, info); err != nil {
		return fmt.Errorf("set auto-clear to %t: LOOP_SET_STATUS64: %w", on, err)
	}
	return nil
}

func setReadOnly(f *os.File, on bool) error {
	value := 0
	if on {
		value = 1
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.BLKROSET, value); err != nil {
		return fmt.Errorf("set read-only to %t: BLKROSET: %w", on, err)
	}
	return nil
}

// BackingName returns the path of the backing file as this process sees it (a
// hint; Backing is the identity), and whether it was deleted. Errors: ErrGone.
func BackingName(d Device) (path string, deleted bool, err error) {
	return host().backingName(d)
}

// backingName needs no answer of the backing file, which can stop responding
// after the device was listed.
func (k kernel) backingName(d Device) (path string, deleted bool, err error) {
	f, now, err := k.openNumber(d.Number, 0)
	if isUnbound(err) {
		return "", false, gone(d)
	}
	if err != nil {
		return "", false, fmt.Errorf("loop device %s: %w", d.Path, err)
	}
	defer f.Close() // until then it cannot be rebound
	if d.Silent != "" && now.Silent != d.Silent || now.Silent == "" && now.Backing != d.Backing {
		return "", false, gone(d)
	}
	shown, err := k.shownName(d.Number)
	if err != nil {
		return "", false, fmt.Errorf("loop device %s: %w", d.Path, err)
	}
	path, deleted = strings.CutSuffix(shown, " (deleted)")
	return path, deleted, nil
}

// shownName returns the path in sysfs, which the kernel provides without
// calling the backing file system.
func (k kernel) shownName(number int) (string, error) {
	text, err := os.ReadFile(k.block(number, "loop", "backing_file"))
	return strings.TrimSuffix(string(text), "\n"), err
}
