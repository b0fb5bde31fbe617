// Package loop attaches files as block devices with the kernel's loop driver.
//
// A loop device is identified by the device and inode of its backing file: loop
// numbers are reused, and paths change. So every call opens the device and
// checks its backing; while open it cannot be bound to another file.
package loop

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// SectorSize is the logical block size. With a smaller one the device loses
// direct I/O when the backing file shares extents with a snapshot, and its file
// system does not mount then.
const SectorSize = 4096

var (
	// ErrBusy: the device is in use.
	ErrBusy = errors.New("the loop device is in use")
	// ErrGone: the device is not bound to this backing file.
	ErrGone = errors.New("the loop device is no longer bound to this file")
	// ErrReattach: this kernel enables discards only on a new device.
	ErrReattach = errors.New("discards are enabled again when the file is reattached")
)

// Backing identifies a backing file while it exists.
type Backing struct{ Dev, Inode uint64 }

// BackingOf returns the identity of an open file.
func BackingOf(f *os.File) (Backing, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Backing{}, fmt.Errorf("identity of the backing file: %w", &os.PathError{Op: "fstat", Path: f.Name(), Err: err})
	}
	return Backing{Dev: uint64(st.Dev), Inode: st.Ino}, nil
}

func (b Backing) String() string {
	return fmt.Sprintf("inode %d of device %d:%d", b.Inode, unix.Major(b.Dev), unix.Minor(b.Dev))
}

// Device is a bound loop device.
type Device struct {
	Number       int
	Path         string // of the device node, /dev/loopN
	Major, Minor uint32
	Backing      Backing
	ReadOnly     bool
	AutoClear    bool // detached at its last close
	DirectIO     bool // I/O bypasses the file's page cache
	// Silent is the recorded path if the backing file does not respond (its
	// file system has shut down). Backing and the flags are empty then.
	Silent string
}

// Config is a request to attach a file.
type Config struct {
	// File is the backing file, open for writing unless ReadOnly; it can be
	// closed after Attach.
	File     *os.File
	ReadOnly bool
	// AutoClear detaches the device at its last close or unmount.
	AutoClear bool
}

// Attach binds the file to a free loop device, with direct I/O if the file
// system supports it, discards on, and the kernel's default read-ahead. The
// returned file is the open device; it keeps an AutoClear device until it is
// mounted. The caller must prevent that a file is bound twice. Errors:
// errs.Invalid for an empty file, or a size that is not a multiple of
// SectorSize.
func Attach(ctx context.Context, c Config) (Device, *os.File, error) {
	return host().attach(ctx, c)
}

// Find returns the devices bound to a file, sorted by number; usually zero or
// one. Silent devices are excluded.
func Find(ctx context.Context, b Backing) ([]Device, error) {
	return host().list(ctx, func(d Device) bool { return d.Backing == b })
}

// List returns all bound loop devices, sorted by number.
func List(ctx context.Context) ([]Device, error) {
	return host().list(ctx, func(Device) bool { return true })
}

// Detach unbinds the file and verifies that. It is idempotent. The kernel would
// detach a device in use at its last close; Detach instead leaves it as it was,
// and returns ErrBusy (and errs.Precondition) with the known users. It waits
// for short uses, such as udev's.
func Detach(ctx context.Context, d Device) error { return host().detach(ctx, d) }

// Resize updates the device to the size of its backing file. Errors: ErrGone.
func Resize(ctx context.Context, d Device) error {
	return host().with(ctx, d, func(f *os.File, _ Device) error {
		if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
			return fmt.Errorf("apply the new size of the backing file: %w", err)
		}
		return nil
	})
}

// SetAutoClear sets whether the device is detached at its last close. Errors:
// ErrGone.
func SetAutoClear(ctx context.Context, d Device, on bool) error {
	return host().with(ctx, d, func(f *os.File, _ Device) error { return setAutoClear(ctx, f, on) })
}

// SetReadAhead sets the read-ahead in KiB until the device is detached; 0
// disables it. Errors: ErrGone, errs.Invalid.
func SetReadAhead(ctx context.Context, d Device, kib int) error {
	if kib < 0 || kib > maxReadAhead {
		return errs.Errorf(errs.Invalid, "read-ahead of %d KiB is not in the range 0 (off) to %d", kib, maxReadAhead)
	}
	return host().with(ctx, d, func(_ *os.File, now Device) error { return host().setReadAhead(ctx, now.Number, kib) })
}

// SetDiscard enables or disables discards, which punch holes into the backing
// file. Linux 6.18, for example, cannot enable them again before the next
// Attach: ErrReattach (and errs.Precondition). Errors: ErrGone.
func SetDiscard(ctx context.Context, d Device, on bool) error {
	return host().with(ctx, d, func(_ *os.File, now Device) error { return host().setDiscard(ctx, now.Number, on) })
}

// SetReadOnly rejects or accepts writes. Existing writable opens and mounts get
// errors. Errors: ErrGone.
func SetReadOnly(ctx context.Context, d Device, on bool) error {
	return host().with(ctx, d, func(f *os.File, _ Device) error { return setReadOnly(f, on) })
}
