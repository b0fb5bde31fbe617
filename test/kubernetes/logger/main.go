// Logger appends records to a file until it fails, each synced before the next
// one. It continues a log that another one has written, on whichever node.
//
//	logger FILE         checks the records, then appends
//	logger -check FILE  only checks, also while another one appends
//
// A record is a line "NUMBER HOST NANOSECONDS CHECKSUM"; numbers begin at 1
// without a gap, and the checksum covers the line and that of the record before.
// The first line of output is "continues after NUMBER"; then each synced record's
// number and time.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const pace = 50 * time.Millisecond

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	check := len(args) == 2 && args[0] == "-check"
	if check {
		args = args[1:]
	}
	if len(args) != 1 {
		return errors.New("usage: logger [-check] FILE")
	}
	flags := os.O_RDWR | os.O_CREATE
	if check {
		flags = os.O_RDONLY
	}
	f, err := os.OpenFile(args[0], flags, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	l := &log{file: f}
	if err := l.read(); err != nil {
		return err
	}
	fmt.Println("continues after", l.number)
	if check {
		return nil
	}
	return l.appendRecords()
}

// log is a file of which all records up to a number are as written.
type log struct {
	file   *os.File
	number uint64
	sum    uint32 // of that record
	end    int64  // of it in the file
}

// read reads all records. An incomplete line at the end was not synced: its
// writer was interrupted.
func (l *log) read() error {
	in := bufio.NewReader(l.file)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("after record %d: %w", l.number, err)
		}
		var number uint64
		var host string
		var at int64
		var sum uint32
		if _, err := fmt.Sscanf(string(line), "%d %s %d %08x\n", &number, &host, &at, &sum); err != nil {
			return fmt.Errorf("after record %d is %q: %w", l.number, line, err)
		}
		if want := l.checksum(line); number != l.number+1 || sum != want {
			return fmt.Errorf("after record %d is %q, with the checksum %08x", l.number, line, want)
		}
		l.number, l.sum = number, sum
		l.end += int64(len(line))
	}
}

// checksum covers a record, except for its own checksum.
func (l *log) checksum(record []byte) uint32 {
	text := record[:bytes.LastIndexByte(record, ' ')]
	return crc32.Update(l.sum, crc32.IEEETable, text)
}

func (l *log) appendRecords() error {
	if err := l.file.Truncate(l.end); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	for tick := time.NewTicker(pace); ; <-tick.C {
		at := time.Now().UnixNano()
		text := fmt.Appendf(nil, "%d %s %d ", l.number+1, host, at)
		sum := l.checksum(text)
		text = fmt.Appendf(text, "%08x\n", sum)
		if _, err := l.file.WriteAt(text, l.end); err != nil {
			return fmt.Errorf("record %d: %w", l.number+1, err)
		}
		if err := unix.Fdatasync(int(l.file.Fd())); err != nil {
			return fmt.Errorf("sync record %d: %w", l.number+1, err)
		}
		l.number, l.sum = l.number+1, sum
		l.end += int64(len(text))
		fmt.Println(l.number, at)
	}
}
