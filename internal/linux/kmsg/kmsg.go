// Package kmsg reads the kernel's log from /dev/kmsg
// (Documentation/ABI/testing/dev-kmsg of the kernel). Reads do not block.
package kmsg

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// path needs CAP_SYSLOG if kernel.dmesg_restrict is set.
const path = "/dev/kmsg"

// Record is one message.
type Record struct {
	Seq  uint64 // counts all messages since boot
	Text string // one line, with escapes for what cannot be printed
}

// Log is a position in the kernel's log. It is not for concurrent use.
type Log struct{ fd int }

// Open opens the log at its oldest message.
func Open() (*Log, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &Log{fd}, nil
}

// Close closes the log.
func (l *Log) Close() { _ = unix.Close(l.fd) }

// SkipAll goes to the end: Read returns later messages only.
func (l *Log) SkipAll() error {
	if _, err := unix.Seek(l.fd, 0, unix.SEEK_END); err != nil {
		return &fs.PathError{Op: "seek", Path: path, Err: err}
	}
	return nil
}

// Read returns the messages since the last call. Messages that the kernel has
// overwritten since then are missing: the numbers have a gap.
func (l *Log) Read() ([]Record, error) {
	var all []Record
	var buffer [8192]byte // the kernel's limit for a record is smaller
	for {
		n, err := unix.Read(l.fd, buffer[:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			return all, nil
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			continue // overwritten: the next read has the oldest one
		case err != nil:
			return all, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		r, err := parse(buffer[:n])
		if err != nil {
			return all, err
		}
		all = append(all, r)
	}
}

// parse parses "6,339,5140900,-;text" and drops the lines with the device.
func parse(data []byte) (Record, error) {
	line, _, _ := bytes.Cut(data, []byte("\n"))
	prefix, text, found := strings.Cut(string(line), ";")
	fields := strings.Split(prefix, ",")
	if !found || len(fields) < 4 {
		return Record{}, fmt.Errorf("%s has a record without a prefix of four fields", path)
	}
	seq, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return Record{}, fmt.Errorf("%s: sequence number: %w", path, err)
	}
	return Record{Seq: seq, Text: text}, nil
}
