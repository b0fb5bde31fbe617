//go:build ceph

package ceph

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// takeGroup creates a group also with a librbd that cannot restore it.
func takeGroup(t testing.TB, e *Engine, name string, sources ...volume.Volume) volume.Group {
	t.Helper()
	return testkit.Value(e.CreateGroup(testkit.Context(t), groupRequest(name, sources...)))(t)
}

func groupRequest(name string, sources ...volume.Volume) volume.GroupRequest {
	req := volume.GroupRequest{Name: name}
	for _, v := range sources {
		req.Sources = append(req.Sources, v.ID)
	}
	return req
}

// createLocked creates a volume whose image has the feature exclusive-lock.
func createLocked(t testing.TB, e *Engine, name string) volume.Volume {
	t.Helper()
	req := request(name, volume.Source{})
	req.Parameters = map[string]string{keyFeatures: "layering,exclusive-lock,deep-flatten"}
	return testkit.Value(e.Create(testkit.Context(t), req))(t)
}

// first returns the number at the begin of a member of a group.
func first(t testing.TB, g volume.Group, of volume.Volume) uint64 {
	t.Helper()
	n := slices.IndexFunc(g.Snapshots, func(s volume.Snapshot) bool { return s.Source == of.ID })
	id, ok := parseSnapshotID(g.Snapshots[n].ID)
	if !ok {
		t.Fatalf("no snapshot id: %s", g.Snapshots[n].ID)
	}
	i := testkit.Value(rbd.OpenImageByIdReadOnly(ioctx(t, of.Locator.(access.RBD).Namespace), id.image, rbd.NoSnapshot))(t)
	defer i.Close()
	testkit.Must(t, i.SetSnapByID(id.snap))
	p := make([]byte, 8)
	testkit.Value(i.ReadAt(p, 0))(t)
	return binary.LittleEndian.Uint64(p)
}

func writeFirst(t testing.TB, d device, n uint64) {
	t.Helper()
	testkit.Value(d.WriteAt(binary.LittleEndian.AppendUint64(nil, n), 0))(t)
}

// TestGroupsAreOffered: the librbd of Ceph 16.2, of which the tests' cluster then
// is too, cannot clone the members of groups.
func TestGroupsAreOffered(t *testing.T) {
	t.Parallel()
	e := open(t, testConfig(t))
	out := testkit.Value(e.MonCommand(testkit.Context(t), []byte(`{"prefix":"versions","format":"json"}`)))(t)
	var all struct{ Mon map[string]int }
	testkit.Must(t, json.Unmarshal(out, &all))
	for release := range maps.Keys(all.Mon) {
		if is16 := strings.HasPrefix(release, "ceph version 16."); (e.Backend().Groups == nil) != is16 {
			t.Errorf("groups are offered: %t, with %s", !is16, release)
		}
	}
	if e.groups {
		return
	}
	g := takeGroup(t, e, "group", create(t, e, "base", volume.Source{}))
	_, err := e.Create(testkit.Context(t), request("restored", volume.Source{Snapshot: g.Snapshots[0].ID}))
	wantKind(t, err, "restore", errs.Precondition)
}

