package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

func reasons(conditions []volume.Condition) map[string]volume.Severity {
	all := map[string]volume.Severity{}
	for _, c := range conditions {
		all[c.Reason] = c.Severity
	}
	return all
}

func wantReason(t testing.TB, conditions []volume.Condition, err error, reason string, severity volume.Severity) {
	t.Helper()
	if got := reasons(conditions)[reason]; err != nil || got != severity {
		t.Errorf("conditions %+v, %v; want %s %s", conditions, err, severity, reason)
	}
	for _, c := range conditions {
		enginetest.CheckMessage(t, c, "")
		if object := objectOf(c.Reason); !object.MatchString(errs.Clip(c.Message, volume.MaxIDLength)) {
			t.Errorf("%s: the object %v does not survive the clip: %s", c.Reason, object, c.Message)
		}
	}
}

// objectOf matches the object in the message of a reason.
func objectOf(reason string) *regexp.Regexp {
	const id = "-[0-9a-f-]{36}-[0-9a-f]{12} "
	switch {
	case strings.HasPrefix(reason, "Pool"):
		return regexp.MustCompile("(/|pool [0-9a-f-]{36} )")
	case reason == volume.ReasonSnapshotDamaged:
		return regexp.MustCompile("snapshots/snap" + id)
	case reason == volume.ReasonOrphanFile:
		return regexp.MustCompile("(volumes|snapshots)/")
	case strings.HasPrefix(reason, "BackingFile"):
		return regexp.MustCompile("(volumes|incoming)/vol" + id)
	}
	return regexp.MustCompile("")
}

func TestReadOnlyPool(t *testing.T) {
	dir := onXFS(t)
	e := open(t, config(dir))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
	s := snapshot(t, e, "s", v.ID)
	closeEngine(t, e)
	testkit.Must(t, mkfstest.Remount(t.Context(), dir, true))
	e = open(t, config(dir))
	if all, err := e.List(t.Context(), "", 0); err != nil || len(all) != 1 {
		t.Errorf("List: %v, %v", all, err)
	}
	if again, err := e.Create(t.Context(), volume.CreateRequest{Name: "v", Content: volume.Raw, Size: volume.SizeRange{Required: mib}}); err != nil || again.ID != v.ID {
		t.Errorf("Create of what is there: %v, %v", again, err)
	}
	refused(t, "Create", errs.Exhausted)(e.Create(t.Context(), volume.CreateRequest{Name: "new", Content: volume.Raw}))
	wantKind(t, e.Delete(t.Context(), v.ID), "Delete", errs.Precondition)
	refused(t, "Expand", errs.Precondition)(e.Expand(t.Context(), v.ID, volume.SizeRange{Required: 2 * mib}))
	refused(t, "Modify", errs.Precondition)(e.Modify(t.Context(), v.ID, thickly))
	refused(t, "CreateSnapshot", errs.Precondition)(e.CreateSnapshot(t.Context(), volume.SnapshotRequest{Name: "t", Source: v.ID}))
	wantKind(t, e.DeleteSnapshot(t.Context(), s.ID), "DeleteSnapshot", errs.Precondition)
	if err := e.Delete(t.Context(), "vol-unknown"); err != nil {
		t.Errorf("Delete of what is not there: %v", err)
	}
	if c, err := e.Capacity(t.Context(), volume.CapacityQuery{}); err != nil || c.Available != 0 {
		t.Errorf("Capacity: %+v, %v", c, err)
	}
	conditions, err := e.StorageHealth(t.Context())
	wantReason(t, conditions, err, volume.ReasonPoolReadOnly, volume.Degraded)
	closeEngine(t, e)
	testkit.Must(t, mkfstest.Remount(t.Context(), dir, false), open(t, config(dir)).Delete(t.Context(), v.ID))
}

// A pool whose file system stops to take writes under the running engine has no
// capacity, and refuses changes before they reach the records.
func TestPoolStopsWrites(t *testing.T) {
	dir := scratchfs.Mount(t, "ext4", "-e", "remount-ro")
	e := open(t, config(dir))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
	if c, err := e.Capacity(t.Context(), volume.CapacityQuery{}); err != nil || c.Available == 0 {
		t.Errorf("capacity: %+v, %v", c, err)
	}
	m, there, err := mount.At(t.Context(), dir)
	if err != nil || !there {
		t.Fatalf("no mount at %s: %v", dir, err)
	}
	testkit.Must(t, os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(m.Source), "trigger_fs_error"), []byte("an error for a test"), 0))
	e.heart.ended = time.Time{} // the result before the error is older than a second
	// The disk can take longer than a call waits.
	testkit.EventuallyNil(t, "no capacity", func() error {
		if c, err := e.Capacity(t.Context(), volume.CapacityQuery{}); err != nil || c.Available != 0 || c.Maximum != 0 {
			return fmt.Errorf("capacity of a pool that takes no writes: %+v, %v", c, err)
		}
		return nil
	})
	refused(t, "Create", errs.Exhausted)(e.Create(t.Context(), volume.CreateRequest{Name: "new", Content: volume.Raw}))
	refused(t, "CreateSnapshot", errs.Precondition)(e.CreateSnapshot(t.Context(), volume.SnapshotRequest{Name: "s", Source: v.ID}))
	wantKind(t, e.Delete(t.Context(), v.ID), "Delete", errs.Precondition)
	if all, err := e.List(t.Context(), "", 0); err != nil || len(all) != 1 {
		t.Errorf("the records after the refusals: %v, %v", all, err)
	}
}

