package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func waitCopied(t testing.TB, e *Engine, id string) {
	t.Helper()
	if err := e.copies.wait(t.Context(), id); err != nil {
		t.Errorf("copy of %s: %v", id, err)
	}
}

func holdCopies(e *Engine) (release func()) {
	for range parallelCopies {
		e.copies.slots <- struct{}{}
	}
	return func() {
		for range parallelCopies {
			<-e.copies.slots
		}
	}
}

// A snapshot is not ready before its copy, and the source is pinned until then,
// also after a restart.
func TestSnapshotByCopy(t *testing.T) {
	e := open(t, config(onExt4(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: 8 * mib}})
	fill(t, file(e, v), 3*mib)
	holdCopies(e)
	s := snapshot(t, e, "snap", v.ID)
	if s.Ready || !s.Progress.Running() {
		t.Errorf("a snapshot whose copy has not begun: %+v", s)
	}
	_, err := e.Create(t.Context(), volume.CreateRequest{Name: "early", Content: volume.Raw, Source: volume.Source{Snapshot: s.ID}})
	wantKind(t, err, "a volume from an unfinished snapshot", errs.Precondition)
	wantKind(t, e.Delete(t.Context(), v.ID), "Delete of a volume that is being copied", errs.Precondition)
	if readers := pins(t, e, v); len(readers) != 1 || readers[0] != string(s.ID) {
		t.Errorf("readers of the source: %v", readers)
	}

	e = reopen(t, e)
	waitCopied(t, e, string(s.ID))
	s, err = e.GetSnapshot(t.Context(), s.ID)
	if err != nil || !s.Ready || s.Progress.Running() {
		t.Errorf("the snapshot after the next start: %+v, %v", s, err)
	}
	same(t, file(e, v), filepath.Join(e.pool.path, snapshotFile(s.ID)))
	if readers := pins(t, e, v); len(readers) != 0 {
		t.Errorf("readers of the source: %v", readers)
	}
	empty(t, e, incomingDir)
	second := snapshot(t, e, "second", v.ID)
	waitCopied(t, e, string(second.ID))
	_, err = e.Delta(t.Context(), s.ID, second.ID, 0)
	testkit.WantError(t, "changed blocks of copies", err, errs.Precondition, "take a full backup")
	testkit.Must(t, e.Delete(t.Context(), v.ID))
	restored := create(t, e, volume.CreateRequest{Name: "r", Source: volume.Source{Snapshot: s.ID}})
	same(t, file(e, restored), filepath.Join(e.pool.path, snapshotFile(s.ID)))
}

func pins(t testing.TB, e *Engine, v volume.Volume) []string {
	t.Helper()
	readers, err := poolfile.Readers(testkit.Open(os.Open(file(e, v)))(t))
	if err != nil {
		t.Error(err)
	}
	return readers
}

