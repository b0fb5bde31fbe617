package mkfs_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk"
	"github.com/cleatproject/cleat/test/vm/disk/fusefile"
)

// failing is a device on which failed begins when the marker is durable.
type failing struct {
	*os.File
	syncs  int
	failed func()
}

func (f *failing) Sync() error {
	err := f.File.Sync()
	if f.syncs++; f.syncs == 2 {
		f.failed()
	}
	return err
}

// A growth fails partly done on a disk that fails, and so does its undo: the page
// cache then has the old content, and the disk not. A repeated undo must not take
// the former for the latter.
func TestUndoReadsTheDisk(t *testing.T) {
	const size = 256 * mib
	path, image, data := grownCopy(t, mkfstest.Pool(t, 1024*mib), size)
	d := testkit.Open(disk.Open(disk.Spec{Path: filepath.Join(t.TempDir(), "medium"), Size: size, Cache: size, Survival: disk.SurviveNone}))(t)
	served := fusefile.Serve(t, d)
	copyFile(t, path, served)
	device := mkfstest.Attach(t, served)
	f := testkit.Value(os.OpenFile(device.Path, os.O_RDWR, 0))(t)
	defer f.Close()
	grown := testkit.Value(os.Open(image))(t)
	defer grown.Close()

	var repaired func()
	partly := &failing{File: f, failed: func() { repaired = d.Fail(disk.Fault{Writes: true, From: 4 * mib}) }}
	testkit.WantError(t, "a growth on a failing disk", mkfs.ApplyGrowth(t.Context(), partly, grown, 64*mib, size), nil, "flush")
	repaired()
	repaired = d.Fail(disk.Fault{Writes: true})
	testkit.WantError(t, "its undo there", mkfs.UndoGrowth(f), nil, "")
	repaired()
	testkit.Must(t, mkfs.UndoGrowth(f), f.Close())
	device.Detach(t)
	onDisk := filepath.Join(mkfstest.Pool(t, 1024*mib), "content")
	copyFile(t, served, onDisk)
	checkGrown(t, onDisk, 64*mib, data)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	src := testkit.Value(os.Open(from))(t)
	defer src.Close()
	dst := testkit.Value(os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o600))(t)
	_ = testkit.Value(io.Copy(dst, src))(t)
	testkit.Must(t, dst.Sync(), dst.Close())
}
