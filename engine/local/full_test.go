package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
	"github.com/cleatproject/cleat/volume"
)

// File systems without bytes, inodes or metadata. keepsPins: the pin of a copy
// that wrote nothing stays until another deletion frees space.
var fullPools = []struct {
	name      string
	fsType    string
	flags     []string
	exhaust   func(t testing.TB, dir string)
	keepsPins bool
}{
	{"xfs bytes", "xfs", []string{"-m", "reflink=1"}, exhaustAll, false},
	{"xfs inodes", "xfs", []string{"-m", "reflink=1", "-i", "maxpct=1"}, exhaustInodes, false},
	{"xfs without shared blocks", "xfs", []string{"-m", "reflink=0"}, exhaustAll, true},
	{"ext4 bytes", "ext4", nil, exhaustAll, false},
	{"ext4 inodes", "ext4", []string{"-N", "64"}, exhaustInodes, false},
	{"btrfs bytes", "btrfs", nil, exhaustBytes, false},
	{"btrfs metadata", "btrfs", nil, exhaustAll, false},
}

// A full pool promises no space. Its driver starts, everything can be deleted,
// and no volume is called lost. The state directory is on the same file system.
func TestFullPool(t *testing.T) {
	for _, c := range fullPools {
		t.Run(c.name, func(t *testing.T) {
			dir := scratchfs.Mount(t, c.fsType, c.flags...)
			e := open(t, fullConfig(dir))
			v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
			w := create(t, e, volume.CreateRequest{Name: "w", Size: volume.SizeRange{Required: mib}, Parameters: thickly})
			fill(t, file(e, v), mib)
			s := snapshot(t, e, "s", v.ID)
			g := testkit.Value(e.CreateGroup(t.Context(), volume.GroupRequest{Name: "g", Sources: []volume.ID{v.ID, w.ID}}))(t)
			for _, s := range append(g.Snapshots, s) {
				waitCopied(t, e, string(s.ID))
			}
			create(t, e, volume.CreateRequest{Name: "clone", Source: volume.Source{Snapshot: s.ID}})
			unplaced := unplacedVolume(t, e)
			// Without shared blocks the copy waits, with its source pinned.
			e.copies.slots <- struct{}{}
			e.copies.slots <- struct{}{}
			pending := snapshot(t, e, "pending", v.ID)
			removeRecords(t, dir) // the next start tries to write them
			c.exhaust(t, dir)

			_, err := e.Create(t.Context(), volume.CreateRequest{Name: "more", Content: volume.Raw})
			wantKind(t, err, "Create", errs.Exhausted)
			_, err = e.CreateSnapshot(t.Context(), volume.SnapshotRequest{Name: "t", Source: w.ID})
			if err != nil || e.pool.reflink { // otherwise the copy fails
				wantKind(t, err, "CreateSnapshot", errs.Exhausted)
			}
			if err := e.DeleteSnapshot(t.Context(), pending.ID); err != nil && !c.keepsPins {
				t.Errorf("DeleteSnapshot of an incomplete copy: %v", err)
			}
			closeEngine(t, e)
			e = open(t, fullConfig(dir))
			if conditions, err := e.VolumeHealth(t.Context(), unplaced); e.pool.has(incomingDir, string(unplaced)) {
				wantReason(t, conditions, err, volume.ReasonFileIncoming, volume.Inaccessible)
			}
			testkit.Must(t, e.DeleteSnapshot(t.Context(), s.ID), e.DeleteGroup(t.Context(), g.ID))
			for _, v := range testkit.Value(e.List(t.Context(), "", 0))(t) {
				testkit.Must(t, e.Delete(t.Context(), v.ID))
			}
			for _, dir := range []string{volumesDir, snapshotsDir, incomingDir} {
				empty(t, e, dir)
			}
		})
	}
}

// A pool with bytes and without inodes offers no space.
func TestPoolWithoutInodes(t *testing.T) {
	dir := scratchfs.Mount(t, "ext4", "-N", "64")
	e := open(t, fullConfig(dir))
	exhaustInodes(t, dir)
	testkit.EventuallyNil(t, "a pool without inodes offers no space and says so", func() error {
		c, err := e.Capacity(t.Context(), volume.CapacityQuery{Content: volume.Raw})
		all, health := e.StorageHealth(t.Context())
		if c.Available != 0 || len(all) != 1 || all[0].Reason != volume.ReasonPoolNearlyFull {
			return errs.Errorf(errs.Exhausted, "capacity %+v (%v), health %+v (%v)", c, err, all, health)
		}
		return errors.Join(err, health)
	})
}

// unplacedVolume leaves the file of a volume as after a kill before its rename.
// btrfs without metadata cannot rename it.
func unplacedVolume(t testing.TB, e *Engine) volume.ID {
	t.Helper()
	v := create(t, e, volume.CreateRequest{Name: "unplaced", Size: volume.SizeRange{Required: mib}})
	testkit.Must(t, e.pool.root.Rename(volumesDir+"/"+string(v.ID), incomingDir+"/"+string(v.ID)))
	return v.ID
}

func fullConfig(dir string) Config {
	c := config(filepath.Join(dir, "pool"))
	c.StateDir = filepath.Join(dir, "state")
	return c
}

// exhaustAll first gives all bytes to contents of files, so that btrfs cannot
// use them for metadata.
func exhaustAll(t testing.TB, dir string) {
	t.Helper()
	exhaustBytes(t, dir)
	exhaustInodes(t, dir)
}

func exhaustBytes(t testing.TB, dir string) {
	t.Helper()
	f := testkit.Value(os.Create(filepath.Join(dir, "ballast")))(t)
	defer f.Close()
	fillUp(t, f)
}

// exhaustInodes uses files that need little but an inode and metadata.
func exhaustInodes(t testing.TB, dir string) {
	t.Helper()
	dir = filepath.Join(dir, "files")
	if err := os.Mkdir(dir, 0o700); errors.Is(err, unix.ENOSPC) {
		return
	}
	top := testkit.Open(os.Open(dir))(t)
	text := strings.Repeat("x", 1000)
	for n, failures := 0, 0; failures < 3; n++ {
		err := os.Symlink(text, filepath.Join(dir, fmt.Sprint(n)))
		if errors.Is(err, unix.ENOSPC) {
			failures++
			_ = unix.Syncfs(int(top.Fd())) // btrfs finds more metadata
		} else if err != nil {
			t.Fatal(errors.Unwrap(err))
		}
	}
}

func fillUp(t testing.TB, f *os.File) {
	t.Helper()
	var at int64
	for chunk := int64(64 * mib); chunk >= granule; chunk /= 2 {
		for {
			err := fallocate(f, unix.FALLOC_FL_KEEP_SIZE, at, chunk)
			if errors.Is(err, unix.ENOSPC) {
				break
			}
			testkit.Must(t, err)
			at += chunk
		}
	}
}
