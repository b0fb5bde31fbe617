//go:build ceph

package ceph

import (
	"context"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

func runFSChild(ctx context.Context, w childWork) error {
	e, err := OpenFS(ctx, *w.FS)
	if err != nil {
		return err
	}
	if err := w.Do(ctx, e.Backend()); err != nil {
		return err
	}
	if w.Create != nil && !w.Create.Source.IsZero() {
		<-ctx.Done() // killed when the copy is complete
	}
	return nil
}

// fsCrashCases are calls and the points at which their process is killed. base
// is a volume with one snapshot.
var fsCrashCases = []struct {
	name   string
	points []string
	work   func(base volume.Volume, s volume.Snapshot) enginetest.Call
	repeat func(t *testing.T, e *FS, w enginetest.Call)
}{
	{"create", []string{"create.begun", "create.made", "create.recorded"}, func(volume.Volume, volume.Snapshot) enginetest.Call {
		req := fsRequest("new", volume.Source{})
		return enginetest.Call{Create: &req}
	}, repeatFSCreate},
	{"clone", []string{"create.frozen", "create.made", "create.recorded", "copy.grown", "copy.completed"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call {
		req := fsRequest("new", volume.Source{Volume: base.ID})
		req.Size.Required = 32 * mib
		return enginetest.Call{Create: &req}
	}, repeatFSCreate},
	{"restore", []string{"create.made", "create.recorded", "copy.completed"}, func(_ volume.Volume, s volume.Snapshot) enginetest.Call {
		req := fsRequest("new", volume.Source{Snapshot: s.ID})
		return enginetest.Call{Create: &req}
	}, repeatFSCreate},
	{"show", []string{"create.made"}, func(_ volume.Volume, s volume.Snapshot) enginetest.Call {
		req := fsRequest("new", volume.Source{Snapshot: s.ID})
		req.ReadOnly = true
		return enginetest.Call{Create: &req}
	}, repeatFSCreate},
	{"expand", []string{"expand.grown"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call {
		return enginetest.Call{Expand: base.ID, Size: 32 * mib}
	}, func(t *testing.T, e *FS, w enginetest.Call) {
		repeatFS(t, e, w)
		if v := testkit.Value(e.Get(testkit.Context(t), w.Expand))(t); v.Size != 32*mib {
			t.Errorf("the volume has %d bytes", v.Size)
		}
	}},
	{"snapshot", []string{"snapshot.recorded", "snapshot.created"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call {
		return enginetest.Call{Snapshot: &volume.SnapshotRequest{Name: "second", Source: base.ID}}
	}, func(t *testing.T, e *FS, w enginetest.Call) {
		first := testkit.Value(e.CreateSnapshot(testkit.Context(t), *w.Snapshot))(t)
		second := testkit.Value(e.CreateSnapshot(testkit.Context(t), *w.Snapshot))(t)
		if first != second {
			t.Errorf("two calls return %+v and %+v", first, second)
		}
	}},
	{"delete snapshot", []string{"delete-snapshot.removed"}, func(_ volume.Volume, s volume.Snapshot) enginetest.Call { return enginetest.Call{Unsnap: s.ID} }, repeatFS},
	{"delete", []string{"delete.checked", "delete.removed"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call { return enginetest.Call{Delete: base.ID} }, repeatFS},
}

func repeatFS(t *testing.T, e *FS, w enginetest.Call) {
	testkit.Must(t, w.Do(testkit.Context(t), e.Backend()))
}

func repeatFSCreate(t *testing.T, e *FS, w enginetest.Call) {
	v := makeFS(t, e, *w.Create)
	if again := makeFS(t, e, *w.Create); again.ID != v.ID {
		t.Errorf("two calls return %s and %s", v.ID, again.ID)
	}
	want := ""
	if !w.Create.Source.IsZero() {
		want = "cleat"
	}
	wantFile(t, v, "file", want)
	if v.Size != w.Create.Size.Required {
		t.Errorf("the volume has %d bytes, want %d", v.Size, w.Create.Size.Required)
	}
}

// TestFSKilled kills a process at every crash point, repeats its call in another
// one, deletes everything, and then looks for leftovers without the engine.
func TestFSKilled(t *testing.T) {
	for _, c := range fsCrashCases {
		for _, point := range c.points {
			t.Run(c.name+"/"+point, func(t *testing.T) {
				t.Parallel()
				config := fsConfig(t)
				e := openFS(t, config)
				ctx := testkit.Context(t)
				base := makeFS(t, e, fsRequest("base", volume.Source{}))
				writeFile(t, base, "file", "cleat")
				w := c.work(base, fsSnap(t, e, "first", base.ID))
				closeFS(t, e)
				inChild := config
				inChild.Logger = nil // it has no JSON
				enginetest.Kill(t, childWork{Call: w, FS: &inChild}, point)
				e = openFS(t, config)
				c.repeat(t, e, w)
				for _, v := range testkit.Value(e.List(ctx, "", 0))(t) {
					testkit.Must(t, e.Delete(ctx, v.ID))
				}
				for _, s := range testkit.Value(e.ListSnapshots(ctx, volume.SnapshotQuery{}))(t) {
					testkit.EventuallyNil(t, "the snapshot is deleted", func() error { return e.DeleteSnapshot(ctx, s.ID) })
				}
				wantNoSubvolumes(t, e)
			})
		}
	}
}
