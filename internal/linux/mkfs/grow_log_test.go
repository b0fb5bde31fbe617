package mkfs_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// recorder records writes in epochs that end with a flush. From write number
// fail on, writes fail.
type recorder struct {
	*os.File
	epochs [][]write
	fail   int
	count  int
}

type write struct {
	at   int64
	data []byte
}

func (r *recorder) WriteAt(p []byte, at int64) (int, error) {
	if r.count++; r.fail > 0 && r.count >= r.fail {
		return 0, unix.ENOSPC
	}
	last := len(r.epochs) - 1
	r.epochs[last] = append(r.epochs[last], write{at, slices.Clone(p)})
	return r.File.WriteAt(p, at)
}

func (r *recorder) Sync() error {
	r.epochs = append(r.epochs, nil)
	return r.File.Sync()
}

// grownCopy returns a volume, and the image that a growth copies.
func grownCopy(t *testing.T, dir string, size int64) (path, image string, data []byte) {
	path, data = ext4With(t, dir, 64*mib)
	truncate(t, path, size)
	run(t, "e2fsck", "-f", "-p", path)
	image = filepath.Join(dir, "image")
	testkit.Must(t, unixCopy(path, image))
	t.Setenv("RESIZE2FS_FORCE_LAZY_ITABLE_INIT", "1")
	run(t, "resize2fs", image)
	return path, image, data
}

func unixCopy(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	return errors.Join(unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())), dst.Close())
}

func record(t *testing.T, path, image string, size int64, fail int) (*recorder, error) {
	t.Helper()
	f := testkit.Value(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer f.Close()
	grown := testkit.Value(os.Open(image))(t)
	defer grown.Close()
	r := &recorder{File: f, epochs: [][]write{nil}, fail: fail}
	err := mkfs.ApplyGrowth(t.Context(), r, grown, 64*mib, size)
	if err != nil {
		testkit.Must(t, mkfs.UndoGrowth(f))
	}
	return r, err
}

// A loss of power keeps all writes before a flush, and any of those after it.
func TestGrowthSurvivesPowerLoss(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for _, size := range soak.Pick(2, []int64{256 * mib, 10 << 30, 80 * mib}) {
		dir := mkfstest.Pool(t, 1024*mib)
		path, image, data := grownCopy(t, dir, size)
		done, interrupted := filepath.Join(dir, "done"), filepath.Join(dir, "interrupted")
		testkit.Must(t, unixCopy(path, done))
		r, err := record(t, done, image, size, 0)
		testkit.Must(t, err)
		checkGrown(t, done, size, data)
		for epoch := range r.epochs {
			for range map[bool]int{true: 20, false: 2}[soak.Enabled] {
				testkit.Must(t, unixCopy(path, interrupted))
				replay(t, random, interrupted, r.epochs[:epoch+1])
				f := testkit.Value(os.OpenFile(interrupted, os.O_RDWR, 0))(t)
				testkit.Must(t, errors.Join(mkfs.UndoGrowth(f), f.Close()))
				want := int64(64 * mib)
				if probe(t, interrupted).Size == size && epoch >= len(r.epochs)-2 {
					want = size // the growth was complete
				}
				checkGrown(t, interrupted, want, data)
				if err := grow(t, mkfs.Tools{}, interrupted); err != nil {
					t.Fatalf("to %d MiB, interrupted in epoch %d of %d: %v", size/mib, epoch, len(r.epochs), err)
				}
				checkGrown(t, interrupted, size, data)
			}
		}
	}
}

// replay applies all epochs but for the last, and sectors of the last.
func replay(t *testing.T, random *rand.Rand, path string, epochs [][]write) {
	t.Helper()
	f := testkit.Value(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer f.Close()
	const sector = 512
	through := random.Float64()
	for i, epoch := range epochs {
		for _, w := range epoch {
			for at := 0; at < len(w.data); at += sector {
				if i < len(epochs)-1 || random.Float64() < through {
					testkit.Value(f.WriteAt(w.data[at:min(at+sector, len(w.data))], w.at+int64(at)))(t)
				}
			}
		}
	}
}

// A pool without space fails any write of a growth. Undoing it needs no space
// that was not there.
func TestFailedWritesOfAGrowthAreUndone(t *testing.T) {
	const size = 256 * mib
	dir := mkfstest.Pool(t, 1024*mib)
	path, image, data := grownCopy(t, dir, size)
	for fail := 1; ; fail++ {
		failed := filepath.Join(dir, "failed")
		testkit.Must(t, unixCopy(path, failed))
		_, err := record(t, failed, image, size, fail)
		if err == nil {
			if fail < 5 {
				t.Errorf("only %d writes were made", fail)
			}
			return
		}
		checkGrown(t, failed, 64*mib, data)
	}
}

// An older release takes over an interrupted growth and writes to the volume:
// neither is the log applied, nor the volume refused.
func TestStaleLogIsNotApplied(t *testing.T) {
	const size = 256 * mib
	dir := mkfstest.Pool(t, 1024*mib)
	path, image, data := grownCopy(t, dir, size)
	done := filepath.Join(dir, "done")
	testkit.Must(t, unixCopy(path, done))
	r, err := record(t, done, image, size, 0)
	testkit.Must(t, err)
	v := mkfstest.Mount(t, done, mkfs.Ext4)
	more := writeFile(t, v.Dir, "more", mib)
	v.Unmount(t)
	marker := r.epochs[1][0]
	overwrite(t, done, marker.at, marker.data)
	if _, err := mkfs.Probe(testkit.Open(os.Open(done))(t)); !errors.Is(err, mkfs.ErrDamaged) {
		t.Errorf("a file system with the marker: %v, want ErrDamaged", err)
	}
	testkit.Must(t, grow(t, mkfs.Tools{}, done))
	checkGrown(t, done, size, data)
	v = mkfstest.Mount(t, done, mkfs.Ext4)
	checkFile(t, v.Dir, "more", more)
	v.Unmount(t)
}
