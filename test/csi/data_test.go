package csi_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

// noise returns reproducible incompressible data.
func noise(seed uint64, size int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	data := make([]byte, size)
	_, _ = rand.NewChaCha8(key).Read(data) // never fails
	return data
}

// writeFile writes a file of a volume durably.
func (d *disk) writeFile(name string, seed uint64, size int) {
	d.Helper()
	testkit.Must(d, writeAt(filepath.Join(d.target, name), os.O_CREATE, 0, noise(seed, size)))
}

// writeBlock writes to a block volume durably.
func (d *disk) writeBlock(offset int64, seed uint64, size int) {
	d.Helper()
	testkit.Must(d, writeAt(d.target, 0, offset, noise(seed, size)))
}

func writeAt(path string, flags int, offset int64, data []byte) error {
	f, err := os.OpenFile(path, flags|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, offset)
	return errors.Join(err, f.Sync(), f.Close())
}

// holdsFile checks that a file of a volume has the data of writeFile.
func (d *disk) holdsFile(name string, seed uint64, size int) {
	d.Helper()
	got := testkit.Value(os.ReadFile(filepath.Join(d.target, name)))(d)
	if !bytes.Equal(got, noise(seed, size)) {
		d.Errorf("%s of %s does not hold what was written", name, d.name)
	}
}

// holdsBlock is holdsFile for a range of a block volume; seed 0 is zeros.
func (d *disk) holdsBlock(offset int64, seed uint64, size int) {
	d.Helper()
	want := make([]byte, size)
	if seed != 0 {
		want = noise(seed, size)
	}
	if got := d.readBlock(offset, size); !bytes.Equal(got, want) {
		d.Errorf("%s does not hold at %d what was written", d.name, offset)
	}
}

// readBlock reads past the page cache.
func (d *disk) readBlock(offset int64, size int) []byte {
	d.Helper()
	f := testkit.Value(os.Open(d.target))(d)
	defer f.Close()
	testkit.Must(d, unix.Fadvise(int(f.Fd()), offset, int64(size), unix.FADV_DONTNEED))
	got := make([]byte, size)
	testkit.Value(f.ReadAt(got, offset))(d)
	return got
}

// sum is the digest of a whole block volume.
func (d *disk) sum() string {
	d.Helper()
	return sumOf(d.TB, d.target)
}

// sumOf is the digest of a file or a device.
func sumOf(t testing.TB, path string) string {
	t.Helper()
	f := testkit.Value(os.Open(path))(t)
	defer f.Close()
	h := sha256.New()
	testkit.Value(io.Copy(h, f))(t)
	return string(h.Sum(nil))
}
