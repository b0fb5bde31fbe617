package local

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/internal/linux/growfs"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func mounted(t testing.TB, e *Engine, v volume.Volume) (dir string, d loop.Device) {
	t.Helper()
	dir = t.TempDir()
	d, _ = attach(t, e, v)
	spec := mount.Spec{Source: d.Path, Target: dir, FSType: v.FSType}
	if v.FSType == "xfs" {
		spec.Options = []string{"nouuid"}
	}
	if err := mount.Mount(t.Context(), spec); err != nil {
		t.Fatalf("mount %s: %v", v.ID, err)
	}
	t.Cleanup(func() { testkit.Must(t, mount.Unmount(context.Background(), dir)) })
	return dir, d
}

func sizeFor(fsType string) int64 { return max(64*mib, mkfs.MinSize(mkfs.Type(fsType))) }

func fsVolume(t testing.TB, e *Engine, name, fsType string, parameters map[string]string) volume.Volume {
	return create(t, e, volume.CreateRequest{
		Name: name, Content: volume.Filesystem, FSType: fsType, Parameters: parameters,
		Size: volume.SizeRange{Required: sizeFor(fsType)},
	})
}

func write(t testing.TB, dir, name string, data []byte) {
	t.Helper()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
}

func wantFile(t testing.TB, dir, name string, want []byte) {
	t.Helper()
	if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s/%s: %d bytes, %v; want %d", dir, name, len(got), err, len(want))
	}
}

// A snapshot contains unsynced writes, and copies can be mounted beside the
// original.
func TestSnapshotOfMounted(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			e := open(t, config(onXFS(t)))
			v := fsVolume(t, e, "origin", fsType, nil)
			dir, _ := mounted(t, e, v)
			data := bytes.Repeat([]byte("data data "), 30000)
			write(t, dir, "file", data)
			s := snapshot(t, e, "snap", v.ID)
			write(t, dir, "file", []byte("later"))

			restored := create(t, e, volume.CreateRequest{
				Name: "restored", Content: volume.Filesystem, Source: volume.Source{Snapshot: s.ID},
				Size: volume.SizeRange{Required: v.Size + 64*mib},
			})
			clone := create(t, e, volume.CreateRequest{
				Name: "clone", Content: volume.Filesystem, FSType: fsType, Source: volume.Source{Volume: v.ID},
			})
			if restored.FSType != fsType || restored.Size != v.Size+64*mib || clone.Size != v.Size {
				t.Errorf("restored: %+v, clone: %+v", restored, clone)
			}
			dirRestored, _ := mounted(t, e, restored)
			wantFile(t, dirRestored, "file", data)
			dirClone, _ := mounted(t, e, clone)
			wantFile(t, dirClone, "file", []byte("later"))
			if fsType == "xfs" {
				if now, err := growfs.Grow(t.Context(), dirRestored, mkfs.XFS); err != nil || now < v.Size {
					t.Errorf("the restored file system grew to %d, %v", now, err)
				}
			}
			write(t, dir, "file", []byte("the original still takes writes"))
			noFreezeLeft(t, e)
		})
	}
}

func noFreezeLeft(t testing.TB, e *Engine) {
	t.Helper()
	testkit.Must(t, e.thawAll(t.Context()))
	if _, found, err := read(t.Context(), e.store, freezeBucket, ""); found || err != nil {
		t.Error(found, err)
	}
}

func TestSourceDecidesFileSystem(t *testing.T) {
	e := open(t, config(onXFS(t)))
	ext4 := fsVolume(t, e, "ext4", "ext4", nil)
	raw := create(t, e, volume.CreateRequest{Name: "raw", Size: volume.SizeRange{Required: mib}})
	_, err := e.Create(t.Context(), volume.CreateRequest{Name: "x", Content: volume.Filesystem, FSType: "xfs", Source: volume.Source{Volume: ext4.ID}})
	wantKind(t, err, "xfs from ext4", errs.Invalid)
	_, err = e.Create(t.Context(), volume.CreateRequest{Name: "x", Content: volume.Filesystem, Source: volume.Source{Volume: raw.ID}})
	wantKind(t, err, "a file system from raw", errs.Invalid)
	v := create(t, e, volume.CreateRequest{Name: "bytes", Source: volume.Source{Volume: ext4.ID}})
	if v.Content != volume.Raw || v.FSType != "" {
		t.Errorf("the bytes of ext4 as a raw volume: %+v", v)
	}
}