// TestGroupIsOfOneMoment writes a number to one volume and then to another: the
// second never has a higher one than the first, also in a group.
func TestGroupIsOfOneMoment(t *testing.T) {
	t.Parallel()
	e := open(t, testConfig(t))
	a, b := createLocked(t, e, "a"), createLocked(t, e, "b")
	writer, stop := make(chan struct{}), make(chan struct{})
	da, db := openVolume(t, a), openVolume(t, b)
	go func() {
		defer close(writer)
		for n := uint64(1); ; n++ {
			for _, d := range []device{da, db} {
				if _, err := d.WriteAt(binary.LittleEndian.AppendUint64(nil, n), 0); err != nil {
					t.Errorf("write: %v", err)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	for _, name := range []string{"1", "2", "3", "4", "5"} {
		g := takeGroup(t, e, name, a, b)
		if x, y := first(t, g, a), first(t, g, b); x != y && x != y+1 {
			t.Errorf("group %s has %d, written first, and %d", name, x, y)
		}
	}
	close(stop)
	<-writer
	testkit.Must(t, da.Close(), db.Close())
}

func TestGroupOfVolumesInUse(t *testing.T) {
	t.Parallel()
	e := open(t, testConfig(t))
	a, b := create(t, e, "a", volume.Source{}), create(t, e, "b", volume.Source{})
	d := openVolume(t, b)
	writeFirst(t, d, 7)
	_, err := e.CreateGroup(testkit.Context(t), groupRequest("group", a, b))
	wantKind(t, err, "a group of volumes in use without a lock", errs.Precondition)
	if all := testkit.Value(e.ListSnapshots(testkit.Context(t), volume.SnapshotQuery{}))(t); len(all) != 0 {
		t.Errorf("snapshots after the refusal: %+v", all)
	}
	byMember := groupRequest("group", a, b)
	byMember.Parameters = map[string]string{keyConsistency: "member", keyCluster: "test"}
	g := testkit.Value(e.CreateGroup(testkit.Context(t), byMember))(t)
	if got := first(t, g, b); got != 7 {
		t.Errorf("the member has %d", got)
	}
	takeGroup(t, e, "alone", b)
	testkit.Must(t, d.Close())
	takeGroup(t, e, "unused", a, b)
}

// TestGroupOutlivesItsVolumes: images of deleted volumes stay until no group has
// a snapshot of them.
func TestGroupOutlivesItsVolumes(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	config := testConfig(t)
	e := open(t, config)
	a, b := create(t, e, "a", volume.Source{}), create(t, e, "b", volume.Source{})
	d := openVolume(t, a)
	writeFirst(t, d, 7)
	testkit.Must(t, d.Close())
	g := takeGroup(t, e, "group", a, b)
	testkit.Must(t, e.Delete(ctx, a.ID), e.Delete(ctx, b.ID))
	closeEngine(t, e)
	e = open(t, config)
	got := testkit.Value(e.GetGroup(ctx, g.ID))(t)
	if !slices.Equal(got.Snapshots, g.Snapshots) || first(t, got, a) != 7 {
		t.Errorf("the group is %+v, was %+v", got, g)
	}
	if e.groups {
		v := create(t, e, "restored", volume.Source{Snapshot: g.Snapshots[0].ID})
		testkit.Must(t, e.DeleteGroup(ctx, g.ID), e.Delete(ctx, v.ID))
	}
	deleteAll(t, e)
	wantNoImages(t, config.Cluster.RBD.RadosNamespace)
}

// otherPool returns a namespace of a pool that the engine's user cannot read.
func otherPool(t testing.TB, namespace string) *rados.IOContext {
	t.Helper()
	name := "of-" + namespace
	testkit.Must(t, shared.CreatePool(name))
	io := testkit.Value(shared.client.OpenIOContext(name))(t)
	t.Cleanup(io.Destroy)
	testkit.Must(t, rbd.NamespaceCreate(io, namespace))
	io.SetNamespace(namespace)
	return io
}

// TestGroupsOfOthers: no call uses or removes a group of RBD without a record of
// this program.
func TestGroupsOfOthers(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	config := testConfig(t)
	e := open(t, config)
	a, b := create(t, e, "a", volume.Source{}), create(t, e, "b", volume.Source{})
	other := ioctx(t, config.Cluster.RBD.RadosNamespace)
	fake := groupID{pool: e.pools[0].id, hash: hash("group"), uuid: "01a1f972-c1d5-7cde-bac7-16431a08ef22"}
	image := a.Locator.(access.RBD).Image
	for _, name := range []string{fake.name(), "backup"} {
		testkit.Must(t, rbd.GroupCreate(other, name), rbd.GroupImageAdd(other, name, other, image), rbd.GroupSnapCreate(other, name, groupSnap))
		_, err := e.CreateGroup(ctx, groupRequest("group", b, a))
		wantKind(t, err, "a group with a member of another program's", errs.Precondition)
		testkit.Must(t, rbd.GroupImageRemove(other, name, other, image))
	}
	elsewhere := otherPool(t, config.Cluster.RBD.RadosNamespace)
	testkit.Must(t, rbd.GroupCreate(elsewhere, fake.name()), rbd.GroupImageAdd(elsewhere, fake.name(), other, image), rbd.GroupSnapCreate(elsewhere, fake.name(), groupSnap),
		rbd.GroupImageRemove(elsewhere, fake.name(), other, image))
	closeEngine(t, e)
	e = open(t, config)
	if all := testkit.Value(e.ListSnapshots(ctx, volume.SnapshotQuery{}))(t); len(all) != 0 {
		t.Errorf("listed are %+v", all)
	}
	_, err := e.GetGroup(ctx, volume.GroupID(fake.String()))
	wantKind(t, err, "a group without a record", errs.NotFound)
	testkit.Must(t, e.DeleteGroup(ctx, volume.GroupID(fake.String())))
	g := takeGroup(t, e, "group", a, b)
	testkit.Must(t, e.DeleteGroup(ctx, g.ID))
	names := testkit.Value(rbd.GroupList(other))(t)
	if slices.Sort(names); !slices.Equal(names, []string{"backup", fake.name()}) {
		t.Errorf("groups left: %q", names)
	}
	for _, name := range names {
		if snaps := testkit.Value(rbd.GroupSnapList(other, name))(t); len(snaps) != 1 {
			t.Errorf("snapshots of group %s: %+v", name, snaps)
		}
	}
}

func TestDeltasOfMembers(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	e := open(t, testConfig(t))
	v := create(t, e, "a", volume.Source{})
	var snaps []volume.SnapshotID
	for n := range 3 {
		d := openVolume(t, v)
		testkit.Value(d.WriteAt([]byte("cleat"), int64(n)*4*mib))(t)
		testkit.Must(t, d.Close())
		if n == 1 {
			snaps = append(snaps, takeSnap(t, e, "plain", v.ID).ID)
		} else {
			snaps = append(snaps, takeGroup(t, e, []string{"first", "", "last"}[n], v).Snapshots[0].ID)
		}
	}
	if !e.groups { // the librbd of Ceph 16.2
		blocks := testkit.Value(e.Delta(ctx, snaps[0], snaps[1], 0))(t)
		for _, err := range blocks.Ranges {
			wantKind(t, err, "a delta from a member", errs.Precondition)
		}
		return
	}
	for n, offsets := range map[[2]int][]int64{{0, 1}: {4 * mib}, {1, 2}: {8 * mib}, {0, 2}: {4 * mib, 8 * mib}} {
		blocks := testkit.Value(e.Delta(ctx, snaps[n[0]], snaps[n[1]], 0))(t)
		var got []int64
		for r, err := range blocks.Ranges {
			testkit.Must(t, err)
			for o := r.Offset; o < r.End(); o += 4 * mib {
				got = append(got, o)
			}
		}
		if !slices.Equal(got, offsets) {
			t.Errorf("from snapshot %d to %d: %v, want %v", n[0], n[1], got, offsets)
		}
	}
}

// groupCrashCases are those of TestKilledInGroup, with the volume "base".
var groupCrashCases = map[string][]string{
	"create": {"group.begun", "group.filled", "group.taken", "group.recorded"},
	"delete": {"delete-group.begun", "delete-group.removed"},
}

// TestKilledInGroup kills a process at every crash point of groups, and has the
// next one use the same volumes for another group and repeat the call.
func TestKilledInGroup(t *testing.T) {
	for call, points := range groupCrashCases {
		for _, point := range points {
			t.Run(call+"/"+point, func(t *testing.T) {
				t.Parallel()
				testKilledInGroup(t, call, point)
			})
		}
	}
}

func testKilledInGroup(t *testing.T, call, point string) {
	ctx := testkit.Context(t)
	config := testConfig(t)
	e := open(t, config)
	a, b := create(t, e, "a", volume.Source{}), create(t, e, "b", volume.Source{})
	d := openVolume(t, b)
	writeFirst(t, d, 7)
	testkit.Must(t, d.Close())
	req := groupRequest("group", a, b)
	w := enginetest.Call{Group: &req}
	want := 0 // snapshots that the next controller has
	if call == "delete" {
		w = enginetest.Call{Ungroup: takeGroup(t, e, "group", a, b).ID}
	} else if point == "group.recorded" {
		want = 2
	}
	closeEngine(t, e)
	inChild := config
	inChild.Logger = nil // it has no JSON
	enginetest.Kill(t, childWork{Call: w, Config: inChild}, point)
	e = open(t, config)
	if all := testkit.Value(e.ListSnapshots(ctx, volume.SnapshotQuery{}))(t); len(all) != want {
		t.Errorf("%d snapshots after the kill, want %d", len(all), want)
	}
	takeGroup(t, e, "other", a, b)
	if call == "delete" {
		testkit.Must(t, e.DeleteGroup(ctx, w.Ungroup), e.DeleteGroup(ctx, w.Ungroup))
		_, err := e.GetGroup(ctx, w.Ungroup)
		wantKind(t, err, "the deleted group", errs.NotFound)
	} else {
		g := takeGroup(t, e, "group", a, b)
		if again := takeGroup(t, e, "group", b, a); again.ID != g.ID || len(g.Snapshots) != 2 || first(t, g, b) != 7 {
			t.Errorf("two calls return %+v and %+v", g, again)
		}
	}
	deleteAll(t, e)
	wantNoImages(t, config.Cluster.RBD.RadosNamespace)
}
