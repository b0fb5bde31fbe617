// Package sysfs reads files, links and directories of sysfs with few system
// calls, and writes attributes. Reads never block: anything but a regular
// attribute is an error.
package sysfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"
)

// most is the maximum size of an attribute: the kernel uses one page.
const most = 4096

// Dir is an open directory. It refers to the same device even if another one
// gets its path: after its removal all reads fail.
type Dir struct {
	fd   int
	path string
}

// Open opens a directory by path.
func Open(path string) (Dir, error) { return openAt(unix.AT_FDCWD, path, path) }

// Open opens a subdirectory, following symbolic links.
func (d Dir) Open(name string) (Dir, error) { return openAt(d.fd, name, d.at(name)) }

func openAt(at int, name, full string) (Dir, error) {
	fd, err := open(at, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return Dir{}, &fs.PathError{Op: "open", Path: full, Err: err}
	}
	return Dir{fd, full}, nil
}

// Close closes the directory.
func (d Dir) Close() { _ = unix.Close(d.fd) }

// Path returns the path given to Open.
func (d Dir) Path() string { return d.path }

func (d Dir) at(name string) string { return d.path + "/" + name }

// Text returns the content of a file without surrounding white space.
func (d Dir) Text(name string) (string, error) {
	// Without O_NONBLOCK, opening a FIFO would block.
	fd, err := open(d.fd, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: d.at(name), Err: err}
	}
	var page [most + 1]byte
	n, err := read(fd, page[:])
	_ = unix.Close(fd)
	if err == nil && n > most {
		err = fmt.Errorf("it has more than %d bytes, the maximum of a sysfs attribute", most)
	}
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: d.at(name), Err: err}
	}
	return string(bytes.TrimSpace(page[:n])), nil
}

// Link returns the target of a symbolic link in the directory.
func (d Dir) Link(name string) (string, error) {
	var target [most]byte
	for {
		n, err := unix.Readlinkat(d.fd, name, target[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", &fs.PathError{Op: "readlink", Path: d.at(name), Err: err}
		}
		return string(target[:n]), nil
	}
}

// Has reports whether the directory has an entry with that name.
func (d Dir) Has(name string) bool {
	for {
		err := unix.Faccessat(d.fd, name, unix.F_OK, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

// Inode returns the number of the directory. In sysfs the kernel gives no other
// directory the same one until it reboots.
func (d Dir) Inode() (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(d.fd, &stat); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: d.path, Err: err}
	}
	return stat.Ino, nil
}

// Names lists the directory, sorted.
func (d Dir) Names() ([]string, error) {
	names, err := d.list()
	if err != nil {
		return nil, &fs.PathError{Op: "list", Path: d.path, Err: err}
	}
	slices.Sort(names)
	return names, nil
}

func (d Dir) list() (names []string, err error) {
	fd, err := open(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	entries := make([]byte, 8*most)
	for {
		n, err := unix.ReadDirent(fd, entries)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return names, err
		}
		_, _, names = unix.ParseDirent(entries[:n], -1, names)
	}
}

// Write makes one write(2): the kernel executes it as one request. It can block,
// unlike reads, for as long as the request takes. The error does not have the
// text.
func Write(path, text string) error {
	fd, err := open(unix.AT_FDCWD, path, unix.O_WRONLY)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// IsAbsent reports errors for a missing file, or a device removed during a
// read.
func IsAbsent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO)
}

func open(at int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(at, name, flags|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func read(fd int, into []byte) (int, error) {
	for {
		n, err := unix.Read(fd, into)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
