package csi_test

import (
	"context"
	"net/netip"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// remote makes volumes that are reached over a network.
type remote struct {
	volume.Engine
	locator access.Access
}

func (r remote) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	v, err := r.Engine.Get(ctx, id)
	v.Locator = r.locator
	return v, err
}

// TestLocatorsWithLists: a locator that holds a list is compared by what it
// says; == would panic.
func TestLocatorsWithLists(t *testing.T) {
	locator := access.NVMe{
		Transport: "tcp", NQN: "nqn.2016-06.io.spdk:a",
		Paths: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4420"), netip.MustParseAddrPort("192.0.2.2:4420")},
	}
	other := locator
	other.NQN += "b"
	rig := newPlugin(t, options{Backend: func(b *volume.Backend) { b.Engine = remote{b.Engine, locator} }})
	id := rig.MustCreate(t, "remote", blockCap()).GetVolumeId()
	for name, c := range map[string]struct {
		context map[string]string
		same    bool
		code    codes.Code
	}{
		"its own":   {access.Encode(locator), true, codes.OK},
		"another's": {access.Encode(other), false, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			valid, err := rig.Controller.ValidateVolumeCapabilities(t.Context(), &spec.ValidateVolumeCapabilitiesRequest{
				VolumeId: id, VolumeContext: c.context, VolumeCapabilities: []*spec.VolumeCapability{blockCap()},
			})
			if err != nil || (valid.GetConfirmed() != nil) != c.same {
				t.Errorf("Validate = %v, %v", valid, err)
			}
			_, err = rig.Controller.ControllerPublishVolume(t.Context(), &spec.ControllerPublishVolumeRequest{
				VolumeId: id, NodeId: nodeID, VolumeContext: c.context, VolumeCapability: blockCap(),
			})
			wantCode(t, err, c.code)
		})
	}
}
