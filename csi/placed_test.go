package csi_test

import (
	"context"
	"maps"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

var (
	zoneA = map[string]string{"example.com/zone": "a"}
	zoneB = map[string]string{"example.com/zone": "b"}
)

// placing creates volumes in the first of the requested places.
type placing struct {
	volume.Engine
	created []volume.CreateRequest
	queries []volume.CapacityQuery
}

func (p *placing) Create(ctx context.Context, r volume.CreateRequest) (volume.Volume, error) {
	p.created = append(p.created, r)
	places := r.Topology
	r.Topology = nil // the reference engine has no places
	v, err := p.Engine.Create(ctx, r)
	if len(places) > 0 {
		v.Topology = places[0]
	}
	return v, err
}

func (p *placing) Capacity(ctx context.Context, q volume.CapacityQuery) (volume.Capacity, error) {
	p.queries = append(p.queries, q)
	return p.Engine.Capacity(ctx, volume.CapacityQuery{Content: q.Content, FSType: q.FSType, Parameters: q.Parameters})
}

func newPlaced(t *testing.T) (*plugin, *placing) {
	t.Helper()
	p := &placing{}
	return newPlugin(t, options{
		Deployment: &csi.Deployment{Services: csi.Services{Controller: true}, ControllerPublish: true, MultiNode: true, PlacedVolumes: true},
		Backend: func(b *volume.Backend) {
			p.Engine = b.Engine
			b.Engine, b.MultiNode, b.FormatOnNode = p, true, true
		},
	}), p
}

// An engine with several places gets the requested ones, the preferred ones
// first, and the answer has that of the volume.
func TestPlacedVolumes(t *testing.T) {
	rig, engine := newPlaced(t)
	a, b := &spec.Topology{Segments: zoneA}, &spec.Topology{Segments: zoneB}
	r := createRequest("b", blockCap())
	r.AccessibilityRequirements = &spec.TopologyRequirement{Requisite: []*spec.Topology{a, b}, Preferred: []*spec.Topology{b}}
	v := testkit.Value(rig.Controller.CreateVolume(t.Context(), r))(t).GetVolume()
	wantEqual(t, v.GetAccessibleTopology()[0], b)
	everywhere := rig.MustCreate(t, "everywhere", blockCap())
	if len(everywhere.GetAccessibleTopology()) != 0 {
		t.Errorf("a volume without a place is accessible from %v", everywhere.GetAccessibleTopology())
	}
	var got [][]map[string]string
	for _, r := range engine.created {
		got = append(got, r.Topology)
	}
	if diff := cmp.Diff([][]map[string]string{{zoneB, zoneA, zoneB}, nil}, got); diff != "" {
		t.Errorf("places (-want +got):\n%s", diff)
	}
	for name, bad := range map[string]*spec.TopologyRequirement{
		"empty":                    {},
		"key":                      {Requisite: []*spec.Topology{{Segments: map[string]string{"a b": "c"}}}},
		"preferred, not requisite": {Requisite: []*spec.Topology{a}, Preferred: []*spec.Topology{b}},
	} {
		r := createRequest("bad", blockCap())
		r.AccessibilityRequirements = bad
		_, err := rig.Controller.CreateVolume(t.Context(), r)
		t.Log(name, err)
		wantCode(t, err, codes.InvalidArgument)
	}
	snap := testkit.Value(rig.Controller.CreateSnapshot(t.Context(), &spec.CreateSnapshotRequest{Name: "s", SourceVolumeId: v.GetVolumeId()}))(t).GetSnapshot()
	if len(snap.GetAccessibleTopology()) != 0 {
		t.Errorf("snapshots announce no topology, but this has %v", snap.GetAccessibleTopology())
	}
}

func TestCapacityOfAPlace(t *testing.T) {
	rig, engine := newPlaced(t)
	r := &spec.GetCapacityRequest{AccessibleTopology: &spec.Topology{Segments: zoneA}}
	if c := testkit.Value(rig.Controller.GetCapacity(t.Context(), r))(t); c.GetAvailableCapacity() == 0 {
		t.Error("no capacity")
	}
	if q := engine.queries; len(q) != 1 || !maps.Equal(q[0].Topology, zoneA) {
		t.Errorf("queries %+v, want one of zone a", q)
	}
	r.AccessibleTopology.Segments = map[string]string{"a b": "c"}
	_, err := rig.Controller.GetCapacity(t.Context(), r)
	wantCode(t, err, codes.InvalidArgument)
}

// The topology of the node of a process is not that of the volumes.
func TestServicesOfPlacedVolumes(t *testing.T) {
	for _, topology := range []map[string]string{nil, zoneA} {
		d := csi.Deployment{
			Services: csi.Services{Controller: true, Node: true}, ControllerPublish: true, MultiNode: true, PlacedVolumes: true, Topology: topology,
		}
		testkit.Must(t, d.Check())
		i := csi.Identity{Abilities: csi.Abilities{Snapshots: true}, Deployment: d}
		var services []string
		for _, c := range testkit.Value(i.GetPluginCapabilities(t.Context(), &spec.GetPluginCapabilitiesRequest{}))(t).GetCapabilities() {
			if s := c.GetService(); s != nil {
				services = append(services, s.GetType().String())
			}
		}
		if diff := cmp.Diff([]string{"CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"}, services); diff != "" {
			t.Errorf("topology %v, services (-want +got):\n%s", topology, diff)
		}
	}
	d := csi.Deployment{Services: csi.Services{Controller: true}, PlacedVolumes: true}
	if err := d.Check(); errs.KindOf(err) != errs.Invalid {
		t.Errorf("volumes of one node that are placed: %v", err)
	}
}
