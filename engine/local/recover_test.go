package local

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
	"github.com/cleatproject/cleat/volume"
)

// wreck is a pool with one ready volume, "source", for interrupted states.
type wreck struct {
	testing.TB
	pool   string
	source volume.ID
}

const (
	wreckVolume   = volume.ID("vol-half")
	wreckSnapshot = volume.SnapshotID("snap-half")
	wreckGroup    = volume.GroupID("group-half")
)

func (w wreck) path(dir string, name string) string { return filepath.Join(w.pool, dir, name) }

func (w wreck) put(dir, name string) {
	w.Helper()
	data := make([]byte, mib)
	copy(data, name)
	testkit.Must(w, os.WriteFile(w.path(dir, name), data, 0o600))
}

func (w wreck) volumeRecord(s state) volumeRecord {
	return volumeRecord{
		Name: "half", State: s, Size: mib, Content: volume.Raw, CopySize: mib,
		Settings: settings{Provisioning: thin}, Created: time.Now().UTC(),
	}
}

func (w wreck) recordVolume(r volumeRecord) {
	edit(w, w.pool, func(tx *store.Tx) error {
		return errors.Join(volumeBucket.Put(tx, string(wreckVolume), r), volumeNameBucket.Put(tx, r.Name, wreckVolume))
	})
}

func (w wreck) recordSnapshot(s state, group volume.GroupID) {
	r := snapshotRecord{Name: "half", State: s, Source: w.source, Size: mib, Content: volume.Raw, Created: time.Now().UTC(), Group: group}
	edit(w, w.pool, func(tx *store.Tx) error {
		err := putNewSnapshot(tx, wreckSnapshot, r)
		if group == "" {
			return errors.Join(err, snapshotNameBucket.Put(tx, r.Name, wreckSnapshot))
		}
		g := groupRecord{Name: "half", State: s, Sources: []volume.ID{w.source}, Snapshots: []volume.SnapshotID{wreckSnapshot}}
		return errors.Join(err, groupBucket.Put(tx, string(group), g), groupNameBucket.Put(tx, g.Name, group))
	})
}

func (w wreck) pin(reader string) {
	f := testkit.Value(os.OpenFile(w.path(volumesDir, string(w.source)), os.O_RDWR, 0))(w)
	defer f.Close()
	testkit.Must(w, poolfile.WriteReaders(f, []string{reader}))
}

