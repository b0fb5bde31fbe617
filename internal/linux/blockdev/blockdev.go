// Package blockdev opens block devices, and reads and changes their properties.
package blockdev

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Size returns the size in bytes of an open block device or regular file. It
// moves the file offset.
func Size(f *os.File) (int64, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", f.Name(), err)
	}
	return size, nil
}

// ErrNotBlock is returned by Rdev for a path that is not a block device.
var ErrNotBlock = errors.New("not a block device")

// Rdev returns the device number of a block device node, without following a
// final symbolic link. Errors: ErrNotBlock, fs.ErrNotExist.
func Rdev(path string) (major, minor uint32, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, 0, fmt.Errorf("device number: %w", &os.PathError{Op: "lstat", Path: path, Err: err})
	}
	return rdev(path, &st)
}

// RdevOf is Rdev for an open file.
func RdevOf(f *os.File) (major, minor uint32, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, 0, fmt.Errorf("device number: %w", &os.PathError{Op: "fstat", Path: f.Name(), Err: err})
	}
	return rdev(f.Name(), &st)
}

func rdev(name string, st *unix.Stat_t) (major, minor uint32, err error) {
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, 0, fmt.Errorf("%s is %w", name, ErrNotBlock)
	}
	return unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)), nil
}

// ErrGone is returned for a device that does not exist any more.
var ErrGone = errors.New("the block device does not exist")

// Open opens a device for reading, if its node still has this number.
// ErrGone: neither node nor device exist.
func Open(path string, major, minor uint32) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("open %s: %w (%v)", path, ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	haveMajor, haveMinor, err := RdevOf(f)
	if err == nil && (haveMajor != major || haveMinor != minor) {
		err = fmt.Errorf("%s is the device %d:%d, not %d:%d: mount devtmpfs at /dev", path, haveMajor, haveMinor, major, minor)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// SetReadOnly makes a device refuse or accept writes, also one in use.
func SetReadOnly(f *os.File, readOnly bool) error {
	value := 0
	if readOnly {
		value = 1
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.BLKROSET, value); err != nil {
		return fmt.Errorf("%s: BLKROSET: %w", f.Name(), err)
	}
	return nil
}
