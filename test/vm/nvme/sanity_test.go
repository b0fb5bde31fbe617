package nvme

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
)

// testSanity runs csi-sanity's specs of the node service in the guest. The suite
// creates volumes through a controller, which this driver does not have:
// staticVolumes is in its place.
func (r *rig) testSanity() {
	const report = "/run/sanity.json"
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Minute)
	defer cancel()
	out, err := r.Guest.Run(ctx, "suite", "-endpoint=unix://"+socket, "-controllerendpoint=dns:///"+r.serveStaticVolumes(),
		"-mountdir="+volumes+"/sanity-mount", "-stagingdir="+volumes+"/sanity-staging",
		"-expandsize="+fmt.Sprint(64*mib), // as large as it is: only the target expands a volume
		"-ginkgo.focus=Node Service", "-ginkgo.json-report="+report, "-ginkgo.no-color")
	if err != nil {
		r.Errorf("csi-sanity: %v\n%s", err, out)
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeText, State     string
			Failure                 struct{ Message string }
		}
	}
	testkit.Must(r, json.Unmarshal([]byte(r.Read(report)), &suites))
	count := map[string]int{}
	for _, s := range suites {
		for _, one := range s.SpecReports {
			if !slices.ContainsFunc(one.ContainerHierarchyTexts, func(text string) bool { return strings.HasPrefix(text, "Node Service") }) {
				continue // also skipped
			}
			count[one.State]++
			// The suite asks the plugin itself whether it has a controller.
			noController := one.State == "skipped" && strings.Contains(one.Failure.Message, "Controller Service not provided")
			if one.State != "passed" && !noController {
				r.Errorf("csi-sanity: %v %s: %s: %s", one.ContainerHierarchyTexts, one.LeafNodeText, one.State, one.Failure.Message)
			}
		}
	}
	if count["passed"] < 25 {
		r.Errorf("csi-sanity: %v", count)
	}
	fmt.Printf("REPORT: nvme %s: csi-sanity node %v\n", r.source, count)
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
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: c.id, VolumeContext: c.context, CapacityBytes: size}}, nil
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
