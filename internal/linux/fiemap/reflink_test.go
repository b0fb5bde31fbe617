package fiemap

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/scratchfs"
)

const (
	fileSize = 2 << 20
	fsBlock  = 4096
)

// Snapshots of a file that random writes, punches and zeroings change: where
// Delta says nothing, two snapshots must be equal byte for byte.
func TestDeltaMissesNoChange(t *testing.T) {
	for _, fstype := range []string{"xfs", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			dir := scratchfs.Mount(t, fstype)
			seed := rand.Uint64()
			random := rand.New(rand.NewPCG(seed, 0))
			live := create(t, dir)
			size := int64(fileSize)
			if err := live.Truncate(size); err != nil {
				t.Fatal(err)
			}
			snapshots := []*os.File{snapshot(t, live)}
			for range 12 {
				for range random.IntN(30) {
					change(t, live, random, size)
				}
				if random.IntN(3) == 0 {
					size += fsBlock * random.Int64N(16)
					if err := live.Truncate(size); err != nil {
						t.Fatal(err)
					}
				}
				snapshots = append(snapshots, snapshot(t, live))
			}
			reported := int64(0)
			for i := range snapshots {
				// The one before, the first, and back in time.
				for _, base := range []int{max(i-1, 0), 0, len(snapshots) - 1} {
					reported += compare(t, seed, snapshots[base], snapshots[i])
				}
			}
			if reported == 0 {
				t.Errorf("seed %d: no change reported at all", seed)
			}
		})
	}
}

func snapshot(t *testing.T, live *os.File) *os.File {
	t.Helper()
	f := create(t, filepath.Dir(live.Name()))
	if err := unix.IoctlFileClone(int(f.Fd()), int(live.Fd())); err != nil {
		t.Fatal(err)
	}
	return f
}

func change(t *testing.T, f *os.File, random *rand.Rand, size int64) {
	t.Helper()
	at := random.Int64N(size)
	length := min(1+random.Int64N(40*fsBlock), size-at)
	mode := uint32(unix.FALLOC_FL_KEEP_SIZE)
	switch random.IntN(4) {
	case 0: // the blocks of a loop device are whole ones, a file's need not be
		at, length = at&^(fsBlock-1), fsBlock
		fallthrough
	case 1:
		content := make([]byte, length)
		for i := range content {
			content[i] = byte(random.Uint32())
		}
		if _, err := f.WriteAt(content, at); err != nil {
			t.Fatal(err)
		}
		return
	case 2:
		mode |= unix.FALLOC_FL_PUNCH_HOLE
	case 3:
		mode |= unix.FALLOC_FL_ZERO_RANGE
	}
	if err := unix.Fallocate(int(f.Fd()), mode, at, length); err != nil {
		t.Fatal(err)
	}
}

// compare checks Delta of two files, and of the target against an empty file,
// against their bytes, and returns how many bytes were reported as changed.
func compare(t *testing.T, seed uint64, base, target *os.File) (reported int64) {
	t.Helper()
	was, is := content(t, base), content(t, target)
	size := int64(len(is))
	was = append(was, make([]byte, max(0, len(is)-len(was)))...)[:size]
	read := func(f *os.File) func(func(Extent, error) bool) { return Extents(t.Context(), f, 0, 1<<40) }
	from := int64(0)
	changed := collect(t, Delta(read(base), read(target), size, 0))
	for _, r := range append(changed, Range{Offset: size}) {
		if !bytes.Equal(was[from:r.Offset], is[from:r.Offset]) {
			t.Errorf("seed %d: %s to %s: a change in [%d,%d) is not reported", seed, base.Name(), target.Name(), from, r.Offset)
		}
		from = r.End()
		reported += r.Length
	}
	from = 0
	for _, r := range append(collect(t, Delta(list(), read(target), size, 0)), Range{Offset: size}) {
		if len(bytes.Trim(is[from:r.Offset], "\x00")) > 0 {
			t.Errorf("seed %d: %s: data in [%d,%d) is not reported", seed, target.Name(), from, r.Offset)
		}
		from = r.End()
	}
	if base == target && len(changed) > 0 && !hasOpaque(t, target) {
		t.Errorf("seed %d: %s differs from itself in %v", seed, base.Name(), changed)
	}
	return reported
}

// hasOpaque reports whether a file has extents that count as changed always.
func hasOpaque(t *testing.T, f *os.File) bool {
	for _, e := range extents(t, f, 0, 1<<40) {
		if e.Opaque() {
			return true
		}
	}
	return false
}

func content(t *testing.T, f *os.File) []byte {
	t.Helper()
	all, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The cost follows the extents: 20,000 of them in each file.
func BenchmarkDelta(b *testing.B) {
	dir := scratchfs.Mount(b, "xfs")
	live := create(b, dir)
	const count = 20_000
	for i := range int64(count) {
		if _, err := live.WriteAt([]byte{1}, 2*i*fsBlock); err != nil {
			b.Fatal(err)
		}
	}
	base := create(b, dir)
	if err := unix.IoctlFileClone(int(base.Fd()), int(live.Fd())); err != nil {
		b.Fatal(err)
	}
	if _, err := live.WriteAt([]byte{2}, 1000*fsBlock); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		read := func(f *os.File) func(func(Extent, error) bool) { return Extents(b.Context(), f, 0, 1<<40) }
		changed := 0
		for _, err := range Delta(read(base), read(live), 2*count*fsBlock, 0) {
			if err != nil {
				b.Fatal(err)
			}
			changed++
		}
		if changed != 1 {
			b.Fatalf("%d ranges changed, want 1", changed)
		}
	}
}
