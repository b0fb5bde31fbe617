package nvme

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
)

// testSanity runs csi-sanity's specs of the node service in the guest. The suite
// creates volumes through a controller, which this driver does not have:
// staticVolumes is in its place.
func (r *rig) testSanity() {
	// The suite asks the plugin itself whether it has a controller. A volume expands
	// to the size that it has: only the target expands it.
	r.Sanity(r.serveStaticVolumes(), "Controller Service not provided", "-expandsize="+fmt.Sprint(64*mib))
}

// staticVolumes is a test controller: it makes volumes at the guest's target, as
// an administrator does, and returns what would be in their PersistentVolumes.
type staticVolumes struct {
	csi.UnimplementedControllerServer
	rig  *rig
	last atomic.Int64
}

func (s *staticVolumes) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	size := r.GetCapacityRange().GetRequiredBytes()
	c := s.rig.volume(fmt.Sprintf("sanity-%d", s.last.Add(1)), "ext4", size)
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: c.ID, VolumeContext: c.Locator, CapacityBytes: size}}, nil
}

func (s *staticVolumes) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	s.rig.delete(r.GetVolumeId())
	return &csi.DeleteVolumeResponse{}, nil
}

// serveStaticVolumes returns the address for guests.
func (r *rig) serveStaticVolumes() string {
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(r)
	server := grpc.NewServer()
	csi.RegisterControllerServer(server, &staticVolumes{rig: r})
	testkit.Go(r, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, server.Stop)()
		return server.Serve(listener)
	})
	return net.JoinHostPort(vm.HostAddress, fmt.Sprint(listener.Addr().(*net.TCPAddr).Port))
}
