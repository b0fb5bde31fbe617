// Writer writes numbered records to files and block devices without end, and
// notes each that was acknowledged in a journal that does not lie on them.
//
//	writer JOURNALS NAME=PATH...        checks what is there, then writes
//	writer -check JOURNALS NAME=PATH... checks, beside a writer or without one
//
// A record has 4096 bytes and a place: that of its number modulo the number of
// places. A file is written through the page cache and synced, a device with
// O_DIRECT and synced. JOURNALS/NAME gets a line "NUMBER NANOSECONDS" for each
// record when the kernel has said that it is on the disk; a line that begins
// with "error" tells what the kernel said instead, and ends the program.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	recordSize = 4096
	places     = 4096 // 16 MiB
	pace       = 5 * time.Millisecond
)

func main() {
	args := os.Args[1:]
	check := len(args) > 0 && args[0] == "-check"
	if check {
		args = args[1:]
	}
	if len(args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: writer [-check] JOURNALS NAME=PATH...")
		os.Exit(2)
	}
	var all sync.WaitGroup
	failed := make(chan error, len(args))
	for _, word := range args[1:] {
		name, path, found := strings.Cut(word, "=")
		if !found {
			failed <- fmt.Errorf("%q is not NAME=PATH", word)
			continue
		}
		t := target{name: name, path: path, journal: filepath.Join(args[0], name)}
		all.Go(func() {
			if err := t.run(check); err != nil {
				failed <- fmt.Errorf("%s (%s): %w", t.name, t.path, err)
			}
		})
	}
	if check {
		all.Wait()
		close(failed)
	}
	code := 0
	for err := range failed {
		fmt.Fprintln(os.Stderr, "writer:", err)
		if code = 1; !check {
			break // the others end with it
		}
	}
	os.Exit(code)
}

// target is one file or device.
type target struct {
	name, path, journal string
}

func (t target) run(check bool) error {
	if check {
		return t.check()
	}
	journal, err := os.OpenFile(t.journal, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer journal.Close()
	err = t.check()
	if err == nil {
		err = t.write(journal)
	}
	fmt.Fprintf(journal, "error %v\n", err)
	return err
}

// write goes on behind the last acknowledged record until something fails.
func (t target) write(journal *os.File) error {
	f, err := t.open(os.O_RDWR)
	if err != nil {
		return err
	}
	defer f.Close()
	last, err := t.acknowledged()
	if err != nil {
		return err
	}
	buffer := aligned()
	for tick := time.NewTicker(pace); ; <-tick.C {
		last++
		t.fill(buffer, last)
		if _, err := f.WriteAt(buffer, int64(last%places)*recordSize); err != nil {
			return fmt.Errorf("record %d: %w", last, err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return fmt.Errorf("sync record %d: %w", last, err)
		}
		if _, err := fmt.Fprintf(journal, "%d %d\n", last, time.Now().UnixNano()); err != nil {
			return err
		}
	}
}

// open opens a device past the page cache, and makes a file that is missing.
func (t target) open(flags int) (*os.File, error) {
	info, err := os.Stat(t.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		flags |= os.O_CREATE
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeDevice != 0:
		flags |= unix.O_DIRECT
	}
	return os.OpenFile(t.path, flags, 0o600)
}

// check reads every place and wants the last acknowledged record of it there,
// or a later one, as a writer may be at work or may have been cut off between
// the disk's word and the journal.
func (t target) check() error {
	before, err := t.acknowledged()
	if err != nil {
		return err
	}
	if before == 0 {
		return nil
	}
	f, err := os.OpenFile(t.path, os.O_RDONLY|unix.O_DIRECT, 0) // what the disk has
	if err != nil {
		return err
	}
	defer f.Close()
	buffer, want := aligned(), aligned()
	for number := max(1, before+1-min(before, places)); number <= before; number++ {
		var found uint64
		right := false
		for try := 0; !right && try < 3; try++ { // the next record may just be on its way there
			if try > 0 {
				time.Sleep(10 * pace)
			}
			if _, err := f.ReadAt(buffer, int64(number%places)*recordSize); err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("read the place of record %d: %w", number, err)
			}
			found = binary.LittleEndian.Uint64(buffer)
			t.fill(want, found)
			right = found >= number && found%places == number%places && bytes.Equal(buffer, want)
		}
		if !right {
			return fmt.Errorf("record %d was acknowledged, the last of all is %d; in its place is %x..., which would be record %d", number, before, buffer[:32], found)
		}
	}
	fmt.Printf("%s: %d records up to %d are as written\n", t.name, min(before, places), before)
	return nil
}

// acknowledged is the highest number in the journal, 0 without one.
func (t target) acknowledged() (uint64, error) {
	f, err := os.Open(t.journal)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var last uint64
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return last, nil // what has no end was cut off
		}
		if err != nil {
			return 0, err
		}
		var number uint64
		if _, err := fmt.Sscan(line, &number); err == nil {
			last = max(last, number) // for a moment there may have been two writers
		}
	}
}

// fill makes the record of a number: the number, bytes that follow from it and
// the target's name, and a checksum of all that.
func (t target) fill(buffer []byte, number uint64) {
	binary.LittleEndian.PutUint64(buffer, number)
	random := rand.New(rand.NewPCG(number, uint64(crc32.ChecksumIEEE([]byte(t.name)))))
	for at := 8; at < recordSize-8; at += 8 {
		binary.LittleEndian.PutUint64(buffer[at:], random.Uint64())
	}
	binary.LittleEndian.PutUint64(buffer[recordSize-8:], uint64(crc32.ChecksumIEEE(buffer[:recordSize-8])))
}

// aligned is a buffer that O_DIRECT takes.
func aligned() []byte {
	room := make([]byte, 2*recordSize)
	skip := recordSize - int(uintptr(unsafe.Pointer(unsafe.SliceData(room)))%recordSize)
	return slices.Clip(room[skip : skip+recordSize])
}