func TestGroupOfMounted(t *testing.T) {
	e := open(t, config(onXFS(t)))
	a, b := fsVolume(t, e, "a", "ext4", nil), fsVolume(t, e, "b", "btrfs", nil)
	idle := create(t, e, volume.CreateRequest{Name: "idle", Size: volume.SizeRange{Required: mib}})
	dirA, _ := mounted(t, e, a)
	dirB, _ := mounted(t, e, b)
	write(t, dirA, "file", []byte("a"))
	write(t, dirB, "file", []byte("b"))
	req := volume.GroupRequest{Name: "group", Sources: []volume.ID{idle.ID, b.ID, a.ID}}
	g := testkit.Value(e.CreateGroup(t.Context(), req))(t)
	write(t, dirA, "file", []byte("later"))
	sources := map[volume.ID]volume.Snapshot{}
	for _, s := range g.Snapshots {
		sources[s.Source] = s
		if !s.Created.Equal(g.Created) || s.Group != g.ID || !s.Ready {
			t.Errorf("member %+v of a group of %s", s, g.Created)
		}
		wantKind(t, e.DeleteSnapshot(t.Context(), s.ID), "DeleteSnapshot of a member", errs.Invalid)
	}
	for source, want := range map[volume.ID]string{a.ID: "a", b.ID: "b"} {
		v := create(t, e, volume.CreateRequest{Name: "of " + want, Content: volume.Filesystem, Source: volume.Source{Snapshot: sources[source].ID}})
		dir, _ := mounted(t, e, v)
		wantFile(t, dir, "file", []byte(want))
	}
	noFreezeLeft(t, e)
	again, err := e.CreateGroup(t.Context(), req)
	if diff := cmp.Diff(g, again); err != nil || diff != "" {
		t.Errorf("the same group again: %v %s", err, diff)
	}
}

// Refused, unless crash-consistency is allowed.
func TestGroupWithRawInUse(t *testing.T) {
	e := open(t, config(onXFS(t)))
	a := create(t, e, volume.CreateRequest{Name: "a", Size: volume.SizeRange{Required: mib}})
	b := create(t, e, volume.CreateRequest{Name: "b", Size: volume.SizeRange{Required: mib}})
	d, _ := attach(t, e, b)
	req := volume.GroupRequest{Name: "group", Sources: []volume.ID{a.ID, b.ID}}
	_, err := e.CreateGroup(t.Context(), req)
	wantKind(t, err, "a group with a raw member in use", errs.Precondition)
	if err != nil && !(strings.Contains(err.Error(), d.Path) && strings.Contains(err.Error(), "consistency=member")) {
		t.Errorf("%v names neither the device nor the remedy", err)
	}
	empty(t, e, incomingDir)
	req.Parameters = map[string]string{"consistency": "member"}
	if _, err := e.CreateGroup(t.Context(), req); err != nil {
		t.Errorf("with consistency=member: %v", err)
	}
	snapshot(t, e, "alone", b.ID) // crash-consistent
}

func empty(t testing.TB, e *Engine, dir string) {
	t.Helper()
	if entries, err := os.ReadDir(filepath.Join(e.pool.path, dir)); err != nil || len(entries) > 0 {
		t.Errorf("%s holds %v, %v; want nothing", dir, entries, err)
	}
}

// The error names the device, and the volume stays.
func TestDeleteInUse(t *testing.T) {
	e := open(t, config(onXFS(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
	d, release := attach(t, e, v)
	err := e.Delete(t.Context(), v.ID)
	wantKind(t, err, "Delete of a volume in use", errs.Precondition)
	if err != nil && !strings.Contains(err.Error(), d.Path) {
		t.Errorf("%v does not name %s", err, d.Path)
	}
	testkit.Value(e.Get(t.Context(), v.ID))(t)
	release()
	testkit.Must(t, e.Delete(t.Context(), v.ID))
	empty(t, e, volumesDir)
}

// A freeze of an earlier run is ended before anything else.
func TestThawAtStart(t *testing.T) {
	e := open(t, config(onXFS(t)))
	v := fsVolume(t, e, "v", "ext4", nil)
	dir, _ := mounted(t, e, v)
	thaw, _, err := e.freeze(t.Context(), []string{dir})
	testkit.Must(t, err)
	// The guard would thaw by itself: leave only the freeze record for the next
	// start.
	testkit.Must(t, thaw())
	testkit.Run(t, "fsfreeze", "--freeze", dir)
	defer fsfreeze("--unfreeze", dir)
	reopen(t, e)
	if out, err := fsfreeze("--unfreeze", dir); err == nil {
		t.Errorf("the file system was still frozen after the start: %s", out)
	}
	write(t, dir, "file", []byte("writable"))
}

// The wait for a guard has a timeout.
func TestUnresponsiveGuard(t *testing.T) {
	c := config(onXFS(t))
	c.Guard = freeze.NewGuard("sh", "-c", "cat >/dev/null")
	e := open(t, c)
	e.writeBack = 200 * time.Millisecond
	v := fsVolume(t, e, "data", "ext4", nil)
	dir, _ := mounted(t, e, v)
	refused(t, "a guard that never speaks", errs.Unavailable)(e.CreateSnapshot(t.Context(), volume.SnapshotRequest{Name: "s", Source: v.ID}))
	write(t, dir, "after", []byte("writers go on"))
	if entries, err := os.ReadDir(filepath.Join(c.Pool, incomingDir)); err != nil || len(entries) > 0 {
		t.Errorf("incoming holds %v, %v", entries, err)
	}
}