// After every interrupted state: the volume or snapshot "half" exists or not,
// every file has a record, incoming is empty and nothing is pinned.
func TestRecovery(t *testing.T) {
	const none, aVolume, aSnapshot, aGroup = "none", "volume", "snapshot", "group"
	cases := []struct {
		what string
		make func(w wreck)
		want string
	}{
		{"create: a file was begun", func(w wreck) {
			w.put(incomingDir, string(wreckVolume))
		}, none},
		{"create: recorded, not renamed", func(w wreck) {
			w.put(incomingDir, string(wreckVolume))
			w.recordVolume(w.volumeRecord(ready))
		}, aVolume},
		{"delete: marked", func(w wreck) {
			w.put(volumesDir, string(wreckVolume))
			w.recordVolume(w.volumeRecord(deleting))
		}, none},
		{"delete: marked before it was renamed", func(w wreck) {
			w.put(incomingDir, string(wreckVolume))
			w.recordVolume(w.volumeRecord(deleting))
		}, none},
		{"delete: file removed", func(w wreck) {
			w.recordVolume(w.volumeRecord(deleting))
		}, none},
		{"expand: file grown", func(w wreck) {
			w.put(volumesDir, string(wreckVolume))
			r := w.volumeRecord(ready)
			r.Size = mib / 2
			w.recordVolume(r)
		}, aVolume},
		{"modify: noted, not applied", func(w wreck) {
			w.put(volumesDir, string(wreckVolume))
			r := w.volumeRecord(ready)
			r.PendingSettings = &settings{Provisioning: thick}
			w.recordVolume(r)
		}, aVolume},
		{"copy of a volume: intent", func(w wreck) {
			r := w.volumeRecord(pinning)
			r.FromVolume = w.source
			w.recordVolume(r)
		}, none},
		{"copy of a volume: pinned", func(w wreck) {
			w.pin(string(wreckVolume))
			r := w.volumeRecord(pinning)
			r.FromVolume = w.source
			w.recordVolume(r)
		}, none},
		{"copy of a volume: recorded", func(w wreck) {
			w.pin(string(wreckVolume))
			r := w.volumeRecord(copying)
			r.FromVolume = w.source
			w.recordVolume(r)
		}, aVolume},
		{"copy of a volume: begun", func(w wreck) {
			w.pin(string(wreckVolume))
			w.put(incomingDir, string(wreckVolume))
			r := w.volumeRecord(copying)
			r.FromVolume = w.source
			w.recordVolume(r)
		}, aVolume},
		{"copy of a volume: finishing", func(w wreck) {
			w.pin(string(wreckVolume))
			w.put(incomingDir, string(wreckVolume))
			r := w.volumeRecord(finishing)
			r.FromVolume = w.source
			w.recordVolume(r)
		}, aVolume},
		{"copy of a volume: renamed", func(w wreck) {
			w.put(volumesDir, string(wreckVolume))
			r := w.volumeRecord(finishing)
			r.FromVolume = w.source
			w.recordVolume(r)
		}, aVolume},
		{"delete of a copy under way: marked", func(w wreck) {
			w.pin(string(wreckVolume))
			w.put(incomingDir, string(wreckVolume))
			r := w.volumeRecord(deleting)
			r.FromVolume = w.source
			w.recordVolume(r)
		}, none},
		{"snapshot: a file was cloned", func(w wreck) {
			w.put(incomingDir, string(wreckSnapshot))
		}, none},
		{"snapshot: recorded, not renamed", func(w wreck) {
			w.put(incomingDir, string(wreckSnapshot))
			w.recordSnapshot(ready, "")
		}, aSnapshot},
		{"snapshot: copy under way", func(w wreck) {
			w.pin(string(wreckSnapshot))
			w.put(incomingDir, string(wreckSnapshot))
			w.recordSnapshot(copying, "")
		}, aSnapshot},
		{"snapshot: pinned", func(w wreck) {
			w.pin(string(wreckSnapshot))
			w.recordSnapshot(pinning, "")
		}, none},
		{"snapshot: finishing", func(w wreck) {
			w.pin(string(wreckSnapshot))
			w.put(incomingDir, string(wreckSnapshot))
			w.recordSnapshot(finishing, "")
		}, aSnapshot},
		{"snapshot delete: marked", func(w wreck) {
			w.put(snapshotsDir, string(wreckSnapshot))
			w.recordSnapshot(deleting, "")
		}, none},
		{"group: recorded, not renamed", func(w wreck) {
			w.put(incomingDir, string(wreckSnapshot))
			w.recordSnapshot(ready, wreckGroup)
		}, aGroup},
		{"group: pinned", func(w wreck) {
			w.pin(string(wreckSnapshot))
			w.recordSnapshot(pinning, wreckGroup)
		}, none},
		{"group delete: marked", func(w wreck) {
			w.put(snapshotsDir, string(wreckSnapshot))
			w.recordSnapshot(deleting, wreckGroup)
		}, none},
	}
	// Each state gets a directory.
	for name, base := range map[string]string{"xfs": onXFS(t), "ext4": onExt4(t)} {
		for i, c := range cases {
			t.Run(name+"/"+c.what, func(t *testing.T) {
				pool := filepath.Join(base, string(rune('a'+i)))
				defer os.RemoveAll(pool)
				e := open(t, config(pool))
				v := create(t, e, volume.CreateRequest{Name: "source", Size: volume.SizeRange{Required: mib}})
				closeEngine(t, e)
				c.make(wreck{TB: t, pool: pool, source: v.ID})
				e = open(t, config(pool))
				waitCopied(t, e, string(wreckVolume))
				waitCopied(t, e, string(wreckSnapshot))
				checkRecovered(t, e, v, c.want == aVolume, c.want == aSnapshot || c.want == aGroup, c.want == aGroup)
				before := e.budget.promised()
				closeEngine(t, e)
				if e = open(t, config(pool)); e.budget.promised() != before {
					t.Errorf("%d bytes are promised, %d after one more start", before, e.budget.promised())
				}
				closeEngine(t, e)
			})
		}
	}
}

