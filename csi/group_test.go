package csi_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func members(g *spec.VolumeGroupSnapshot) (ids []string) {
	for _, s := range g.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
	}
	return ids
}

func TestGroupLife(t *testing.T) {
	rig := newPlugin(t, options{})
	ctx := t.Context()
	a, b := rig.MustCreate(t, "a", mountCap()).GetVolumeId(), rig.MustCreate(t, "b", blockCap()).GetVolumeId()
	made := testkit.Value(rig.Group.CreateVolumeGroupSnapshot(ctx, &spec.CreateVolumeGroupSnapshotRequest{
		Name: "g", SourceVolumeIds: []string{a, b}, Parameters: map[string]string{"csi.storage.k8s.io/volumegroupsnapshot/name": "x"},
	}))(t)
	g := made.GetGroupSnapshot()
	var sources []string
	for _, s := range g.GetSnapshots() {
		sources = append(sources, s.GetSourceVolumeId())
		if s.GetGroupSnapshotId() != g.GetGroupSnapshotId() || !s.GetReadyToUse() || len(s.GetAccessibleTopology()) != 1 {
			t.Errorf("member %v", s)
		}
	}
	if slices.Sort(sources); !slices.Equal(sources, []string{a, b}) || !g.GetReadyToUse() || !g.GetCreationTime().IsValid() {
		t.Errorf("group %v", g)
	}
	// The sources are a set: their order does not matter.
	again, err := rig.Group.CreateVolumeGroupSnapshot(ctx, &spec.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{b, a}})
	wantCode(t, err, codes.OK)
	if diff := cmp.Diff(made, again, protocmp.Transform()); diff != "" {
		t.Errorf("(-first +again):\n%s", diff)
	}
	reversed := members(g)
	slices.Reverse(reversed)
	got, err := rig.Group.GetVolumeGroupSnapshot(ctx, &spec.GetVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId(), SnapshotIds: reversed})
	wantCode(t, err, codes.OK)
	if diff := cmp.Diff(g, got.GetGroupSnapshot(), protocmp.Transform()); diff != "" {
		t.Errorf("(-made +got):\n%s", diff)
	}
	for range 2 {
		_, err = rig.Group.DeleteVolumeGroupSnapshot(ctx, &spec.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId(), SnapshotIds: reversed})
		wantCode(t, err, codes.OK)
	}
	_, err = rig.Controller.GetSnapshot(ctx, &spec.GetSnapshotRequest{SnapshotId: reversed[0]})
	wantCode(t, err, codes.NotFound)
}

// The second member is still being copied.
type unready struct{ volume.Groups }

func (u unready) CreateGroup(ctx context.Context, req volume.GroupRequest) (volume.Group, error) {
	g, err := u.Groups.CreateGroup(ctx, req)
	if err == nil {
		g.Snapshots[1].Ready = false
	}
	return g, err
}

func TestGroupIsReadyWhenAllAre(t *testing.T) {
	rig := newPlugin(t, options{Backend: func(b *volume.Backend) { b.Groups = unready{b.Groups} }})
	a, b := rig.MustCreate(t, "a", mountCap()).GetVolumeId(), rig.MustCreate(t, "b", mountCap()).GetVolumeId()
	r, err := rig.Group.CreateVolumeGroupSnapshot(t.Context(), &spec.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{a, b}})
	if err != nil || r.GetGroupSnapshot().GetReadyToUse() {
		t.Errorf("%v, %v", r, err)
	}
}

func TestGroupsAtOnce(t *testing.T) {
	rig := newPlugin(t, options{})
	ids := []string{rig.MustCreate(t, "a", mountCap()).GetVolumeId(), rig.MustCreate(t, "b", mountCap()).GetVolumeId()}
	var mu sync.Mutex
	groups := map[string]string{}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			name := fmt.Sprint("g", i%4)
			r, err := rig.Group.CreateVolumeGroupSnapshot(t.Context(), &spec.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: ids})
			wantCode(t, err, codes.OK)
			mu.Lock()
			defer mu.Unlock()
			id := r.GetGroupSnapshot().GetGroupSnapshotId()
			if other := groups[name]; other != "" && other != id {
				t.Errorf("%s was created twice, as %s and %s", name, other, id)
			}
			groups[name] = id
		})
	}
	wg.Wait()
	snapshots, err := rig.Reference.ListSnapshots(t.Context(), volume.SnapshotQuery{})
	if err != nil || len(snapshots) != 8 {
		t.Errorf("%d snapshots, %v", len(snapshots), err)
	}
}
