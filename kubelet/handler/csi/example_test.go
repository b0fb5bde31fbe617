package csi_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/kubelet/handler/csi"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// disks implements the part of a CSI driver that registration needs.
type disks struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedNodeServer
}

func (disks) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: "disks.example.com"}, nil
}

func (disks) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{}, nil
}

func (disks) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	return &spec.GetPluginCapabilitiesResponse{}, nil
}

func (disks) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	return &spec.NodeGetInfoResponse{NodeId: "rack-7"}, nil
}

// A plugin host would call Register; this example calls it directly.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	socket := filepath.Join(dir, "csi.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	spec.RegisterIdentityServer(server, disks{})
	spec.RegisterNodeServer(server, disks{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	ctx := context.Background()
	drivers := csi.New(csi.Options{})
	p := watch.Plugin{Type: csi.Type, Name: "disks.example.com", Endpoint: socket, Versions: []string{"1.0.0", "1.13.0"}}
	if err := drivers.Register(ctx, p); err != nil {
		log.Fatal(err)
	}
	d, found := drivers.Driver("disks.example.com")
	fmt.Println(found, d.NodeID, d.Contract, d.Endpoint == socket)

	p.Endpoint = "unix://" + socket
	fmt.Println(drivers.Validate(ctx, p) != nil)
	// Output:
	// true rack-7 1.13.0 true
	// true
}
