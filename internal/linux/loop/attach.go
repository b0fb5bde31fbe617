package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

// attachBound is generous: one of the processes that race for a number always
// wins.
const attachBound = 10 * time.Second

// leastReadAhead is the kernel's default for a new device, in KiB. Kernels with
// a higher default for bound devices raise it in LOOP_CONFIGURE.
const leastReadAhead = 128

func (k kernel) attach(ctx context.Context, c Config) (Device, *os.File, error) {
	if err := checkSize(c.File); err != nil {
		return Device{}, nil, err
	}
	control, err := k.openControl()
	if err != nil {
		return Device{}, nil, err
	}
	defer control.Close()
	var d Device
	var f *os.File
	err = retry.For(ctx, attachBound, func() (again bool, err error) {
		d, f, err = k.tryAttach(ctx, control, c)
		return lostRace(err) || errors.Is(err, ErrReattach), err
	})
	if err != nil {
		return Device{}, nil, fmt.Errorf("attach %s to a loop device: %w", c.File.Name(), err)
	}
	return d, f, nil
}

func checkSize(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("size of the backing file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return errs.Errorf(errs.Invalid, "backing file %s is not a regular file", f.Name())
	}
	if info.Size() == 0 || info.Size()%SectorSize != 0 {
		return errs.Errorf(errs.Invalid, "backing file %s has %d bytes: a device needs a size above 0 that is a multiple of %d", f.Name(), info.Size(), SectorSize)
	}
	return nil
}

func (k kernel) tryAttach(ctx context.Context, control *os.File, c Config) (Device, *os.File, error) {
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return Device{}, nil, fmt.Errorf("LOOP_CTL_GET_FREE: %w", err)
	}
	return k.attachTo(ctx, control, number, c)
}

// attachTo fails if another process is faster, or if settings from the previous
// use make the number unusable; it is then recreated for the next try.
func (k kernel) attachTo(ctx context.Context, control *os.File, number int, c Config) (Device, *os.File, error) {
	mode := unix.O_RDWR
	if c.ReadOnly {
		mode = unix.O_RDONLY
	}
	// No O_EXCL: another program can have bound the number and be about to
	// mount it. The kernel binds only once.
	device, err := k.openNode(number, mode)
	if err != nil {
		return Device{}, nil, err
	}
	defer device.Close()
	if err := k.bind(ctx, device, c); err != nil {
		return Device{}, nil, fmt.Errorf("%s: %w", k.node(number), err)
	}
	d, f, err := k.initialize(ctx, device, number, mode, c)
	if err != nil {
		if err := k.release(ctx, device, number, c.File); err != nil {
			return Device{}, nil, err
		}
		if errors.Is(err, ErrReattach) {
			_ = removeNumber(control, number) // or the next try fails too
		}
		return Device{}, nil, fmt.Errorf("%s: %w", k.node(number), err)
	}
	return d, f, nil
}

// release waits until the kernel has unbound the device, so that the next
// attach does not bind the file twice: programs that list loop devices open all
// of them, and the kernel unbinds at the last close.
func (k kernel) release(ctx context.Context, device *os.File, number int, file *os.File) error {
	own, err := BackingOf(file)
	if err != nil {
		return err
	}
	_ = unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0)
	device.Close()
	return retry.For(ctx, attachBound, func() (again bool, err error) {
		f, d, err := k.openNumber(number, 0)
		if isUnbound(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		f.Close()
		if d.Backing != own {
			return false, nil
		}
		return true, fmt.Errorf("%s is still bound to %s, as another program has the device open", d.Path, file.Name())
	})
}

func (k kernel) bind(ctx context.Context, device *os.File, c Config) error {
	config := &unix.LoopConfig{Fd: kernelcall.FirstFile, Size: SectorSize}
	config.Info.Flags = unix.LO_FLAGS_DIRECT_IO
	if c.ReadOnly {
		config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	if c.AutoClear {
		config.Info.Flags |= unix.LO_FLAGS_AUTOCLEAR
	}
	if _, err := kernelcall.Ioctl(ctx, device, unix.LOOP_CONFIGURE, config, c.File); err != nil {
		return fmt.Errorf("LOOP_CONFIGURE: %w", err)
	}
	return nil
}

func lostRace(err error) bool {
	return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || errors.Is(err, fs.ErrNotExist)
}

// initialize also resets settings from the number's previous use, which the
// kernel keeps.
func (k kernel) initialize(ctx context.Context, device *os.File, number, mode int, c Config) (Device, *os.File, error) {
	want, err := BackingOf(c.File)
	if err != nil {
		return Device{}, nil, err
	}
	if err := setReadOnly(device, false); err != nil && !c.ReadOnly {
		return Device{}, nil, err
	}
	if err := k.setReadAhead(ctx, number, leastReadAhead); err != nil {
		return Device{}, nil, err
	}
	d, err := k.status(device, number)
	if err != nil {
		return Device{}, nil, err
	}
	if d.Backing != want {
		return Device{}, nil, fmt.Errorf("the device shows %v, want %v", d.Backing, want)
	}
	if err := k.setDiscard(ctx, number, true); err != nil {
		return Device{}, nil, err
	}
	f, err := k.openNode(number, mode)
	return d, f, err
}

func removeNumber(control *os.File, number int) error {
	if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, number); err != nil {
		return fmt.Errorf("remove loop device %d: LOOP_CTL_REMOVE: %w", number, err)
	}
	return nil
}
