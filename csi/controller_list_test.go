package csi_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// between is called after each page.
func listAll(t *testing.T, rig *plugin, size int32, between func(page []string)) (ids []string) {
	t.Helper()
	for token, first := "", true; first || token != ""; first = false {
		r := testkit.Value(rig.Controller.ListVolumes(t.Context(), &spec.ListVolumesRequest{MaxEntries: size, StartingToken: token}))(t)
		if size > 0 && len(r.GetEntries()) > int(size) {
			t.Errorf("%d entries, at most %d are asked for", len(r.GetEntries()), size)
		}
		var page []string
		for _, e := range r.GetEntries() {
			page = append(page, e.GetVolume().GetVolumeId())
		}
		ids = append(ids, page...)
		between(page)
		token = r.GetNextToken()
	}
	return ids
}

func TestListVolumes(t *testing.T) {
	rig := newPlugin(t, options{})
	if ids := listAll(t, rig, 3, func([]string) {}); len(ids) != 0 {
		t.Errorf("an empty plugin lists %q", ids)
	}
	var want []string
	for i := range 7 {
		want = append(want, rig.MustCreate(t, fmt.Sprint("v", i), mountCap()).GetVolumeId())
		testkit.Value(rig.Reference.Create(t.Context(), volume.CreateRequest{Name: fmt.Sprint("inline", i), Content: volume.Raw, Ephemeral: true}))(t)
	}
	for size := range int32(9) {
		if got := listAll(t, rig, size, func([]string) {}); !slices.Equal(got, want) {
			t.Errorf("in pages of %d: got %q, want %q", size, got, want)
		}
	}
}

// Also the entry of the token is deleted.
func TestListVolumesWhileOthersDelete(t *testing.T) {
	rig := newPlugin(t, options{})
	var want []string
	for i := range 9 {
		want = append(want, rig.MustCreate(t, fmt.Sprint("v", i), mountCap()).GetVolumeId())
	}
	got := listAll(t, rig, 2, func(page []string) {
		for _, id := range page {
			testkit.Value(rig.Controller.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: id}))(t)
		}
	})
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A page without a limit fits into a gRPC message.
func TestListVolumesIsBounded(t *testing.T) {
	many := make([]volume.Volume, 12000)
	for i := range many {
		many[i] = volume.Volume{ID: volume.ID(fmt.Sprintf("vol-%05d", i)), Content: volume.Raw}
	}
	rig := newPlugin(t, options{Backend: func(b *volume.Backend) {
		some := testkit.Value(b.Engine.Create(context.Background(), volume.CreateRequest{Name: "x", Content: volume.Raw}))(t)
		for i := range many {
			many[i].Locator = some.Locator
		}
		b.Engine = listEngine{b.Engine, many}
	}})
	if got := listAll(t, rig, 0, func([]string) {}); len(got) != len(many) || got[0] != "vol-00000" || !slices.IsSorted(got) {
		t.Errorf("got %d volumes, want %d", len(got), len(many))
	}
}

type listEngine struct {
	volume.Engine
	all []volume.Volume
}

func (e listEngine) List(_ context.Context, after volume.ID, limit int) ([]volume.Volume, error) {
	from, _ := slices.BinarySearchFunc(e.all, after+"\x00", func(v volume.Volume, id volume.ID) int {
		if v.ID < id {
			return -1
		}
		return 1
	})
	return e.all[from:min(from+limit, len(e.all))], nil
}

