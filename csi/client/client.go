// Package client drives any CSI 1.13 driver on this machine as an orchestrator
// does, with the calls that it announces.
//
// An orchestrator's own state is in JSON files below Config.StateDir: the name
// and request of each volume, snapshot and group created here, and each
// attachment. A file is written before its first call and removed after the
// last one, so that calls can be repeated after a crash. Secrets are never
// stored.
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// DefaultStateDir is the state directory of the cleat commands.
const DefaultStateDir = "/var/lib/cleat/client"

// Config selects a driver.
type Config struct {
	// Endpoint as unix:///run/cleat/csi/csi.sock.
	Endpoint string
	// NodeEndpoint is set if another process serves the node service.
	NodeEndpoint string
	// StateDir holds records and staging directories; empty: DefaultStateDir.
	StateDir string
	// Secrets are sent with calls that take them, and never stored.
	Secrets map[string]string
	// Patience is the time for Dial to wait for the driver; 0: 3 s.
	Patience time.Duration
	// Notice (optional) receives a line for the user when a call waits.
	Notice func(line string)
}

func (c Config) withDefaults() (Config, error) {
	c.StateDir, c.Patience = cmp.Or(c.StateDir, DefaultStateDir), cmp.Or(c.Patience, 3*time.Second)
	if c.Notice == nil {
		c.Notice = func(string) {}
	}
	var err error
	c.StateDir, err = filepath.Abs(c.StateDir) // staging paths must be absolute
	return c, err
}

// Driver is a connection to a CSI driver. It is safe for concurrent use;
// several processes can share a StateDir.
type Driver struct {
	config     Config
	state      state
	conns      []*grpc.ClientConn
	identity   csi.IdentityClient
	controller csi.ControllerClient
	group      csi.GroupControllerClient
	metadata   csi.SnapshotMetadataClient
	node       csi.NodeClient
	info       Info
	announced  map[fmt.Stringer]bool // of all services
}

// Info describes a driver. Capabilities are the specification's words, sorted.
type Info struct {
	Name       string            `json:"name"`
	Version    string            `json:"version"`
	Manifest   map[string]string `json:"manifest,omitempty"`
	Node       string            `json:"node,omitempty"`
	Topology   map[string]string `json:"topology,omitempty"`
	Plugin     []string          `json:"plugin"`
	Controller []string          `json:"controller"`
	Group      []string          `json:"group"`
	NodeRPCs   []string          `json:"nodeRPCs"`
}

// Dial connects to a driver, waits until it is ready and reads its
// capabilities.
func Dial(ctx context.Context, config Config) (*Driver, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Driver{config: config, state: state{config.StateDir}, announced: map[fmt.Stringer]bool{}}
	if err := d.start(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Driver) start(ctx context.Context) error {
	main, err := d.connect(d.config.Endpoint)
	if err != nil {
		return err
	}
	node := main
	if e := d.config.NodeEndpoint; e != "" && e != d.config.Endpoint {
		if node, err = d.connect(e); err != nil {
			return err
		}
	}
	d.identity, d.controller, d.node = csi.NewIdentityClient(main), csi.NewControllerClient(main), csi.NewNodeClient(node)
	d.group, d.metadata = csi.NewGroupControllerClient(main), csi.NewSnapshotMetadataClient(main)
	if err := d.awaitReady(ctx); err != nil {
		return fmt.Errorf("no CSI driver answers on %s (is it running? start cleat's own with: cleat csi): %w", d.config.Endpoint, err)
	}
	if err := d.queryInfo(ctx); err != nil {
		return err
	}
	return d.state.importDatabase(ctx)
}

// connect creates a connection; gRPC dials it at the first call.
func (d *Driver) connect(endpoint string) (*grpc.ClientConn, error) {
	path, err := unixsock.ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	const largest = 32 << 20 // for drivers that ignore max_entries
	conn, err := rpcdial.Unix(path, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest)), grpc.WithUnaryInterceptor(d.retry))
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	d.conns = append(d.conns, conn)
	return conn, nil
}

