// Package sysfs reads the small files, links and directories of sysfs with few
// system calls. Nothing is followed further than was asked for, and nothing
// can make a reader wait or read without end: what is no regular sysfs file is
// an error.
package sysfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"
)

// most is what one attribute holds at most: the kernel gives each a page.
const most = 4096

// Dir is an open directory. It keeps naming the device that it was opened for,
// also when another takes the place: of one that went, everything is gone.
type Dir struct {
	fd   int
	path string
}

// Open opens a directory by its path.
func Open(path string) (Dir, error) { return openAt(unix.AT_FDCWD, path, path) }

// Open opens a directory in this one. Links are followed.
func (d Dir) Open(name string) (Dir, error) { return openAt(d.fd, name, d.at(name)) }

func openAt(at int, name, full string) (Dir, error) {
	fd, err := open(at, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return Dir{}, &fs.PathError{Op: "open", Path: full, Err: err}
	}
	return Dir{fd, full}, nil
}

// Close lets the directory go.
func (d Dir) Close() { _ = unix.Close(d.fd) }

// Path is by what the directory was opened.
func (d Dir) Path() string { return d.path }

func (d Dir) at(name string) string { return d.path + "/" + name }

// Text is what a file in the directory holds, without white space around it.
func (d Dir) Text(name string) (string, error) {
	// Without O_NONBLOCK a FIFO would make the caller wait for its writer.
	fd, err := open(d.fd, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: d.at(name), Err: err}
	}
	var page [most + 1]byte
	n, err := read(fd, page[:])
	_ = unix.Close(fd)
	if err == nil && n > most {
		err = fmt.Errorf("it holds more than %d bytes, which no attribute of sysfs does", most)
	}
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: d.at(name), Err: err}
	}
	return string(bytes.TrimSpace(page[:n])), nil
}

// Link is what a symbolic link in the directory says.
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

// Has reports whether the directory has an entry of that name now.
func (d Dir) Has(name string) bool {
	for {
		err := unix.Faccessat(d.fd, name, unix.F_OK, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
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

// IsAbsent tells the error of what is not there, or went while it was read.
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
