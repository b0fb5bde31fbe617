package enginetest

import (
	"slices"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func testGroups(t *trial) {
	if t.Backend.Groups == nil {
		t.Log("not supported: Groups")
		return
	}
	a, b, c := t.create(t.request("a")), t.create(t.request("b")), t.create(t.request("c"))
	t.write(a, 1, 0)
	t.write(b, 2, mib)
	g := t.group("group", a.ID, b.ID)
	t.checkGroup(g, "group", a, b)
	t.same("the same CreateGroup, sources in another order", t.group("group", b.ID, a.ID), g)
	t.checkGroupErrors(a, c)

	t.write(a, 3, 0)
	t.write(b, 3, mib)
	member := memberOf(g, a.ID)
	t.snapshotHolds(member, map[int64]uint64{0: 1, mib: 0})
	t.snapshotHolds(memberOf(g, b.ID), map[int64]uint64{0: 0, mib: 2})
	t.wantKind(t.Backend.Snapshots.DeleteSnapshot(t.ctx, member.ID), "DeleteSnapshot of a member", errs.Invalid)
	t.same("a member by itself", t.ready(member.ID), member)
	if got := t.snapshots(volume.SnapshotQuery{Source: a.ID}); len(got) != 1 || got[0].Group != g.ID {
		t.Errorf("ListSnapshots does not show the member: %+v", got)
	}

	single := t.takeSnapshot("group", a.ID) // names are independent
	restored := t.create(t.from("restored", volume.Source{Snapshot: member.ID}))
	for range 2 {
		if err := t.Backend.Groups.DeleteGroup(t.ctx, g.ID); err != nil {
			t.Fatalf("DeleteGroup: %v", err)
		}
	}
	_, err := t.Backend.Groups.GetGroup(t.ctx, g.ID)
	t.wantKind(err, "GetGroup of a deleted one", errs.NotFound)
	_, err = t.Backend.Snapshots.GetSnapshot(t.ctx, member.ID)
	t.wantKind(err, "GetSnapshot of a deleted member", errs.NotFound)
	t.holds(restored, 1, 0)
	t.same("a snapshot outside of the group", t.ready(single.ID), single)
	if recreated := t.group("group", a.ID, b.ID); recreated.ID == g.ID {
		t.Errorf("a recreated group has the old id %s", g.ID)
	}
}

// checkGroupErrors sends invalid group requests; name "group" is in use for a
// and another volume.
func (t *trial) checkGroupErrors(a, c volume.Volume) {
	t.Helper()
	before := len(t.snapshots(volume.SnapshotQuery{}))
	for name, bad := range map[string]struct {
		req  volume.GroupRequest
		want errs.Kind
	}{
		"a taken name":         {volume.GroupRequest{Name: "group", Sources: []volume.ID{a.ID, c.ID}}, errs.Exists},
		"a subset":             {volume.GroupRequest{Name: "group", Sources: []volume.ID{a.ID}}, errs.Exists},
		"no name":              {volume.GroupRequest{Sources: []volume.ID{a.ID}}, errs.Invalid},
		"no sources":           {volume.GroupRequest{Name: "empty"}, errs.Invalid},
		"a missing source":     {volume.GroupRequest{Name: "partial", Sources: []volume.ID{a.ID, volume.NewID("")}}, errs.NotFound},
		"a traversal":          {volume.GroupRequest{Name: "path", Sources: []volume.ID{a.ID, "../../etc"}}, errs.NotFound},
		"an unknown parameter": {volume.GroupRequest{Name: "odd", Sources: []volume.ID{a.ID}, Parameters: map[string]string{"noSuchKey": "1"}}, errs.Invalid},
	} {
		_, err := t.Backend.Groups.CreateGroup(t.ctx, bad.req)
		t.wantKind(err, "CreateGroup with "+name, bad.want)
	}
	if after := len(t.snapshots(volume.SnapshotQuery{})); after != before {
		t.Errorf("refused groups left %d snapshots", after-before)
	}
}

func (t *trial) group(name string, sources ...volume.ID) volume.Group {
	t.Helper()
	g, err := t.Backend.Groups.CreateGroup(t.ctx, volume.GroupRequest{Name: name, Sources: sources})
	if err != nil {
		t.Fatalf("CreateGroup(%q of %q): %v", name, sources, err)
	}
	t.until(func() bool {
		if g, err = t.Backend.Groups.GetGroup(t.ctx, g.ID); err != nil {
			t.Fatalf("GetGroup(%s): %v", g.ID, err)
		}
		return g.Ready
	})
	slices.SortFunc(g.Snapshots, func(x, y volume.Snapshot) int { return compareIDs(volume.ID(x.ID), volume.ID(y.ID)) })
	return g
}

func (t *trial) checkGroup(g volume.Group, name string, members ...volume.Volume) {
	t.Helper()
	if err := volume.CheckID(string(g.ID)); err != nil {
		t.Errorf("CreateGroup(%q) returned an invalid id: %v", name, err)
	}
	if g.Name != name || g.Created.IsZero() || len(g.Snapshots) != len(members) {
		t.Fatalf("CreateGroup(%q) returned %+v", name, g)
	}
	for _, v := range members {
		s := memberOf(g, v.ID)
		if s.Group != g.ID || s.Size != v.Size || s.Content != v.Content || !s.Ready {
			t.Errorf("the member of volume %s is %+v", v.ID, s)
		}
	}
}

func memberOf(g volume.Group, source volume.ID) volume.Snapshot {
	i := slices.IndexFunc(g.Snapshots, func(s volume.Snapshot) bool { return s.Source == source })
	if i < 0 {
		return volume.Snapshot{}
	}
	return g.Snapshots[i]
}