func (d *Driver) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.config.Patience)
	defer cancel()
	for pause := newBackoff(); ; {
		answer, err := d.identity.Probe(ctx, &csi.ProbeRequest{})
		switch {
		case err == nil && (answer.GetReady() == nil || answer.GetReady().GetValue()):
			return nil
		case err == nil:
			err = errors.New("the driver answers Probe with ready: false")
		case codeOf(err) != codes.FailedPrecondition:
			return err
		}
		if pause.Wait(ctx) != nil {
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

func (d *Driver) queryInfo(ctx context.Context) error {
	info, err := d.identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return err
	}
	if info.GetName() == "" {
		return errs.Errorf(errs.Unavailable, "the driver on %s answers GetPluginInfo without a name", d.config.Endpoint)
	}
	d.info = Info{Name: info.GetName(), Version: info.GetVendorVersion(), Manifest: info.GetManifest()}
	plugin, err := d.identity.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return err
	}
	for _, c := range plugin.GetCapabilities() {
		switch {
		case c.GetService() != nil:
			d.announce(&d.info.Plugin, "", c.GetService().GetType())
		case c.GetVolumeExpansion() != nil:
			d.announce(&d.info.Plugin, "VolumeExpansion_", c.GetVolumeExpansion().GetType())
		}
	}
	for _, ask := range []func(context.Context) error{d.queryController, d.queryGroup, d.queryNode} {
		// Another process can serve an announced service.
		if err := ask(ctx); err != nil && codeOf(err) != codes.Unimplemented {
			return err
		}
	}
	for _, words := range [][]string{d.info.Plugin, d.info.Controller, d.info.Group, d.info.NodeRPCs} {
		slices.Sort(words)
	}
	return nil
}

func (d *Driver) announce(words *[]string, prefix string, capability fmt.Stringer) {
	d.announced[capability] = true
	name := capability.String()
	if capability == controllerVolumeCondition || capability == nodeVolumeCondition {
		name = "VOLUME_CONDITION"
	}
	*words = append(*words, prefix+name)
}

func (d *Driver) queryController(ctx context.Context) error {
	if !d.announced[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		return nil
	}
	answer, err := d.controller.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	for _, c := range answer.GetCapabilities() {
		d.announce(&d.info.Controller, "", c.GetRpc().GetType())
	}
	return err
}

func (d *Driver) queryGroup(ctx context.Context) error {
	if !d.announced[csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE] {
		return nil
	}
	answer, err := d.group.GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{})
	for _, c := range answer.GetCapabilities() {
		d.announce(&d.info.Group, "", c.GetRpc().GetType())
	}
	return err
}

func (d *Driver) queryNode(ctx context.Context) error {
	answer, err := d.node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return err
	}
	for _, c := range answer.GetCapabilities() {
		d.announce(&d.info.NodeRPCs, "", c.GetRpc().GetType())
	}
	node, err := d.node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	d.info.Node, d.info.Topology = node.GetNodeId(), node.GetAccessibleTopology().GetSegments()
	return err
}

// Close closes the connections.
func (d *Driver) Close() error {
	var errs []error
	for _, c := range d.conns {
		errs = append(errs, c.Close())
	}
	d.conns = nil
	return errors.Join(errs...)
}

// Info returns the driver's identity and capabilities.
func (d *Driver) Info() Info { return d.info }

func (d *Driver) need(what string, capability fmt.Stringer) error {
	if d.announced[capability] {
		return nil
	}
	return errs.Errorf(errs.Unsupported, "driver %s cannot %s: it does not announce %s", d.info.Name, what, capability)
}

// topologyRequirement requires accessibility from this node; nil without
// topology.
func (d *Driver) topologyRequirement() *csi.TopologyRequirement {
	if !d.announced[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS] || len(d.info.Topology) == 0 {
		return nil
	}
	t := []*csi.Topology{{Segments: d.info.Topology}}
	return &csi.TopologyRequirement{Requisite: t, Preferred: t}
}
