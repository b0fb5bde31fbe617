// Package client drives any CSI 1.13 driver on this machine as an orchestrator
// does: it uses what the driver announces and nothing else, and walks the steps
// of attach and detach that this driver has.
//
// What the driver can answer is asked from the driver. What only an orchestrator
// knows lies in small JSON files below Config.StateDir: the name and request of
// each volume, snapshot and group that was created here, and, beside its staging
// directory, each attachment. A file is written before the call that it belongs
// to and removed after the last one, so that every call can be repeated, also
// after a crash of the client; secrets are in none of them.
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

// Config says which driver to use, and how.
type Config struct {
	// Endpoint of the driver, as unix:///run/cleat/csi/csi.sock.
	Endpoint string
	// NodeEndpoint is set where another process serves the node service.
	NodeEndpoint string
	// StateDir holds records and staging directories; empty is DefaultStateDir. It
	// is created when needed.
	StateDir string
	// Secrets go with every call that takes secrets. They are never stored.
	Secrets map[string]string
	// Patience is how long Dial waits for a driver that does not answer yet,
	// 3 s when zero.
	Patience time.Duration
	// Notice, when set, receives a line for the user when a call has to wait.
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

// Driver is a CSI driver. It can be used by several goroutines, and several
// processes can share a StateDir.
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
	announced  map[fmt.Stringer]bool // capabilities of all services, as the enums of the specification
}

// Info is a driver as it describes itself. The capabilities are the
// specification's own words, sorted.
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

// Dial connects to a driver, waits for it to be ready and asks what it can do.
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
	if err := d.askInfo(ctx); err != nil {
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
	const largest = 32 << 20 // a page of a driver that ignores max_entries
	conn, err := rpcdial.Unix(path, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest)), grpc.WithUnaryInterceptor(d.retry))
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	d.conns = append(d.conns, conn)
	return conn, nil
}

// awaitReady probes until the driver is ready, for Config.Patience.
func (d *Driver) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.config.Patience)
	defer cancel()
	for backoff := newBackoff(); ; {
		answer, err := d.identity.Probe(ctx, &csi.ProbeRequest{})
		switch {
		case err == nil && (answer.GetReady() == nil || answer.GetReady().GetValue()):
			return nil
		case err == nil:
			err = errors.New("the driver answers Probe with ready: false")
		case codeOf(err) != codes.FailedPrecondition:
			return err
		}
		if !backoff.wait(ctx) {
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// askInfo reads identity and capabilities, once.
func (d *Driver) askInfo(ctx context.Context) error {
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
	for _, ask := range []func(context.Context) error{d.askController, d.askGroup, d.askNode} {
		// A service can be announced for the plugin and be served by another process.
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
	*words = append(*words, prefix+capability.String())
}

func (d *Driver) askController(ctx context.Context) error {
	if !d.announced[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		return nil
	}
	answer, err := d.controller.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	for _, c := range answer.GetCapabilities() {
		d.announce(&d.info.Controller, "", c.GetRpc().GetType())
	}
	return err
}

func (d *Driver) askGroup(ctx context.Context) error {
	if !d.announced[csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE] {
		return nil
	}
	answer, err := d.group.GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{})
	for _, c := range answer.GetCapabilities() {
		d.announce(&d.info.Group, "", c.GetRpc().GetType())
	}
	return err
}

func (d *Driver) askNode(ctx context.Context) error {
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

// need refuses a call whose capability the driver does not announce.
func (d *Driver) need(what string, capability fmt.Stringer) error {
	if d.announced[capability] {
		return nil
	}
	return errs.Errorf(errs.Unsupported, "driver %s cannot %s: it does not announce %s", d.info.Name, what, capability)
}

// here requires a new volume to be accessible from this node; nil where the driver
// has no topology.
func (d *Driver) topologyRequirement() *csi.TopologyRequirement {
	if !d.announced[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS] || len(d.info.Topology) == 0 {
		return nil
	}
	t := []*csi.Topology{{Segments: d.info.Topology}}
	return &csi.TopologyRequirement{Requisite: t, Preferred: t}
}
