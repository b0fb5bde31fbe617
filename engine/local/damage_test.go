package local

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// Damage of a file, with the reason that health reports.
var faults = []struct {
	name   string
	reason string
	do     func(t *testing.T, path string)
}{
	{"missing", volume.ReasonFileMissing, func(t *testing.T, path string) {}},
	{"symlink", volume.ReasonFileForeign, func(t *testing.T, path string) {
		outside := filepath.Join(t.TempDir(), "outside")
		precious := make([]byte, 8*mib)
		testkit.Must(t, os.WriteFile(outside, precious, 0o600))
		testkit.Must(t, os.Symlink(outside, path))
		t.Cleanup(func() {
			if info, err := os.Stat(outside); err != nil || info.Size() != 8*mib {
				t.Errorf("the file that the link leads to: %v, %v", info, err)
			}
		})
	}},
	{"symlink to a file of the pool", volume.ReasonFileForeign, func(t *testing.T, path string) {
		other := filepath.Join(filepath.Dir(path), "other")
		testkit.Must(t, os.WriteFile(other, make([]byte, 8*mib), 0o600))
		testkit.Must(t, os.Symlink("other", path))
		t.Cleanup(func() { testkit.Must(t, os.Remove(other)) })
	}},
	{"directory", volume.ReasonFileForeign, func(t *testing.T, path string) {
		testkit.Must(t, os.Mkdir(path, 0o700))
		precious := filepath.Join(path, "precious")
		testkit.Must(t, os.WriteFile(precious, nil, 0o600))
		t.Cleanup(func() {
			if err := os.Remove(precious); err != nil {
				t.Errorf("what the directory held: %v", err)
			}
			testkit.Must(t, os.Remove(path))
		})
	}},
	{"empty directory", volume.ReasonFileForeign, func(t *testing.T, path string) { testkit.Must(t, os.Mkdir(path, 0o700)) }},
	{"FIFO", volume.ReasonFileForeign, func(t *testing.T, path string) { testkit.Must(t, unix.Mkfifo(path, 0o600)) }},
	{"truncated", volume.ReasonFileTruncated, func(t *testing.T, path string) { testkit.Must(t, os.WriteFile(path, make([]byte, 5000), 0o600)) }},
}

func wrong(t *testing.T, what, name string, err error) {
	t.Helper()
	wantKind(t, err, what, errs.Precondition)
	if err != nil && !strings.Contains(err.Error(), name) {
		t.Errorf("%s: %v does not name %s", what, err, name)
	}
}

// Calls fail, health reports the damage, and the volume can be deleted.
func TestDamagedVolume(t *testing.T) {
	for fsType, mount := range map[string]func(testing.TB) string{"xfs": onXFS, "ext4": onExt4} {
		e := open(t, config(mount(t)))
		for _, fault := range faults {
			t.Run(fsType+"/"+fault.name, func(t *testing.T) {
				v := create(t, e, volume.CreateRequest{Name: fault.name, Size: volume.SizeRange{Required: mib}})
				path, promised := file(e, v), e.budget.promised()
				testkit.Must(t, os.Remove(path))
				fault.do(t, path)
				refusesVolume(t, e, v)
				conditions, err := e.VolumeHealth(t.Context(), v.ID)
				wantReason(t, conditions, err, fault.reason, volume.DataLoss)
				r, err := e.volumeRecord(t.Context(), v.ID)
				if err != nil || r.PendingSettings != nil || r.Size != mib || e.budget.promised() != promised {
					t.Errorf("refused calls left %+v, %v, %d bytes promised of %d", r, err, e.budget.promised(), promised)
				}
				empty(t, e, incomingDir)
				testkit.Must(t, e.Delete(t.Context(), v.ID))
				if _, err := e.Get(t.Context(), v.ID); errs.KindOf(err) != errs.NotFound {
					t.Errorf("after its deletion: %v", err)
				}
				if _, err := os.Lstat(path); err == nil != (fault.name == "directory") {
					t.Errorf("after the deletion of its volume: %v", err)
				}
			})
		}
	}
}

