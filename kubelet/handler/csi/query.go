package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/kubelet/handler/internal/instance"
	"github.com/cleatproject/cleat/kubelet/watch"
)

func queryDriver(ctx context.Context, p watch.Plugin) (d Driver, err error) {
	conn, err := instance.Client(p.Endpoint)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	identity := spec.NewIdentityClient(conn)
	info, err := identity.GetPluginInfo(ctx, &spec.GetPluginInfoRequest{})
	if err != nil {
		return d, instance.Explain(p.Endpoint, "GetPluginInfo", err)
	}
	if info.GetName() != p.Name {
		return d, fmt.Errorf("the driver at %s reports the name %q but was registered as %q; register it under its own name, or announce the endpoint of that driver", p.Endpoint, info.GetName(), p.Name)
	}
	if err := awaitReady(ctx, identity, p.Endpoint); err != nil {
		return d, err
	}
	capabilities, err := identity.GetPluginCapabilities(ctx, &spec.GetPluginCapabilitiesRequest{})
	if err != nil {
		return d, instance.Explain(p.Endpoint, "GetPluginCapabilities", err)
	}
	node, err := spec.NewNodeClient(conn).NodeGetInfo(ctx, &spec.NodeGetInfoRequest{})
	if status.Code(err) == codes.Unimplemented {
		return d, fmt.Errorf("the driver at %s does not serve the node service (NodeGetInfo), so no volume can be used on this node; register the endpoint of its node service: %w", p.Endpoint, err)
	}
	if err != nil {
		return d, instance.Explain(p.Endpoint, "NodeGetInfo", err)
	}
	if node.GetNodeId() == "" {
		return d, fmt.Errorf("the driver at %s returned an empty node_id in NodeGetInfo; volumes cannot be published to this node without one", p.Endpoint)
	}
	return Driver{
		Name: p.Name, Endpoint: p.Endpoint, VendorVersion: info.GetVendorVersion(), Manifest: info.GetManifest(),
		Capabilities: capabilityNames(capabilities.GetCapabilities()), NodeID: node.GetNodeId(),
		MaxVolumes: max(0, node.GetMaxVolumesPerNode()), // the kubelet treats invalid negative values as no limit
		Topology:   node.GetAccessibleTopology().GetSegments(),
	}, nil
}

// awaitReady calls Probe until the driver is ready; a timeout has its last
// answer.
func awaitReady(ctx context.Context, identity spec.IdentityClient, path string) error {
	var last error
	for pause := (backoff.Backoff{First: 50 * time.Millisecond, Most: 2 * time.Second}); ; {
		answer, err := identity.Probe(ctx, &spec.ProbeRequest{})
		switch {
		case err == nil && (answer.GetReady() == nil || answer.GetReady().GetValue()):
			return nil
		case err == nil:
			last = errors.New("call of Probe returned ready = false")
		case status.Code(err) == codes.FailedPrecondition:
			last = err
		case last == nil || status.Code(err) != codes.DeadlineExceeded && ctx.Err() == nil:
			return instance.Explain(path, "Probe", err)
		}
		if pause.Wait(ctx) != nil {
			return fmt.Errorf("the driver at %s did not become ready: %w: %w", path, ctx.Err(), last)
		}
	}
}

func capabilityNames(list []*spec.PluginCapability) []string {
	all := []string{}
	for _, c := range list {
		switch {
		case c.GetService() != nil:
			all = append(all, c.GetService().GetType().String())
		case c.GetVolumeExpansion() != nil:
			all = append(all, "VolumeExpansion_"+c.GetVolumeExpansion().GetType().String())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
