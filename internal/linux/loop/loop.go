// Package loop turns files into block devices with the kernel's loop driver.
//
// A loop device is known by the device and inode of its backing file: its own
// number is reused as soon as it is free, and the path of the file may change
// or go. So every call here opens the device, asks that open file which backing
// it has, and acts on nothing else; while it is open the kernel cannot give the
// number to another file.
package loop

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// SectorSize is the logical block size of every device made here, in bytes. A
// smaller one would lose direct I/O as soon as the backing file shares extents
// with a snapshot, and a file system made for it would then not mount.
const SectorSize = 4096

var (
	// ErrBusy: something still holds the device.
	ErrBusy = errors.New("the loop device is in use")
	// ErrGone: the device is not bound to this backing file (any more).
	ErrGone = errors.New("the loop device is not bound to this file any more")
	// ErrReattach: this kernel can allow discards again only on a new device.
	ErrReattach = errors.New("discards come back when the file is attached anew")
)

// Backing names a backing file for as long as it exists, as fstat gives it.
type Backing struct{ Dev, Inode uint64 }

// BackingOf tells what names an open file.
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
	ReadOnly     bool // the device refuses writes
	AutoClear    bool // it lets go of the file with its last user
	DirectIO     bool // it really bypasses the page cache of the file
	// Silent is set when the backing file does not answer, as after its file
	// system has shut down: it is the path that the kernel remembers, and all
	// that is known of the file. Backing and the flags are then empty.
	Silent string
}

// Config says how to attach a file.
type Config struct {
	// File is the backing file, open for writing unless ReadOnly; its size is
	// a multiple of SectorSize. It may be closed after Attach.
	File *os.File
	// ReadOnly makes a device that refuses writes.
	ReadOnly bool
	// AutoClear makes a device that goes with its last user: the file that
	// Attach returns, or what is mounted meanwhile.
	AutoClear bool
}

// Attach binds the file to a free loop device of SectorSize sectors, with direct I/O
// where the file system below can (Device.DirectIO tells). Nothing of the
// number's former use is left: discards are on, read-ahead is the kernel's
// default. The returned file is the open device; it keeps an AutoClear device
// alive until it is mounted, and the caller closes it. The kernel would bind
// one file twice; that the caller must exclude.
// Invalid: an empty file, or a size that is no multiple of SectorSize.
func Attach(ctx context.Context, c Config) (Device, *os.File, error) {
	return host().attach(ctx, c)
}

// Find returns the devices that are bound to a file, in order of their
// numbers; usually none or one. Silent devices are not among them: a file that
// has just told its identity is not the one that does not answer.
func Find(ctx context.Context, b Backing) ([]Device, error) {
	return host().list(ctx, func(d Device) bool { return d.Backing == b })
}

// List returns every bound loop device of the machine in order of their
// numbers, those of other programs too.
func List(ctx context.Context) ([]Device, error) {
	return host().list(ctx, func(Device) bool { return true })
}

// Detach takes the file from the device and makes sure that it is gone; a
// device that is not bound to the file any more is no error. The kernel itself
// would answer that a device in use is detached and do so at its last close;
// here it is ErrBusy (and errs.Precondition), the device stays as it was, and
// the text names who holds it, as far as that can be seen. A short use by
// others, such as udev's, is waited for.
func Detach(ctx context.Context, d Device) error { return host().detach(ctx, d) }

// Resize tells the device that its backing file has another size now. ErrGone.
func Resize(ctx context.Context, d Device) error {
	return host().with(ctx, d, func(f *os.File, _ Device) error {
		if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
			return fmt.Errorf("take over the new size of the backing file: %w", err)
		}
		return nil
	})
}

// SetAutoClear changes whether the device lets go of its file with its last
// user. ErrGone.
func SetAutoClear(ctx context.Context, d Device, on bool) error {
	return host().with(ctx, d, func(f *os.File, _ Device) error { return setAutoClear(f, on) })
}

// SetReadAhead sets the read-ahead of the device in KiB; 0 turns it off. It
// lasts until the device is detached. ErrGone, Invalid.
func SetReadAhead(ctx context.Context, d Device, kib int) error {
	if kib < 0 || kib > maxReadAhead {
		return errs.Errorf(errs.Invalid, "read-ahead of %d KiB: give a number from 0 (off) to %d", kib, maxReadAhead)
	}
	return host().with(ctx, d, func(_ *os.File, now Device) error { return host().setReadAhead(now.Number, kib) })
}

// SetDiscard allows discards, which punch holes into the backing file, or
// refuses them, so that a fully allocated file stays so. Linux 6.18, for one,
// cannot turn them on again: ErrReattach (and errs.Precondition), and they
// are on after the next Attach. ErrGone.
func SetDiscard(ctx context.Context, d Device, on bool) error {
	return host().with(ctx, d, func(_ *os.File, now Device) error { return host().setDiscard(now.Number, on) })
}

// SetReadOnly makes the device refuse writes, or take them again. Who has it
// open or mounted for writing keeps its handle and gets errors. ErrGone.
func SetReadOnly(ctx context.Context, d Device, on bool) error {
	return host().with(ctx, d, func(f *os.File, _ Device) error { return setReadOnly(f, on) })
}
