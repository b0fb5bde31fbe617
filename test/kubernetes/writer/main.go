// Writer writes numbered records to files and block devices until it is
// stopped, and logs each acknowledged record in a journal elsewhere.
//
//	writer JOURNALS NAME=PATH...        checks the existing records, then writes
//	writer -check JOURNALS NAME=PATH... only checks, also while a writer runs
//
// A record has 4096 bytes and is stored at its number modulo the number of
// places. Files are written through the page cache and synced, devices with
// O_DIRECT and synced. JOURNALS/NAME gets a line "NUMBER NANOSECONDS" for each
// record that is on the disk; a line that starts with "error" has the kernel's
// error, after which the program ends.
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
			break // the other targets end too
		}
	}
	os.Exit(code)
}

// target is a file or device.
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

// write continues after the last acknowledged record until an error.
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

// open opens a device with O_DIRECT, and creates a missing file.
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

// check fails unless every place has its last acknowledged record or a later
// one: a writer can be running, or it was interrupted between the sync and the
// journal.
func (t target) check() error {
	before, err := t.acknowledged()
	if err != nil {
		return err
	}
	if before == 0 {
		return nil
	}
	f, err := os.OpenFile(t.path, os.O_RDONLY|unix.O_DIRECT, 0) // bypasses the page cache
	if err != nil {
		return err
	}
	defer f.Close()
	buffer, want := aligned(), aligned()
	for number := max(1, before+1-min(before, places)); number <= before; number++ {
		var found uint64
		right := false
		for try := 0; !right && try < 3; try++ { // the next record can be in flight
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

// acknowledged returns the highest number in the journal, or 0.
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
			return last, nil // an incomplete line was interrupted
		}
		if err != nil {
			return 0, err
		}
		var number uint64
		if _, err := fmt.Sscan(line, &number); err == nil {
			last = max(last, number) // two writers can overlap for a moment
		}
	}
}

// fill writes the record of a number into buffer: the number, bytes derived
// from the number and the target's name, and a checksum.
func (t target) fill(buffer []byte, number uint64) {
	binary.LittleEndian.PutUint64(buffer, number)
	random := rand.New(rand.NewPCG(number, uint64(crc32.ChecksumIEEE([]byte(t.name)))))
	for at := 8; at < recordSize-8; at += 8 {
		binary.LittleEndian.PutUint64(buffer[at:], random.Uint64())
	}
	binary.LittleEndian.PutUint64(buffer[recordSize-8:], uint64(crc32.ChecksumIEEE(buffer[:recordSize-8])))
}

// aligned returns a buffer aligned for O_DIRECT.
func aligned() []byte {
	space := make([]byte, 2*recordSize)
	skip := recordSize - int(uintptr(unsafe.Pointer(unsafe.SliceData(space)))%recordSize)
	return slices.Clip(space[skip : skip+recordSize])
}
