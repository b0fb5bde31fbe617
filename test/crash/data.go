package crash

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// bytesOf makes a block of bytes from a seed.
func bytesOf(seed uint64) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	data := make([]byte, blockSize)
	_, _ = rand.NewChaCha8(key).Read(data) // never fails
	return data
}

// writeData writes one file or one block durably.
func writeData(target string, block bool, key string, seed uint64) error {
	path, offset, flags := place(target, block, key)
	f, err := os.OpenFile(path, flags|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(bytesOf(seed), offset)
	return errors.Join(err, f.Sync(), f.Close())
}

// checkData reads one file or one block past the page cache of the device and
// compares it.
func checkData(target string, block bool, key string, seed uint64) error {
	path, offset, _ := place(target, block, key)
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), offset, blockSize, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("fadvise %s: %w", path, err)
	}
	got := make([]byte, blockSize)
	if _, err := io.ReadFull(io.NewSectionReader(f, offset, blockSize), got); err != nil {
		return fmt.Errorf("read %s at %d: %w", path, offset, err)
	}
	if !bytes.Equal(got, bytesOf(seed)) {
		return fmt.Errorf("%s at %d does not hold what was written (first bytes % x)", path, offset, got[:8])
	}
	return nil
}

func place(target string, block bool, key string) (path string, offset int64, flags int) {
	if !block {
		return filepath.Join(target, key), 0, os.O_CREATE
	}
	n, _ := strconv.ParseInt(key, 10, 64)
	return target, n * blockSize, 0
}
