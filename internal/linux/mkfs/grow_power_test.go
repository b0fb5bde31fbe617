package mkfs_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/soak"
)

// TestResizesCutByAPowerLossAreMended: before resize2fs writes the superblock it
// flushes all else once (seen with strace, release 1.47), so a power cut leaves
// the old superblock and any part of the rest.
func TestResizesCutByAPowerLossAreMended(t *testing.T) {
	pool := mkfstest.Pool(t, 1024*mib)
	path, data := ext4With(t, pool)
	random := rand.New(rand.NewPCG(1, 1))
	for _, size := range []int64{80 * mib, 256 * mib, 10 << 30} {
		before, after := filepath.Join(pool, "before"), filepath.Join(pool, "after")
		mkfstest.Reflink(t, path, after)
		truncate(t, after, size)
		script := `cp --reflink=always "$2" ` + before + ` && exec /usr/sbin/resize2fs "$@"`
		if err := fake(t, "resize2fs", script).GrowOffline(t.Context(), after, mkfs.Ext4); err != nil {
			t.Fatal(err)
		}
		for range map[bool]int{true: 8, false: 3}[soak.Enabled] {
			cut := filepath.Join(pool, "cut")
			mkfstest.Reflink(t, before, cut)
			survive(t, random, before, after, cut)
			if err := mkfs.GrowOffline(t.Context(), cut, mkfs.Ext4); err != nil {
				t.Errorf("grown to %d MiB: %v", size/mib, err)
			} else {
				checkGrown(t, cut, size, data)
			}
			if err := os.Remove(cut); err != nil {
				t.Fatal(err)
			}
		}
		for _, done := range []string{before, after} {
			if err := os.Remove(done); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// survive puts a random part of the blocks that changed into the copy, but the
// first one, which has marker and superblock.
func survive(t *testing.T, random *rand.Rand, before, after, into string) {
	t.Helper()
	var files []*os.File
	for _, name := range []string{before, after, into} {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	const block = 4096
	through := random.Float64()
	old, young := make([]byte, block), make([]byte, block)
	for at := int64(0); ; {
		next, err := unix.Seek(int(files[1].Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		at = max(next/block*block, block)
		for b, f := range map[*[]byte]*os.File{&old: files[0], &young: files[1]} {
			if _, err := f.ReadAt(*b, at); err != nil && err != io.EOF {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(old, young) && random.Float64() < through {
			if _, err := files[2].WriteAt(young, at); err != nil {
				t.Fatal(err)
			}
		}
		at += block
	}
}