func checkRecovered(t *testing.T, e *Engine, source volume.Volume, hasVolume, hasSnapshot, hasGroup bool) {
	t.Helper()
	v, err := e.Get(t.Context(), wreckVolume)
	if (err == nil) != hasVolume {
		t.Errorf("volume: %+v, %v", v, err)
	}
	if hasVolume && (v.Size != mib || v.Progress.Running()) {
		t.Errorf("volume: %+v", v)
	}
	s, err := e.GetSnapshot(t.Context(), wreckSnapshot)
	if (err == nil) != hasSnapshot || s.Ready != hasSnapshot {
		t.Errorf("snapshot: %+v, %v", s, err)
	}
	if g, err := e.GetGroup(t.Context(), wreckGroup); (err == nil) != hasGroup || g.Ready != hasGroup {
		t.Errorf("group: %+v, %v", g, err)
	}
	empty(t, e, incomingDir)
	if conditions, err := e.StorageHealth(t.Context()); err != nil || reasons(conditions)[volume.ReasonOrphanFile] != "" {
		t.Errorf("storage: %v, %v", conditions, err)
	}
	if readers := pins(t, e, source); len(readers) > 0 {
		t.Errorf("the source is pinned by %v", readers)
	}
	for name, has := range map[string]bool{"source": true, "half": hasVolume} {
		_, r, found, err := e.volumeNamed(t.Context(), name)
		if err != nil || found != has || (has && r.PendingSettings != nil) {
			t.Errorf("name %q: %+v, %v, %v", name, r, found, err)
		}
	}
	if hasVolume {
		if conditions, err := e.VolumeHealth(t.Context(), wreckVolume); err != nil || reasons(conditions)[volume.ReasonFileMissing] != "" {
			t.Errorf("volume health: %v, %v", conditions, err)
		}
	}
	want := int64(mib)
	if hasVolume {
		want += mib
	}
	if got := e.budget.promised(); got != want || e.budget.pending != 0 {
		t.Errorf("%d bytes are promised, %d on their way; want %d", got, e.budget.pending, want)
	}
	// The name is free, or that of the existing volume.
	if again, err := e.Create(t.Context(), volume.CreateRequest{Name: "half", Content: volume.Raw, Size: volume.SizeRange{Required: mib}}); !hasVolume && err != nil {
		t.Errorf("Create under the name: %+v, %v", again, err)
	} else if err == nil {
		if err := e.Delete(t.Context(), again.ID); err != nil {
			t.Errorf("Delete: %v", err)
		}
	}
}

// The volume was attached meanwhile.
func TestDeleteRolledBack(t *testing.T) {
	e := open(t, config(onXFS(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
	closeEngine(t, e)
	edit(t, e.pool.path, func(tx *store.Tx) error {
		r, _, err := volumeBucket.Get(tx, string(v.ID))
		r.State = deleting
		return errors.Join(err, volumeBucket.Put(tx, string(v.ID), r))
	})
	d, release := attach(t, e, v)
	e = open(t, config(e.pool.path))
	testkit.Value(e.Get(t.Context(), v.ID))(t)
	if size, err := loop.Size(t.Context(), d); err != nil || size != mib {
		t.Error(size, err)
	}
	release()
	testkit.Must(t, e.Delete(t.Context(), v.ID))
}

// Like a power loss: the journal is written, unsynced file data is lost.
func loseData(t *testing.T, dir string) {
	t.Helper()
	const (
		goingDown = 0x8004587d // XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN
		flushLog  = 1
	)
	d := testkit.Value(os.Open(dir))(t)
	defer d.Close()
	if err := unix.IoctlSetPointerInt(int(d.Fd()), goingDown, flushLog); err != nil {
		t.Fatalf("shut %s down: %v", dir, err)
	}
}

// The pool must open after a power loss soon after the first start.
func TestPoolRecordSurvivesPowerLoss(t *testing.T) {
	for _, fsType := range []string{"xfs", "ext4"} {
		t.Run(fsType, func(t *testing.T) {
			image, dir := filepath.Join(t.TempDir(), "disk"), t.TempDir()
			testkit.Must(t, os.WriteFile(image, nil, 0o600), os.Truncate(image, scratchfs.Size))
			testkit.Run(t, "mkfs."+fsType, "-q", map[string]string{"xfs": "-ssize=4096", "ext4": "-b4096"}[fsType], image)
			scratchfs.MountImage(t, fsType, image, dir)
			t.Cleanup(func() { testkit.Unmount(t, dir) })
			c := config(filepath.Join(dir, "pool"))
			c.StateDir = filepath.Join(dir, "state")
			e := open(t, c)
			v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
			closeEngine(t, e)
			loseData(t, dir)
			testkit.Unmount(t, dir)
			scratchfs.MountImage(t, fsType, image, dir)

			e = open(t, c)
			if _, err := e.Get(t.Context(), v.ID); err != nil {
				t.Errorf("the volume after the power loss: %v", err)
			}
			closeEngine(t, e)
		})
	}
}
