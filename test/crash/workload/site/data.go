package site

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// BlockSize is the size of a Spot in bytes.
	BlockSize = 4096
	// sector is the size in bytes that a disk writes atomically.
	sector = 512
)

// Never stands for "never written" among the seeds of Check.
const Never uint64 = 0

// Spot is a place for BlockSize bytes in a published volume: a file or a block.
type Spot struct {
	Target string `json:"target"` // where the volume is published
	Block  bool   `json:"block,omitempty"`
	Key    string `json:"key"` // a file's name, or a block's number
}

func (s Spot) String() string { return s.Target + " " + s.Key }

func (s Spot) place() (path string, offset int64, err error) {
	if !s.Block {
		return filepath.Join(s.Target, s.Key), 0, nil
	}
	n, err := strconv.ParseInt(s.Key, 10, 64)
	return s.Target, n * BlockSize, err
}

// bytesOf returns the block of bytes of a seed.
func bytesOf(seed uint64) []byte {
	data := make([]byte, BlockSize)
	if seed == Never {
		return data
	}
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(data) // never fails
	return data
}

// Write fills a spot with the bytes of a seed other than Never; with sync they
// are durable on return.
func (s Site) Write(at Spot, seed uint64, sync bool) error {
	path, offset, err := at.place()
	if err != nil {
		return err
	}
	flags := os.O_WRONLY
	if !at.Block {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(bytesOf(seed), offset)
	if err == nil && sync {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil || at.Block || !sync {
		return err
	}
	return syncDir(at.Target) // the file's name too
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Check reads a spot past the page cache of the device and compares it with the
// bytes of the seeds. With several seeds a write was interrupted, and each
// sector can be of any of them.
func (s Site) Check(at Spot, seeds ...uint64) error {
	path, offset, err := at.place()
	if err != nil {
		return err
	}
	absentAllowed := len(seeds) > 0 && seeds[0] == Never
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && absentAllowed {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), offset, BlockSize, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("fadvise %s: %w", path, err)
	}
	got := make([]byte, BlockSize)
	_, err = io.ReadFull(io.NewSectionReader(f, offset, BlockSize), got)
	if short := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); err != nil && (!short || !absentAllowed) {
		return fmt.Errorf("read %s at %d: %w", path, offset, err)
	}
	return compare(got, seeds, fmt.Sprintf("%s at %d", path, offset))
}

func compare(got []byte, seeds []uint64, where string) error {
	var wanted [][]byte
	for _, seed := range seeds {
		wanted = append(wanted, bytesOf(seed))
	}
	for from := 0; from < len(got); from += sector {
		found := false
		for _, w := range wanted {
			found = found || bytes.Equal(got[from:from+sector], w[from:from+sector])
		}
		if !found {
			return fmt.Errorf("%s does not hold what was written (sector %d begins with % x)", where, from/sector, got[from:from+8])
		}
	}
	return nil
}
