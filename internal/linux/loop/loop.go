// Package loop attaches files as block devices with the kernel's loop driver.
//
// A loop device is identified by the device and inode of its backing file: the
// kernel reuses loop numbers, and the path of the file can change or be
// removed. So every call opens the device, checks the backing of that open
// file, and then acts on it; while it is open the kernel cannot bind the number
// to another file.
package loop

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// SectorSize is the logical block size of all devices, in bytes. With a smaller
// size the device loses direct I/O as soon as the backing file shares extents
// with a snapshot, and a file system created with it does not mount then.
const SectorSize = 4096

var (
	// ErrBusy: the device is in use.
	ErrBusy = errors.New("the loop device is in use")
	// ErrGone: the device is not, or no longer, bound to this backing file.
	ErrGone = errors.New("the loop device is no longer bound to this file")
	// ErrReattach: this kernel can enable discards again only on a new device.
	ErrReattach = errors.New("discards are enabled again when the file is reattached")
)

// Backing is the identity of a backing file while it exists, from fstat.
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

// Device is a loop device that is bound to a file.
type Device struct {
	Number       int
	Path         string // of the device node, /dev/loopN
	Major, Minor uint32
	Backing      Backing
	ReadOnly     bool // the device rejects writes
	AutoClear    bool // the device is detached at its last close
	DirectIO     bool // I/O actually bypasses the page cache of the file
	// Silent is set if the backing file does not respond, for example because
	// its file system has shut down. It is the path recorded by the kernel;
	// Backing and the flags are then empty.
	Silent string
}

// Config is a request to attach a file.
type Config struct {
	// File is the backing file, open for writing unless ReadOnly; its size is a
	// multiple of SectorSize. It can be closed after Attach.
	File *os.File
	// ReadOnly creates a device that rejects writes.
	ReadOnly bool
	// AutoClear detaches the device at its last close: of the file that Attach
	// returns, or by an unmount.
	AutoClear bool
}

// Attach binds the file to a free loop device with SectorSize sectors, with
// direct I/O if the file system supports it (see Device.DirectIO). Settings
// from the number's previous use are reset: discards are on, read-ahead is the
// kernel's default. The returned file is the open device; it keeps an AutoClear
// device until it is mounted, and the caller closes it. The kernel would bind
// one file twice; the caller must prevent that. Errors: errs.Invalid for an
// empty file, or a size that is not a multiple of SectorSize.
func Attach(ctx context.Context, c Config) (Device, *os.File, error) {
	return host().attach(ctx, c)
}

// Find returns the devices bound to a file, sorted by number; usually zero or
// one. Silent devices are excluded: a file whose identity was just read does
// respond.
func Find(ctx context.Context, b Backing) ([]Device, error) {
	return host().list(ctx, func(d Device) bool { return d.Backing == b })
}

// List returns all bound loop devices of the machine sorted by number,
// including those of other programs.
func List(ctx context.Context) ([]Device, error) {
	return host().list(ctx, func(Device) bool { return true })
}

// Detach unbinds the file from the device and verifies that. It is idempotent.
// For a device in use the kernel would report success and detach at the last
// close; Detach instead returns ErrBusy (and errs.Precondition) with the known
// users in the text, and leaves the device as it was. It waits for short uses
// by other programs, such as udev.
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
	return host().with(ctx, d, func(f *os.File, _ Device) error { return setAutoClear(f, on) })
}

// SetReadAhead sets the read-ahead of the device in KiB; 0 disables it. It
// lasts until the device is detached. Errors: ErrGone, errs.Invalid.
func SetReadAhead(ctx context.Context, d Device, kib int) error {
	if kib < 0 || kib > maxReadAhead {
		return errs.Errorf(errs.Invalid, "read-ahead of %d KiB is not in the range 0 (off) to %d", kib, maxReadAhead)
	}
	return host().with(ctx, d, func(_ *os.File, now Device) error { return host().setReadAhead(now.Number, kib) })
}

// SetDiscard enables discards, which punch holes into the backing file, or
// disables them, so that a fully allocated file stays allocated. Some kernels,
// such as Linux 6.18, cannot enable them again: that returns ErrReattach (and
// errs.Precondition), and they are enabled by the next Attach. Errors: ErrGone.
func SetDiscard(ctx context.Context, d Device, on bool) error {
	return host().with(ctx, d, func(_ *os.File, now Device) error { return host().setDiscard(now.Number, on) })
}

// SetReadOnly makes the device reject or accept writes. Existing writable opens
// and mounts remain and get errors. Errors: ErrGone.
func SetReadOnly(ctx context.Context, d Device, on bool) error {
	return host().with(ctx, d, func(f *os.File, _ Device) error { return setReadOnly(f, on) })
}
