//go:build ceph

package ceph

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ceph/go-ceph/rbd"
	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// childWork is one call of an engine: of an FS, if it has its configuration.
type childWork struct {
	enginetest.Call
	Config Config
	FS     *FSConfig
}

func runChild(ctx context.Context, w childWork) error {
	if w.FS != nil {
		return runFSChild(ctx, w)
	}
	e, err := Open(ctx, w.Config)
	if err != nil {
		return err
	}
	b := e.Backend()
	b.Groups = e // also if librbd cannot restore them
	if err := w.Do(ctx, b); err != nil {
		return err
	}
	if w.Delete != "" {
		<-ctx.Done() // killed by the reaper
	}
	return nil
}

// TestCrashPoints holds the list below to the code.
func TestCrashPoints(t *testing.T) {
	var listed []string
	for _, c := range crashCases {
		listed = append(listed, c.points...)
	}
	for _, c := range fsCrashCases {
		listed = append(listed, c.points...)
	}
	for _, points := range groupCrashCases {
		listed = append(listed, points...)
	}
	slices.Sort(listed)
	if diff := cmp.Diff(slices.Compact(listed), testkit.CrashPoints(t)); diff != "" {
		t.Errorf("the crash points of the test and of the code differ:\n%s", diff)
	}
}

// crashCases are calls and the points at which their process is killed. base is
// a volume with one snapshot.
var crashCases = []struct {
	name   string
	points []string
	work   func(base volume.Volume, s volume.Snapshot) enginetest.Call
	repeat func(t *testing.T, e *Engine, w enginetest.Call)
}{
	{"create", []string{"create.begun", "create.image", "create.released", "create.grown", "create.recorded"}, func(volume.Volume, volume.Snapshot) enginetest.Call {
		req := request("new", volume.Source{})
		return enginetest.Call{Create: &req}
	}, repeatCreate},
	{"clone", []string{"create.frozen", "create.image", "create.released", "create.grown", "create.recorded"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call {
		req := request("new", volume.Source{Volume: base.ID})
		req.Size.Required = 32 * mib
		return enginetest.Call{Create: &req}
	}, repeatCreate},
	{"restore", []string{"create.image", "create.grown"}, func(_ volume.Volume, s volume.Snapshot) enginetest.Call {
		req := request("new", volume.Source{Snapshot: s.ID})
		return enginetest.Call{Create: &req}
	}, repeatCreate},
	{"expand", []string{"expand.grown"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call {
		return enginetest.Call{Expand: base.ID, Size: 32 * mib}
	},
		func(t *testing.T, e *Engine, w enginetest.Call) {
			testkit.Must(t, w.Do(testkit.Context(t), e.Backend()))
			if v := testkit.Value(e.Get(testkit.Context(t), w.Expand))(t); v.Size != 32*mib {
				t.Errorf("the volume has %d bytes", v.Size)
			}
		}},
	{"snapshot", []string{"snapshot.recorded", "snapshot.created"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call {
		return enginetest.Call{Snapshot: &volume.SnapshotRequest{Name: "second", Source: base.ID}}
	}, func(t *testing.T, e *Engine, w enginetest.Call) {
		first := testkit.Value(e.CreateSnapshot(testkit.Context(t), *w.Snapshot))(t)
		second := testkit.Value(e.CreateSnapshot(testkit.Context(t), *w.Snapshot))(t)
		if first != second {
			t.Errorf("two calls return %+v and %+v", first, second)
		}
	}},
	{"delete snapshot", []string{"delete-snapshot.removed"}, func(_ volume.Volume, s volume.Snapshot) enginetest.Call { return enginetest.Call{Unsnap: s.ID} }, repeatOnly},
	{"delete", []string{"delete.checked", "delete.renamed"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call { return enginetest.Call{Delete: base.ID} }, repeatOnly},
	{"delete without snapshots", []string{"reap.released", "reap.removed"}, func(volume.Volume, volume.Snapshot) enginetest.Call { return enginetest.Call{Delete: plainVolume} }, repeatOnly},
}

// plainVolume stands for the volume without snapshots.
const plainVolume = "plain"

func repeatOnly(t *testing.T, e *Engine, w enginetest.Call) {
	testkit.Must(t, w.Do(testkit.Context(t), e.Backend()))
}

func repeatCreate(t *testing.T, e *Engine, w enginetest.Call) {
	v := testkit.Value(e.Create(testkit.Context(t), *w.Create))(t)
	if again := testkit.Value(e.Create(testkit.Context(t), *w.Create))(t); again.ID != v.ID {
		t.Errorf("two calls return %s and %s", v.ID, again.ID)
	}
	d := openVolume(t, v)
	defer d.Close()
	size := testkit.Value(d.Size())(t)
	p := make([]byte, 5)
	testkit.Value(d.ReadAt(p, 0))(t)
	if want := w.Create.Size.Required; size != want || !w.Create.Source.IsZero() && string(p) != "cleat" {
		t.Errorf("the volume has %d bytes, want %d, and begins with %q", size, want, p)
	}
}

// TestKilled kills a process at every crash point, repeats its call in another
// one, deletes everything, and then looks for leftovers without the engine.
func TestKilled(t *testing.T) {
	for _, c := range crashCases {
		for _, point := range c.points {
			t.Run(c.name+"/"+point, func(t *testing.T) {
				t.Parallel()
				config := testConfig(t)
				e := open(t, config)
				base := create(t, e, "base", volume.Source{})
				d := openVolume(t, base)
				testkit.Value(d.WriteAt([]byte("cleat"), 0))(t)
				testkit.Must(t, d.Close())
				s := takeSnap(t, e, "first", base.ID)
				w := c.work(base, s)
				if w.Delete == plainVolume {
					w.Delete = create(t, e, plainVolume, volume.Source{}).ID
				}
				closeEngine(t, e)
				inChild := config
				inChild.Logger = nil // it has no JSON
				enginetest.Kill(t, childWork{Call: w, Config: inChild}, point)
				e = open(t, config)
				c.repeat(t, e, w)
				deleteAll(t, e)
				wantNoImages(t, config.Cluster.RBD.RadosNamespace)
			})
		}
	}
}

// deleteAll deletes everything that the engine lists. Volumes that a killed
// process had open can be deleted when the cluster has noticed.
func deleteAll(t *testing.T, e *Engine) {
	t.Helper()
	ctx := testkit.Context(t)
	for _, v := range testkit.Value(e.List(ctx, "", 0))(t) {
		testkit.EventuallyNil(t, "deletion", func() error { return e.Delete(ctx, v.ID) })
	}
	for _, s := range testkit.Value(e.ListSnapshots(ctx, volume.SnapshotQuery{}))(t) {
		if s.Group != "" {
			testkit.Must(t, e.DeleteGroup(ctx, s.Group))
			continue
		}
		testkit.Must(t, e.DeleteSnapshot(ctx, s.ID))
	}
	testkit.Eventually(t, "no image left", func() bool {
		e.reaper.retry()
		e.reaper.wake()
		names := testkit.Value(rbd.GetImageNames(e.pools[0].io))(t)
		return len(names)+len(testkit.Value(rbd.GetTrashList(e.pools[0].io))(t)) == 0
	})
}

// wantNoImages lists all objects of a namespace.
func wantNoImages(t *testing.T, namespace string) {
	t.Helper()
	io := ioctx(t, namespace)
	testkit.EventuallyNil(t, "no object of an image left", func() error {
		var left []string
		err := io.ListObjects(func(name string) {
			if !slices.Contains([]string{"rbd_directory", "rbd_info", "rbd_children", "rbd_trash", "rbd_namespace", controllersObject, creationsObject, groupsObject, "rbd_group_directory"}, name) {
				left = append(left, name)
			}
		})
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("objects left: %s", strings.Join(left, " "))
		}
		if trash, failed := rbd.GetTrashList(io); err == nil && (failed != nil || len(trash) > 0) {
			err = fmt.Errorf("trash left: %+v (%v)", trash, failed)
		}
		return err
	})
	if names := testkit.Value(rbd.GetImageNames(io))(t); len(names) > 0 {
		t.Errorf("images left: %q", names)
	}
}
