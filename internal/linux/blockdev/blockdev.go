// Package blockdev reads properties of block devices.
package blockdev

import (
	"errors"
	"fmt"
	"io"
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