func refusesVolume(t *testing.T, e *Engine, v volume.Volume) {
	t.Helper()
	ctx, id := t.Context(), string(v.ID)
	_, err := e.Create(ctx, volume.CreateRequest{Name: "clone of " + v.Name, Content: volume.Raw, Source: volume.Source{Volume: v.ID}})
	wrong(t, "clone", id, err)
	_, err = e.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "snapshot of " + v.Name, Source: v.ID})
	wrong(t, "snapshot", id, err)
	_, err = e.CreateGroup(ctx, volume.GroupRequest{Name: "group of " + v.Name, Sources: []volume.ID{v.ID}})
	wrong(t, "group", id, err)
	_, err = e.Expand(ctx, v.ID, volume.SizeRange{Required: 2 * mib})
	wrong(t, "expand", id, err)
	_, err = e.Modify(ctx, v.ID, map[string]string{"provisioning": "thick"})
	wrong(t, "modify", id, err)
}

// As TestDamagedVolume.
func TestDamagedSnapshot(t *testing.T) {
	for fsType, mount := range map[string]func(testing.TB) string{"xfs": onXFS, "ext4": onExt4} {
		e := open(t, config(mount(t)))
		v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
		sound := snapshot(t, e, "sound", v.ID)
		waitCopied(t, e, string(sound.ID))
		for _, fault := range faults {
			t.Run(fsType+"/"+fault.name, func(t *testing.T) {
				s := snapshot(t, e, fault.name, v.ID)
				waitCopied(t, e, string(s.ID))
				path := filepath.Join(e.pool.path, snapshotFile(s.ID))
				testkit.Must(t, os.Remove(path))
				fault.do(t, path)
				_, err := e.Create(t.Context(), volume.CreateRequest{Name: "restored", Content: volume.Raw, Source: volume.Source{Snapshot: s.ID}})
				wrong(t, "restore", string(s.ID), err)
				_, err = e.Allocated(t.Context(), s.ID, 0)
				wrong(t, "allocated blocks", string(s.ID), err)
				for _, pair := range [][2]volume.SnapshotID{{s.ID, sound.ID}, {sound.ID, s.ID}} {
					_, err = e.Delta(t.Context(), pair[0], pair[1], 0)
					wrong(t, "changed blocks", string(s.ID), err)
				}
				e.orphans.at = e.orphans.at.Add(-orphansKept)
				conditions, err := e.StorageHealth(t.Context())
				wantReason(t, conditions, err, volume.ReasonSnapshotDamaged, volume.Degraded)
				testkit.Must(t, e.DeleteSnapshot(t.Context(), s.ID))
				if _, err := e.GetSnapshot(t.Context(), s.ID); errs.KindOf(err) != errs.NotFound {
					t.Errorf("after its deletion: %v", err)
				}
				e.orphans.at = e.orphans.at.Add(-orphansKept)
				if conditions, err = e.StorageHealth(t.Context()); err != nil || reasons(conditions)[volume.ReasonSnapshotDamaged] != "" {
					t.Errorf("conditions after its deletion: %v, %v", conditions, err)
				}
			})
		}
		empty(t, e, incomingDir)
	}
}

// A foreign file under a volume's name neither changes the record nor prevents
// the start.
func TestForeignFileAtStart(t *testing.T) {
	e := open(t, config(onExt4(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: granule}})
	path := file(e, v)
	testkit.Must(t, os.Remove(path), os.Mkdir(path, 0o700))
	for i := range 40 { // its size is then above that of the volume
		testkit.Must(t, os.WriteFile(filepath.Join(path, strings.Repeat("long", 60)+strconv.Itoa(i)), nil, 0o600))
	}
	e = reopen(t, e)
	if again, err := e.Get(t.Context(), v.ID); err != nil || again.Size != v.Size {
		t.Errorf("the volume became %+v, %v", again, err)
	}
	testkit.Must(t, e.Delete(t.Context(), v.ID))
}

// A volume whose file was removed or replaced is still in use.
func TestDeleteInUseWithoutFile(t *testing.T) {
	e := open(t, config(onXFS(t)))
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			v := create(t, e, volume.CreateRequest{Name: fault.name, Size: volume.SizeRange{Required: mib}})
			d, release := attach(t, e, v)
			testkit.Must(t, os.Remove(file(e, v)))
			fault.do(t, file(e, v))
			err := e.Delete(t.Context(), v.ID)
			wrong(t, "Delete of a volume in use", d.Path, err)
			if _, err := e.Get(t.Context(), v.ID); err != nil {
				t.Error(err)
			}
			release()
			testkit.Must(t, e.Delete(t.Context(), v.ID))
		})
	}
}