func TestDamagedFiles(t *testing.T) {
	e := open(t, config(onXFS(t)))
	gone := create(t, e, volume.CreateRequest{Name: "gone", Size: volume.SizeRange{Required: mib}})
	short := create(t, e, volume.CreateRequest{Name: "short", Size: volume.SizeRange{Required: mib}})
	testkit.Must(t, os.Remove(file(e, gone)), os.Truncate(file(e, short), 4096))
	orphan := filepath.Join(e.pool.path, volumesDir, "vol-orphan")
	testkit.Must(t, os.WriteFile(orphan, []byte("foreign"), 0o600))
	e = reopen(t, e)
	conditions, err := e.VolumeHealth(t.Context(), gone.ID)
	wantReason(t, conditions, err, volume.ReasonFileMissing, volume.DataLoss)
	conditions, err = e.VolumeHealth(t.Context(), short.ID)
	wantReason(t, conditions, err, volume.ReasonFileTruncated, volume.DataLoss)
	conditions, err = e.StorageHealth(t.Context())
	wantReason(t, conditions, err, volume.ReasonOrphanFile, volume.Notice)
	refused(t, "Expand of a truncated file", errs.Precondition)(e.Expand(t.Context(), short.ID, volume.SizeRange{Required: 2 * mib}))
	_, err = e.CreateSnapshot(t.Context(), volume.SnapshotRequest{Name: "s", Source: short.ID})
	wantKind(t, err, "CreateSnapshot of a truncated file", errs.Precondition)
	_, err = e.CreateSnapshot(t.Context(), volume.SnapshotRequest{Name: "s", Source: gone.ID})
	wantKind(t, err, "CreateSnapshot of a file that is gone", errs.Precondition)
	empty(t, e, incomingDir)
	for _, id := range []volume.ID{gone.ID, short.ID} {
		if err := e.Delete(t.Context(), id); err != nil {
			t.Errorf("Delete: %v", err)
		}
	}
	if _, err := os.Stat(orphan); err != nil {
		t.Errorf("the file without a record: %v", err)
	}
}

func TestPoolMissing(t *testing.T) {
	dir := onXFS(t)
	e := open(t, config(dir))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
	testkit.Run(t, "mount", "-t", "tmpfs", "none", dir)
	conditions, err := e.VolumeHealth(t.Context(), v.ID)
	testkit.Unmount(t, dir)
	wantReason(t, conditions, err, volume.ReasonPoolMissing, volume.Inaccessible)
	if conditions, err := e.VolumeHealth(t.Context(), v.ID); err != nil || len(conditions) != 0 {
		t.Errorf("conditions after it came back: %v, %v", conditions, err)
	}
}

func TestPoolReplaced(t *testing.T) {
	dir := onXFS(t)
	e := open(t, config(dir))
	path := filepath.Join(dir, identityName)
	data := testkit.Value(os.ReadFile(path))(t)
	testkit.Must(t, os.Rename(path, path+".was"), os.WriteFile(path, data, 0o600))
	conditions, err := e.StorageHealth(t.Context())
	wantReason(t, conditions, err, volume.ReasonPoolMissing, volume.Inaccessible)
	testkit.Must(t, os.Rename(path+".was", path))
}

func TestOpenRefuses(t *testing.T) {
	pool := t.TempDir()
	e := open(t, config(pool))
	_, err := Open(t.Context(), config(pool))
	wantKind(t, err, "a second engine on one pool", errs.Precondition)
	closeEngine(t, e)

	foreign := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(foreign, "diary.txt"), nil, 0o600))
	_, err = Open(t.Context(), config(foreign))
	wantKind(t, err, "a directory with foreign files", errs.Precondition)

	c := config(pool)
	c.OverProvision = 0.5
	_, err = Open(t.Context(), c)
	wantKind(t, err, "half a byte for each byte", errs.Invalid)

	e = open(t, config(pool))
	create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
	closeEngine(t, e)
	testkit.Must(t, os.Remove(filepath.Join(pool, storeName)))
	_, err = Open(t.Context(), config(pool))
	wantKind(t, err, "files without records", errs.Precondition)
}

// An empty mount point does not become a new pool.
func TestPoolIsRecorded(t *testing.T) {
	c := config(t.TempDir())
	c.StateDir = t.TempDir()
	closeEngine(t, open(t, c))
	closeEngine(t, open(t, c))
	hidden := filepath.Join(t.TempDir(), "unmounted")
	testkit.Must(t, os.Rename(c.Pool, hidden), os.Mkdir(c.Pool, 0o700))
	_, err := Open(t.Context(), c)
	wantKind(t, err, "an empty directory where a pool was", errs.Precondition)
	closeEngine(t, open(t, config(c.Pool)))
	_, err = Open(t.Context(), c)
	wantKind(t, err, "another pool where a pool was", errs.Precondition)
}

func TestNoTool(t *testing.T) {
	e := open(t, config(t.TempDir()))
	e.tools.Path = t.TempDir()
	_, err := e.Create(t.Context(), volume.CreateRequest{Name: "v", Content: volume.Filesystem, FSType: "btrfs", Size: volume.SizeRange{Required: sizeFor("btrfs")}})
	if !errors.Is(err, mkfs.ErrNoTool) {
		t.Errorf("Create without mkfs.btrfs: %v", err)
	}
	empty(t, e, incomingDir)
	if got := e.budget.promised(); got != 0 {
		t.Errorf("%d bytes are promised", got)
	}
}
