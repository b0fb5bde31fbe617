package csi_test

import (
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/volume"
)

// TestSourceInAnotherPool restores and clones on the wrong node. With one
// driver per node, external-provisioner gives a claim back to the scheduler
// only when CreateVolume answers RESOURCE_EXHAUSTED.
func TestSourceInAnotherPool(t *testing.T) {
	const (
		own   = "7d1f5a52-3c77-4d43-8a1e-0123456789ab"
		other = "7d1f5a52-3c77-4d43-8a1e-ba9876543210"
	)
	perNode := csi.Deployment{Services: csi.Services{Controller: true}, PerNode: true}
	inOwnPool := func(b *volume.Backend) { b.Pool = own }
	nodes := newPlugin(t, options{Deployment: &perNode, Backend: inOwnPool})
	single := newPlugin(t, options{Backend: inOwnPool})
	for name, c := range map[string]struct {
		snapshot, volume string // ids
		want             codes.Code
	}{
		"of this pool, deleted":     {string(volume.NewSnapshotID(own)), string(volume.NewID(own)), codes.NotFound},
		"of another pool":           {string(volume.NewSnapshotID(other)), string(volume.NewID(other)), codes.ResourceExhausted},
		"of an id without pool":     {string(volume.NewSnapshotID("")), string(volume.NewID("")), codes.ResourceExhausted},
		"of an id that is not ours": {"fake-snap-id", "vol-0", codes.NotFound},
	} {
		for kind, source := range map[string]*spec.VolumeContentSource{
			"snapshot": {Type: &spec.VolumeContentSource_Snapshot{Snapshot: &spec.VolumeContentSource_SnapshotSource{SnapshotId: c.snapshot}}},
			"volume":   {Type: &spec.VolumeContentSource_Volume{Volume: &spec.VolumeContentSource_VolumeSource{VolumeId: c.volume}}},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				req := createRequest("from "+kind+" "+name, mountCap())
				req.VolumeContentSource = source
				_, err := nodes.Controller.CreateVolume(t.Context(), req)
				wantCode(t, err, c.want)
				if text := status.Convert(err).Message(); c.want == codes.ResourceExhausted && !strings.Contains(text, own) {
					t.Errorf("%q does not say which pool was searched", text)
				}
				_, err = single.Controller.CreateVolume(t.Context(), req)
				wantCode(t, err, codes.NotFound)
			})
		}
	}
}