// A pool below another mount, or unmounted, reports no capacity and refuses
// changes.
func TestCoveredPool(t *testing.T) {
	for name, c := range map[string]struct {
		hide, back func(t *testing.T, dir string)
	}{
		"mounted over": {
			func(t *testing.T, dir string) { testkit.Run(t, "mount", "-t", "tmpfs", "none", dir) },
			func(t *testing.T, dir string) { testkit.Unmount(t, dir) },
		},
		"unmounted": {
			func(t *testing.T, dir string) {
				testkit.Run(t, "mount", "--bind", dir, dir+".kept")
				testkit.Run(t, "umount", "--lazy", dir)
			},
			func(t *testing.T, dir string) {
				testkit.Run(t, "mount", "--bind", dir+".kept", dir)
				testkit.Unmount(t, dir+".kept")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := onXFS(t)
			testkit.Must(t, os.Mkdir(dir+".kept", 0o700))
			t.Cleanup(func() { testkit.Must(t, os.Remove(dir+".kept")) })
			e := open(t, config(dir))
			v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
			s := snapshot(t, e, "s", v.ID)
			c.hide(t, dir)
			hidden := true
			t.Cleanup(func() {
				if hidden {
					c.back(t, dir)
				}
			})
			refusesAll(t, e, v, s)
			if got, err := e.Capacity(t.Context(), volume.CapacityQuery{}); err != nil || got.Available != 0 || got.Maximum != 0 {
				t.Errorf("capacity of a pool that is not there: %+v, %v", got, err)
			}
			conditions, err := e.VolumeHealth(t.Context(), v.ID)
			wantReason(t, conditions, err, volume.ReasonPoolMissing, volume.Inaccessible)
			if err := e.Delete(t.Context(), "vol-unknown"); err != nil {
				t.Errorf("Delete of what is not there: %v", err)
			}
			c.back(t, dir)
			hidden = false
			if got, err := e.Capacity(t.Context(), volume.CapacityQuery{}); err != nil || got.Available == 0 {
				t.Errorf("capacity of a pool that is back: %+v, %v", got, err)
			}
			testkit.Must(t, e.DeleteSnapshot(t.Context(), s.ID), e.Delete(t.Context(), v.ID))
			create(t, e, volume.CreateRequest{Name: "new", Size: volume.SizeRange{Required: mib}})
		})
	}
}

func refusesAll(t *testing.T, e *Engine, v volume.Volume, s volume.Snapshot) {
	t.Helper()
	calls := map[string]func(ctx context.Context) error{
		"create": func(ctx context.Context) error {
			_, err := e.Create(ctx, volume.CreateRequest{Name: "new", Content: volume.Filesystem, FSType: "ext4"})
			return err
		},
		"restore": func(ctx context.Context) error {
			_, err := e.Create(ctx, volume.CreateRequest{Name: "new", Content: volume.Raw, Source: volume.Source{Snapshot: s.ID}})
			return err
		},
		"snapshot": func(ctx context.Context) error {
			_, err := e.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "new", Source: v.ID})
			return err
		},
		"group": func(ctx context.Context) error {
			_, err := e.CreateGroup(ctx, volume.GroupRequest{Name: "new", Sources: []volume.ID{v.ID}})
			return err
		},
		"expand": func(ctx context.Context) error {
			_, err := e.Expand(ctx, v.ID, volume.SizeRange{Required: 2 * mib})
			return err
		},
		"modify": func(ctx context.Context) error {
			_, err := e.Modify(ctx, v.ID, map[string]string{"readAheadKiB": "64"})
			return err
		},
		"blocks":          func(ctx context.Context) error { _, err := e.Allocated(ctx, s.ID, 0); return err },
		"delete":          func(ctx context.Context) error { return e.Delete(ctx, v.ID) },
		"delete snapshot": func(ctx context.Context) error { return e.DeleteSnapshot(ctx, s.ID) },
	}
	for what, call := range calls {
		kind := errs.Precondition
		if what == "create" || what == "restore" {
			kind = errs.Exhausted
		}
		err := call(t.Context())
		wantKind(t, err, what, kind)
		if !strings.Contains(err.Error(), e.pool.path) {
			t.Errorf("%s: %v does not name %s", what, err, e.pool.path)
		}
	}
}