// Refused with a remedy.
func TestCopyOfAttached(t *testing.T) {
	e := open(t, config(onExt4(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
	d, release := attach(t, e, v)
	_, err := e.CreateSnapshot(t.Context(), volume.SnapshotRequest{Name: "s", Source: v.ID})
	wantKind(t, err, "CreateSnapshot of an attached volume", errs.Precondition)
	if err != nil && (!strings.Contains(err.Error(), d.Path) || !strings.Contains(err.Error(), "--pool-image")) {
		t.Errorf("%v has no remedy", err)
	}
	_, err = e.Create(t.Context(), volume.CreateRequest{Name: "c", Content: volume.Raw, Source: volume.Source{Volume: v.ID}})
	wantKind(t, err, "a clone of an attached volume", errs.Precondition)
	if got := e.budget.promised(); got != v.Size {
		t.Errorf("%d bytes are promised, want %d", got, v.Size)
	}
	release()
	snapshot(t, e, "s", v.ID)
}

// The bytes before the durable progress are marked: a copy from the start would
// be detected.
func TestResumeCopy(t *testing.T) {
	e := open(t, config(onExt4(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: 8 * mib}})
	fill(t, file(e, v), 8*mib)
	holdCopies(e)
	s := snapshot(t, e, "snap", v.ID)
	closeEngine(t, e)
	marked := strings.Repeat("already!", 4*mib/8)
	testkit.Must(t, os.WriteFile(filepath.Join(e.pool.path, incomingDir, string(s.ID)), []byte(marked), 0o600))
	edit(t, e.pool.path, func(tx *store.Tx) error {
		r, _, err := snapshotBucket.Get(tx, string(s.ID))
		r.Copied = 4 * mib
		return errors.Join(err, snapshotBucket.Put(tx, string(s.ID), r))
	})

	e = open(t, config(e.pool.path))
	waitCopied(t, e, string(s.ID))
	got, err := os.ReadFile(filepath.Join(e.pool.path, snapshotFile(s.ID)))
	if err != nil || len(got) != 8*mib || string(got[:4*mib]) != marked || string(got[4*mib:4*mib+8]) != "cleat!!!" {
		t.Errorf("the resumed copy has %d bytes, %v, and did not go on at 4 MiB", len(got), err)
	}
}

// The pool is closed.
func edit(t testing.TB, pool string, change func(tx *store.Tx) error) {
	t.Helper()
	p := testkit.Value(openPool(t.Context(), config(pool)))(t)
	defer p.close()
	s := testkit.Value(openStore(t.Context(), p))(t)
	defer s.Close()
	testkit.Must(t, s.Update(t.Context(), change))
}

// leftCreating cancels a request when its copy is recorded.
func leftCreating(t *testing.T, e *Engine, req volume.CreateRequest, source volume.ID) volume.Volume {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error, 1)
	go func() {
		_, err := e.Create(ctx, req)
		left <- err
	}()
	var all []volume.Volume
	testkit.Eventually(t, "the copy is on record", func() bool {
		if len(left) > 0 {
			t.Fatalf("Create came to %v before its context ended", <-left)
		}
		all = testkit.Value(e.List(t.Context(), source, 0))(t)
		return len(all) == 1 && all[0].Progress.Running()
	})
	leave()
	wantKind(t, <-left, "Create whose context ends", errs.Unavailable)
	return all[0]
}

// A copy continues without its caller, and an equal request joins it.
func TestCloneByCopy(t *testing.T) {
	e := open(t, config(onExt4(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: 4 * mib}})
	fill(t, file(e, v), mib)
	release := holdCopies(e)
	req := volume.CreateRequest{Name: "clone", Content: volume.Raw, Source: volume.Source{Volume: v.ID}, Parameters: thickly}
	filled := leftCreating(t, e, req, v.ID)
	refused(t, "Expand of a volume that is being filled", errs.Precondition)(e.Expand(t.Context(), filled.ID, volume.SizeRange{Required: 8 * mib}))
	release()
	clone := create(t, e, req)
	if clone.ID != filled.ID || clone.Progress.Running() {
		t.Errorf("the same request made %+v, want %s", clone, filled.ID)
	}
	same(t, file(e, v), file(e, clone))
	if got := allocatedBytes(t, file(e, clone)); got < clone.Size {
		t.Errorf("the thick clone has blocks for %d of %d bytes", got, clone.Size)
	}
	if e.budget.thick != clone.Size || e.budget.pending != 0 {
		t.Errorf("budget: %+v", e.budget)
	}
}

// Deletion of an incomplete object unpins its source.
func TestDeleteStopsCopy(t *testing.T) {
	e := open(t, config(onExt4(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: 4 * mib}})
	s := snapshot(t, e, "ready", v.ID)
	waitCopied(t, e, string(s.ID))
	holdCopies(e)
	snap := snapshot(t, e, "snap", v.ID)
	filled := leftCreating(t, e, volume.CreateRequest{Name: "c", Content: volume.Raw, Source: volume.Source{Snapshot: s.ID}, Parameters: thickly}, v.ID)
	wantKind(t, e.DeleteSnapshot(t.Context(), s.ID), "DeleteSnapshot of what is being read", errs.Precondition)
	// The health of both ends shows the copy.
	for id, reason := range map[volume.ID]string{filled.ID: volume.ReasonBeingFilled, v.ID: volume.ReasonBeingCopied} {
		c, err := e.VolumeHealth(t.Context(), id)
		if err != nil || len(c) != 1 || c[0].Reason != reason || !strings.HasSuffix(c[0].Message, ": 0 % (0 of 4194304 bytes) are copied") {
			t.Errorf("health of %s: %+v, %v; want %s", id, c, err, reason)
		}
	}
	testkit.Must(t, e.DeleteSnapshot(t.Context(), snap.ID), e.Delete(t.Context(), filled.ID), e.DeleteSnapshot(t.Context(), s.ID))
	if err := e.Delete(t.Context(), v.ID); err != nil {
		t.Errorf("Delete of the source: %v", err)
	}
	for _, dir := range []string{volumesDir, snapshotsDir, incomingDir} {
		empty(t, e, dir)
	}
	if b := e.budget; b.thin != 0 || b.thick != 0 || b.pending != 0 {
		t.Errorf("budget: %+v", b)
	}
	if e.volumes.Load() != 0 || e.snapshots.Load() != 0 {
		t.Errorf("%d volumes and %d snapshots are counted", e.volumes.Load(), e.snapshots.Load())
	}
}

// A failed copy removes its volume, or reports the reason in its snapshot, and
// unpins the source.
func TestCopyWithoutSpace(t *testing.T) {
	e := open(t, config(onExt4(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: 200 * mib}})
	f, err := os.OpenFile(file(e, v), os.O_WRONLY, 0)
	testkit.Must(t, err)
	defer f.Close()
	// Scattered data of this size suffices for 160 MiB.
	fill(t, file(e, v), 140*mib)
	_, err = e.Create(t.Context(), volume.CreateRequest{Name: "c", Content: volume.Raw, Source: volume.Source{Volume: v.ID}})
	wantKind(t, err, "a copy without space", errs.Exhausted)
	s := snapshot(t, e, "s", v.ID)
	_ = e.copies.wait(t.Context(), string(s.ID)) // its error is checked below
	_, err = e.Create(t.Context(), volume.CreateRequest{Name: "r", Content: volume.Raw, Source: volume.Source{Snapshot: s.ID}})
	wantKind(t, err, "a volume from a failed snapshot", errs.Precondition)
	_, err = e.CreateSnapshot(t.Context(), volume.SnapshotRequest{Name: "s", Source: v.ID})
	wantKind(t, err, "the same snapshot again", errs.Exhausted)
	empty(t, e, incomingDir)
	if readers := pins(t, e, v); len(readers) != 0 {
		t.Errorf("readers of the source: %v", readers)
	}
	e = reopen(t, e)
	testkit.Must(t, e.DeleteSnapshot(t.Context(), s.ID), e.Delete(t.Context(), v.ID))
	if got := e.budget.promised(); got != 0 {
		t.Errorf("%d bytes are promised", got)
	}
}

// A group is ready when all its members are.
func TestGroupByCopy(t *testing.T) {
	e := open(t, config(onExt4(t)))
	a := create(t, e, volume.CreateRequest{Name: "a", Size: volume.SizeRange{Required: mib}})
	b := create(t, e, volume.CreateRequest{Name: "b", Size: volume.SizeRange{Required: mib}})
	release := holdCopies(e)
	g, err := e.CreateGroup(t.Context(), volume.GroupRequest{Name: "g", Sources: []volume.ID{b.ID, a.ID}})
	if err != nil || g.Ready || len(g.Snapshots) != 2 || g.Snapshots[0].Source != a.ID {
		t.Fatalf("group: %+v, %v", g, err)
	}
	release()
	for _, s := range g.Snapshots {
		waitCopied(t, e, string(s.ID))
	}
	if g, err = e.GetGroup(t.Context(), g.ID); err != nil || !g.Ready {
		t.Errorf("group after its copies: %+v, %v", g, err)
	}
	testkit.Must(t, e.DeleteGroup(t.Context(), g.ID))
	empty(t, e, snapshotsDir)
}