func TestSnapshots(t *testing.T) {
	rig := newPlugin(t, options{})
	ctx, c := t.Context(), rig.Controller
	a, b := rig.MustCreate(t, "a", mountCap()), rig.MustCreate(t, "b", mountCap())
	var ofA []string
	var first *spec.Snapshot
	for i := range 5 {
		s := rig.MustSnapshot(t, fmt.Sprint("a", i), a.GetVolumeId())
		ofA = append(ofA, s.GetSnapshotId())
		if i == 0 {
			first = s
		}
	}
	ofB := rig.MustSnapshot(t, "b", b.GetVolumeId())
	if !first.GetReadyToUse() || first.GetSizeBytes() != a.GetCapacityBytes() || first.GetSourceVolumeId() != a.GetVolumeId() ||
		first.GetGroupSnapshotId() != "" || !first.GetCreationTime().IsValid() || len(first.GetAccessibleTopology()) != 1 {
		t.Errorf("snapshot %v", first)
	}
	wantEqual(t, rig.MustSnapshot(t, "a0", a.GetVolumeId()), first)
	got, err := c.GetSnapshot(ctx, &spec.GetSnapshotRequest{SnapshotId: first.GetSnapshotId()})
	wantCode(t, err, codes.OK)
	wantEqual(t, got.GetSnapshot(), first)

	list := func(r *spec.ListSnapshotsRequest) (ids []string) {
		for first := true; first || r.StartingToken != ""; first = false {
			page, err := c.ListSnapshots(ctx, r)
			wantCode(t, err, codes.OK)
			for _, e := range page.GetEntries() {
				ids = append(ids, e.GetSnapshot().GetSnapshotId())
			}
			r.StartingToken = page.GetNextToken()
		}
		return ids
	}
	for name, c := range map[string]struct {
		r    *spec.ListSnapshotsRequest
		want []string
	}{
		"all":           {&spec.ListSnapshotsRequest{}, append(slices.Clone(ofA), ofB.GetSnapshotId())},
		"in pages":      {&spec.ListSnapshotsRequest{MaxEntries: 4}, append(slices.Clone(ofA), ofB.GetSnapshotId())},
		"of a in pages": {&spec.ListSnapshotsRequest{MaxEntries: 1, SourceVolumeId: a.GetVolumeId()}, ofA},
		"one":           {&spec.ListSnapshotsRequest{SnapshotId: ofA[3]}, ofA[3:4]},
		"one of b":      {&spec.ListSnapshotsRequest{SnapshotId: ofA[3], SourceVolumeId: b.GetVolumeId()}, nil},
	} {
		if got := list(c.r); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}

	_, err = c.DeleteVolume(ctx, &spec.DeleteVolumeRequest{VolumeId: a.GetVolumeId()})
	wantCode(t, err, codes.OK)
	for _, id := range append(ofA, ofA...) {
		_, err = c.DeleteSnapshot(ctx, &spec.DeleteSnapshotRequest{SnapshotId: id})
		wantCode(t, err, codes.OK)
	}
	if got := list(&spec.ListSnapshotsRequest{}); !slices.Equal(got, []string{ofB.GetSnapshotId()}) {
		t.Errorf("left: %q", got)
	}
}

// singleReads counts the reads of one volume or node.
type singleReads struct {
	csi.Grants
	count *int
}

func (g singleReads) Of(ctx context.Context, id volume.ID) ([]volume.Grant, error) {
	*g.count++
	return g.Grants.Of(ctx, id)
}

func (g singleReads) Client(ctx context.Context, node string) (volume.Client, bool, error) {
	*g.count++
	return g.Grants.Client(ctx, node)
}

// Snapshots that cannot be read are not ones that do not exist.
func TestListUnreadableSnapshots(t *testing.T) {
	rig := newPlugin(t, options{Backend: func(b *volume.Backend) { b.Snapshots = unreadableSnapshots{b.Snapshots} }})
	for _, id := range []string{"", "s"} {
		wantCode(t, testkit.Err(rig.Controller.ListSnapshots(t.Context(), &spec.ListSnapshotsRequest{SnapshotId: id})), codes.Unavailable)
	}
}

type unreadableSnapshots struct{ volume.Snapshots }

var errNoAnswer = errs.Errorf(errs.Unavailable, "the storage does not answer")

func (unreadableSnapshots) GetSnapshot(context.Context, volume.SnapshotID) (volume.Snapshot, error) {
	return volume.Snapshot{}, errNoAnswer
}

func (unreadableSnapshots) ListSnapshots(context.Context, volume.SnapshotQuery) ([]volume.Snapshot, error) {
	return nil, errNoAnswer
}

// A page reads the grants of all volumes at once: each read can be a request to
// the API server.
func TestListVolumesReadsGrantsOnce(t *testing.T) {
	count := 0
	rig := newPlugin(t, options{Grants: func(g csi.Grants) csi.Grants { return singleReads{g, &count} }})
	dualStack(t, rig.Ledger)
	for i := range 5 {
		v := rig.MustCreate(t, fmt.Sprint("v", i), mountCap())
		testkit.Must(t, testkit.Err(rig.Controller.ControllerPublishVolume(t.Context(), publishRequest(v, nodeID))))
	}
	count = 0
	for token := ""; ; {
		r := testkit.Value(rig.Controller.ListVolumes(t.Context(), &spec.ListVolumesRequest{MaxEntries: 2, StartingToken: token}))(t)
		for _, e := range r.GetEntries() {
			if nodes := e.GetStatus().GetPublishedNodeIds(); !slices.Equal(nodes, []string{nodeID}) {
				t.Errorf("%s is published to %q", e.GetVolume().GetVolumeId(), nodes)
			}
		}
		if token = r.GetNextToken(); token == "" {
			break
		}
	}
	if count != 0 {
		t.Errorf("%d reads of single volumes or nodes", count)
	}
}
