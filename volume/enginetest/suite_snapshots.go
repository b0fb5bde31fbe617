package enginetest

import (
	"fmt"
	"slices"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func testSnapshots(t *trial) {
	if t.Backend.Snapshots == nil {
		t.Log("not supported: Snapshots, so volumes cannot be created from one")
		_, err := t.Backend.Engine.Create(t.ctx, t.from("restored", volume.Source{Snapshot: volume.NewSnapshotID("")}))
		t.wantKind(err, "Create from a snapshot without the ability", errs.Unsupported, errs.Invalid, errs.NotFound)
		return
	}
	v := t.create(t.request("origin"))
	last := v.Size - sparseBlock
	t.write(v, 1, 0, mib, last)
	s := t.takeSnapshot("first", v.ID)
	t.checkSnapshot(s, "first", v)
	again := t.takeSnapshot("first", v.ID)
	t.same("the same CreateSnapshot again", again, s)

	other := t.create(t.request("other"))
	_, err := t.Backend.Snapshots.CreateSnapshot(t.ctx, volume.SnapshotRequest{Name: "first", Source: other.ID})
	t.wantKind(err, "CreateSnapshot of a taken name", errs.Exists)
	_, err = t.Backend.Snapshots.CreateSnapshot(t.ctx, volume.SnapshotRequest{Name: "", Source: v.ID})
	t.wantKind(err, "CreateSnapshot without a name", errs.Invalid)
	_, err = t.Backend.Snapshots.CreateSnapshot(t.ctx, volume.SnapshotRequest{
		Name: "odd", Source: v.ID, Parameters: map[string]string{"noSuchKey": "1"},
	})
	t.wantKind(err, "CreateSnapshot with an unknown parameter", errs.Invalid)

	t.write(v, 2, 0, 2*mib)
	second := t.takeSnapshot("second", v.ID)
	if second.Created.Before(s.Created) {
		t.Errorf("the second snapshot has time %s, the first %s", second.Created, s.Created)
	}
	t.snapshotHolds(s, map[int64]uint64{0: 1, mib: 1, 2 * mib: 0, last: 1})
	t.snapshotHolds(second, map[int64]uint64{0: 2, mib: 1, 2 * mib: 2, last: 1})
	t.holds(v, 2, 0, 2*mib)

	t.remove(v.ID)
	t.gone(v.ID)
	t.same("a snapshot whose volume is deleted", t.ready(s.ID), s)
	t.same("the same CreateSnapshot after the volume is deleted", t.takeSnapshot("first", v.ID), s)
	t.snapshotHolds(s, map[int64]uint64{0: 1, mib: 1, 2 * mib: 0, last: 1})

	t.removeSnapshot(s.ID)
	t.removeSnapshot(s.ID)
	_, err = t.Backend.Snapshots.GetSnapshot(t.ctx, s.ID)
	t.wantKind(err, "GetSnapshot of a deleted one", errs.NotFound)
	t.snapshotHolds(second, map[int64]uint64{0: 2, mib: 1, last: 1})
}

func (t *trial) checkSnapshot(s volume.Snapshot, name string, v volume.Volume) {
	t.Helper()
	if err := volume.CheckID(string(s.ID)); err != nil {
		t.Errorf("CreateSnapshot(%q) returned an invalid id: %v", name, err)
	}
	t.checkPoolSuffix(string(s.ID))
	if s.Name != name || s.Source != v.ID || s.Size != v.Size || s.Content != v.Content || s.FSType != v.FSType || s.Group != "" || s.Created.IsZero() {
		t.Errorf("CreateSnapshot(%q) of %+v returned %+v", name, v, s)
	}
}

// snapshotHolds checks a restored volume and, if possible, the snapshot.
func (t *trial) snapshotHolds(s volume.Snapshot, blocks map[int64]uint64) {
	t.Helper()
	v := t.create(t.from("inspect "+string(s.ID), volume.Source{Snapshot: s.ID}))
	for offset, seed := range blocks {
		t.holds(v, seed, offset)
	}
	t.remove(v.ID)
	if t.OpenSnapshot == nil {
		return
	}
	r := t.OpenSnapshot(t.T, t.Backend, s)
	for offset, seed := range blocks {
		t.readerHolds(r, string(s.ID), seed, offset)
	}
}

func (t *trial) snapshots(query volume.SnapshotQuery) []volume.Snapshot {
	t.Helper()
	all, err := t.Backend.Snapshots.ListSnapshots(t.ctx, query)
	if err != nil {
		t.Fatalf("ListSnapshots(%+v): %v", query, err)
	}
	return all
}

func testSnapshotList(t *trial) {
	if t.Backend.Snapshots == nil {
		t.Log("not supported: Snapshots")
		return
	}
	a, b := t.create(t.request("a")), t.create(t.request("b"))
	var made []volume.Snapshot
	for i := range 6 {
		source := a.ID
		if i%3 == 0 {
			source = b.ID
		}
		made = append(made, t.takeSnapshot(fmt.Sprintf("s%d", i), source))
	}
	slices.SortFunc(made, func(x, y volume.Snapshot) int { return compareIDs(volume.ID(x.ID), volume.ID(y.ID)) })
	ofA := slices.DeleteFunc(slices.Clone(made), func(s volume.Snapshot) bool { return s.Source != a.ID })

	t.same("ListSnapshots", t.snapshots(volume.SnapshotQuery{}), made)
	t.same("ListSnapshots of one source", t.snapshots(volume.SnapshotQuery{Source: a.ID}), ofA)
	t.same("a page of one source", t.snapshots(volume.SnapshotQuery{Source: a.ID, After: ofA[0].ID, Limit: 2}), ofA[1:3])
	if none := t.snapshots(volume.SnapshotQuery{Source: volume.NewID("")}); len(none) != 0 {
		t.Errorf("ListSnapshots of a missing volume: %+v", none)
	}
	// Paging continues after a deleted id.
	first := t.snapshots(volume.SnapshotQuery{Limit: 2})
	t.removeSnapshot(first[1].ID)
	t.same("a page after a deleted snapshot", t.snapshots(volume.SnapshotQuery{After: first[1].ID}), made[2:])
}

func testRestore(t *trial) {
	if t.Backend.Snapshots == nil {
		t.Log("not supported: Snapshots")
		return
	}
	v := t.create(t.request("origin"))
	last := v.Size - sparseBlock
	t.write(v, 1, 0, last)
	s := t.takeSnapshot("snapshot", v.ID)
	t.copies(v, volume.Source{Snapshot: s.ID})

	t.expand(v.ID, volume.SizeRange{Required: 2 * t.Size})
	t.same("a snapshot whose volume has grown", t.ready(s.ID), s)
	if len(t.FSTypes) > 0 {
		t.restoreFilesystem()
	}
	req := t.from("keeps", volume.Source{Snapshot: s.ID})
	restored := t.create(req)
	t.removeSnapshot(s.ID)
	t.remove(v.ID)
	t.holds(restored, 1, 0, last)
	if again := t.create(req); again.ID != restored.ID {
		t.Errorf("the same Create after its source was deleted returned %s, want %s", again.ID, restored.ID)
	}
}

func (t *trial) restoreFilesystem() {
	t.Helper()
	req := t.request("fs origin")
	req.Content, req.FSType, req.Size = volume.Filesystem, t.someFSType(), volume.SizeRange{}
	v := t.create(req)
	s := t.takeSnapshot("fs snapshot", v.ID)
	t.checkSnapshot(s, "fs snapshot", v)
	req.Name, req.Source = "fs restored", volume.Source{Snapshot: s.ID}
	if got := t.create(req); got.Size != v.Size || got.FSType != v.FSType {
		t.Errorf("restored %+v from %+v", got, s)
	}
	if len(t.FSTypes) > 1 {
		req.Name, req.FSType = "fs other", t.FSTypes[1]
		_, err := t.Backend.Engine.Create(t.ctx, req)
		t.wantKind(err, "Create of another file system than the source has", errs.Invalid)
	}
}

func testClone(t *trial) {
	v := t.create(t.request("origin"))
	if !t.Backend.Clones {
		t.Log("not supported: Clones")
		_, err := t.Backend.Engine.Create(t.ctx, t.from("clone", volume.Source{Volume: v.ID}))
		t.wantKind(err, "Create from a volume without the ability", errs.Unsupported, errs.Invalid)
		return
	}
	last := v.Size - sparseBlock
	t.write(v, 1, 0, last)
	t.copies(v, volume.Source{Volume: v.ID})
	req := t.from("keeps", volume.Source{Volume: v.ID})
	clone := t.create(req)
	grandchild := t.create(t.from("clone of the clone", volume.Source{Volume: clone.ID}))
	t.remove(v.ID)
	t.holds(clone, 1, 0, last)
	t.holds(grandchild, 1, 0, last)
	if again := t.create(req); again.ID != clone.ID {
		t.Errorf("the same Create after its source was deleted returned %s, want %s", again.ID, clone.ID)
	}
}

// copies creates volumes from a source with seed 1 in the first and last block
// of v: of equal size, larger, and too small. The copies must be independent of
// v.
func (t *trial) copies(v volume.Volume, source volume.Source) {
	t.Helper()
	last := v.Size - sparseBlock
	equal := t.create(t.from("equal", source))
	if equal.Size != v.Size {
		t.Errorf("a copy of %d bytes has %d", v.Size, equal.Size)
	}
	t.holds(equal, 1, 0, last)
	t.holds(equal, 0, mib)
	t.write(equal, 5, 0, mib)
	t.holds(v, 1, 0, last)
	t.holds(v, 0, mib)
	t.write(v, 6, 2*mib)
	t.holds(equal, 0, 2*mib)
	t.write(v, 0, 2*mib)

	larger := t.from("larger", source)
	larger.Size = volume.SizeRange{Required: 2 * t.Size}
	big := t.create(larger)
	t.sizeIs(big, big.Size)
	t.holds(big, 1, 0, last)
	t.isZero(big, volume.Range{Offset: v.Size, Length: big.Size - v.Size})

	anySize := t.from("any size", source)
	anySize.Size = volume.SizeRange{}
	if got := t.create(anySize); got.Size != v.Size {
		t.Errorf("a copy without a requested size has %d bytes, want %d as its source", got.Size, v.Size)
	}
	small := t.from("too small", source)
	small.Size = volume.SizeRange{Required: mib, Limit: v.Size - mib}
	_, err := t.Backend.Engine.Create(t.ctx, small)
	t.wantKind(err, "Create with a limit below the size of the source", errs.OutOfRange)

	empty := t.request("equal")
	_, err = t.Backend.Engine.Create(t.ctx, empty)
	t.wantKind(err, "Create with the name of a copy, without its source", errs.Exists)
}
