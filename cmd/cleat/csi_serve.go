package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/enforce"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/fence/service"
	"github.com/cleatproject/cleat/internal/bootlease"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/linux/netaddr"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// busyTimeout is the wait for another call on the same object.
const busyTimeout = 3 * time.Second

// csiServer is cleat csi.
type csiServer struct {
	server.Server
	engine, nodeID, driverName         string
	services                           string
	deployment                         csi.Deployment
	addonsEndpoint                     string
	nodeAddresses                      []string
	addresses                          []netip.Addr // nodeAddresses parsed
	registrationDir, announcedEndpoint string
	fencing                            fencing
	engines                            []namedEngine
	storage                            csiEngine // the one of --engine

	operations *op.Operations
	ledger     *ledger.Ledger
	backend    volume.Backend                  // empty without the controller service
	background func(ctx context.Context) error // of the engine; nil: nothing
	attaching  func(ctx context.Context) error // of the node's attacher; nil: nothing
	boots      *bootlease.Leases               // nil: nodes do not report their boots
	reporting  func(ctx context.Context) error // of this node's boot; nil: nothing
	node       *csi.Node                       // nil without the node service
	manager    *node.Manager                   // likewise
}

// Assemble implements server.Program.
func (d *csiServer) Assemble(ctx context.Context) error {
	d.operations = op.New(context.WithoutCancel(ctx), busyTimeout, op.OnPanic(func(ctx context.Context, e *op.PanicError) {
		d.Panicked(ctx, "operation", e.Value, e.Stack)
	}))
	d.Check("csi", d.healthy)
	d.Status("csi", d.status)
	d.AddState(d.openState)
	d.AddTelemetry()
	d.Add(server.Part{Name: "trim", Run: func(ctx context.Context) error {
		if d.node == nil {
			return nil
		}
		return d.node.RunTrims(ctx)
	}})
	d.Add(optionalPart("engine", &d.background))
	d.Add(optionalPart("attacher", &d.attaching))
	d.Add(optionalPart("boot report", &d.reporting))
	if d.fencesServed() {
		d.fencing.addParts(ctx, &d.Server, d.addonsEndpoint, service.Config{Offer: d.fenceOffer(), Client: d.client})
	}
	// Operations of disconnected callers end after the calls are drained.
	d.Add(server.Part{Name: "operations", Stop: d.operations.Close})
	d.AddService(server.Service{
		Name: "csi",
		GRPC: server.GRPCConfig{
			Code: errs.Code, Secrets: []protoreflect.ExtensionType{spec.E_CsiSecret},
			Private: []protoreflect.FullName{"csi.v1.VolumeCapability.MountVolume.mount_flags"},
		},
		Register: d.register,
		Listen:   d.ListenEndpoint,
		Event:    "serving CSI",
		Attrs: []any{"endpoint", d.Endpoint, "driver", d.driverName, "node", d.nodeID,
			"services", d.services, "engine", d.engine, "pool", d.storage.describe(), "version", release},
	})
	if d.registrationDir == "" {
		return nil
	}
	return d.addRegistrar() // last: the kubelet calls CSI right after GetInfo
}

// optionalPart runs what openState sets, if it does.
func optionalPart(name string, run *func(ctx context.Context) error) server.Part {
	return server.Part{Name: name, Run: func(ctx context.Context) error {
		if *run == nil {
			return nil
		}
		return (*run)(ctx)
	}}
}

func (d *csiServer) addRegistrar() error {
	endpoint, err := unixsock.ParseEndpoint(cmp.Or(d.announcedEndpoint, d.Endpoint))
	if err != nil {
		return fmt.Errorf("--registration-endpoint: %w", err)
	}
	r, err := register.New(register.Config{
		// Every CSI driver registrar reports version 1.0.0.
		Plugin: register.Plugin{Type: register.CSI, Name: d.driverName, Endpoint: endpoint, Versions: []string{"1.0.0"}},
		Dir:    d.registrationDir, Logger: d.Logger, Metrics: d.Metrics,
	})
	if err != nil {
		return fmt.Errorf("--registration-dir: %w", err)
	}
	d.Check(registrationCheck, r.Check)
	d.Status("registration", func(context.Context) (any, error) { return r.Status(), nil })
	d.Add(server.Part{Name: "registration", Run: r.Serve, Stop: r.Stop})
	return d.Metrics.Register(r.Collector())
}

// openState opens ledger, engine and node manager, which recover incomplete
// operations before anything is served.
func (d *csiServer) openState(ctx context.Context) error {
	if err := d.openController(ctx); err != nil {
		return err
	}
	if d.fencesServed() {
		// Local files have no remote sessions: refusing grants suffices.
		c := enforce.Config{Ledger: d.ledger}
		if d.backend.Fencer != nil {
			c.Locals = append(c.Locals, enforce.Local{Name: d.engine, Fencer: d.backend.Fencer, Deferred: true})
			c.Network = ownNetwork
		}
		if d.boots != nil && d.deployment.Services.Controller {
			c.Boots = d.boots.All
		}
		if err := d.fencing.restore(ctx, &d.Server, c); err != nil {
			return err
		}
		d.Check("fences", d.fencing.enforcer.Check)
		d.Status("fences", func(ctx context.Context) (any, error) { return d.fencing.enforcer.Status(ctx) })
	}
	if d.deployment.Services.Node {
		return d.openNode(ctx)
	}
	return nil
}

// ownNetwork returns this machine's addresses: a fence over them needs force, as
// it would separate this process from its storage.
func ownNetwork(context.Context) (request.Network, error) {
	own, err := netaddr.Own()
	return request.Network{Own: own}, err
}

// openController opens ledger and engine. A process without the controller
// service has a ledger of fences only.
func (d *csiServer) openController(ctx context.Context) error {
	if d.deployment.Services.Controller {
		return d.storage.open(ctx, d)
	}
	return d.openLedger(ctx, "fences")
}

// openLedger opens a record of grants and fences in the state directory.
func (d *csiServer) openLedger(ctx context.Context, role string) error {
	file, err := d.OpenStore(ctx, role+".db", store.Options{Role: role, Version: 1, Preallocate: 4 << 20})
	if err != nil {
		return err
	}
	return d.useLedger(ctx, file)
}

// useLedger records this node as a client, unless the process runs only a
// controller of volumes that are on no particular node.
func (d *csiServer) useLedger(ctx context.Context, db store.Database) error {
	d.ledger = ledger.New(db)
	if d.deployment.MultiNode && !d.deployment.Services.Node {
		return nil
	}
	self := d.self()
	if len(self.Addrs) == 0 && d.fencesServed() {
		d.Logger.Warn("this node has no known address and cannot be fenced, set --node-address", "reason", "no default route")
	}
	return d.ledger.RecordClient(ctx, self)
}

func (d *csiServer) openNode(ctx context.Context) error {
	c := node.Config{Store: filepath.Join(d.StateDir, "node.db"), Private: []string{d.StateDir}, Logger: d.Logger}
	if err := d.storage.node(ctx, d, &c); err != nil {
		return err
	}
	var inlineParameters []string
	if engine := d.backend.Engine; engine != nil {
		c.Grower, c.Health = engine, d.backend.Health
		c.Locate = func(ctx context.Context, id volume.ID) (access.Access, error) {
			v, err := engine.Get(ctx, id)
			return v.Locator, err
		}
		if !d.backend.FormatOnNode {
			c.FSType = func(ctx context.Context, id volume.ID) (string, error) {
				v, err := engine.Get(ctx, id)
				return v.FSType, err
			}
		}
		if !d.backend.MultiNode {
			c.Inline, inlineParameters = engine, d.backend.Parameters
		}
	} else if len(d.deployment.Topology) > 0 {
		d.Logger.Info("topology of this node", "segments", d.deployment.Topology)
	}
	manager, err := node.Open(ctx, c)
	if err != nil {
		return err
	}
	d.manager = manager
	d.OnClose(func(context.Context) error { return manager.Close() })
	if err := d.Metrics.Register(manager.Collector()); err != nil {
		return err
	}
	admission, err := d.bootAdmission(manager)
	if err != nil {
		return err
	}
	d.node = csi.NewNode(csi.NodeConfig{
		Manager: manager, Operations: d.operations, NodeID: d.nodeID, Deployment: d.deployment, InlineParameters: inlineParameters,
		Admission: admission, Client: d.self, Named: d.named, Logger: d.Logger,
	})
	return manager.Reconcile(ctx)
}

func (d *csiServer) register(r grpc.ServiceRegistrar) error {
	spec.RegisterIdentityServer(r, &csi.Identity{
		Name: d.driverName, Version: release, Engine: d.engine, Abilities: d.storage.abilities(), Deployment: d.deployment,
	})
	if d.deployment.Services.Controller {
		csi.NewController(csi.ControllerConfig{
			Backend: d.backend, Deployment: d.deployment, Operations: d.operations, Grants: d.ledger,
		}).Register(r)
	}
	if d.deployment.Services.Node {
		spec.RegisterNodeServer(r, d.node)
	}
	return nil
}

// fenceOffer announces fencing only if a fence reaches every process that can
// use a volume.
func (d *csiServer) fenceOffer() service.Offer {
	s := d.deployment.Services
	o := service.Offer{Clients: s.Node}
	switch {
	case !s.Controller:
		o.Why = "this process runs only the node service; call the process with the controller service"
	case len(d.fencing.peers) > 0, d.storage.enforcesFences():
		o.Fence = true
	case !s.Node:
		o.Why = "the process with the node service would not receive the fence; add it with --fence-peer, and start it with --fence-listen"
	case d.deployment.PerNode:
		o.Why = "each node runs its own driver (--per-node), and the other drivers would not receive the fence; add them with --fence-peer"
	default:
		o.Fence = true
	}
	return o
}

// self has all addresses that a connection of this node to the storage can have: a
// fence of the node must cover them.
func (d *csiServer) self() volume.Client {
	return d.clientWith(netaddr.OnLinks)
}

// named has the addresses of the node id, which do not rotate.
func (d *csiServer) named() volume.Client {
	if len(d.addresses) > 0 {
		return volume.Client{Node: d.nodeID, Addrs: d.addresses}
	}
	return d.clientWith(netaddr.Stable)
}

// clientWith derives addresses from those of --node-address or the default routes.
func (d *csiServer) clientWith(derive func(sources []netip.Addr) ([]netip.Addr, error)) volume.Client {
	c := volume.Client{Node: d.nodeID, Addrs: d.addresses}
	var err error
	if len(c.Addrs) == 0 {
		c.Addrs, err = netaddr.Preferred()
	}
	if err == nil {
		var derived []netip.Addr
		if derived, err = derive(c.Addrs); err == nil {
			c.Addrs = derived
		}
	}
	switch n := len(c.Addrs); {
	case err != nil:
		d.Logger.Warn("node addresses unknown, set --node-address", "err", err)
	case n > ledger.MaxAddrs:
		d.Logger.Warn("too many node addresses, a fence covers only a part, set --node-address", "count", n, "limit", ledger.MaxAddrs)
		c.Addrs = c.Addrs[:ledger.MaxAddrs]
	}
	return c
}

// checkNodeID refuses names and addresses that cannot be a CSI node id.
func (d *csiServer) checkNodeID() error {
	if len(d.addresses) == 0 || !d.deployment.Services.Node {
		return nil
	}
	if _, err := csi.FormatNodeID(d.named()); err != nil {
		return fmt.Errorf("--node-id and --node-address: %w", err)
	}
	return nil
}

func (d *csiServer) client(ctx context.Context) (volume.Client, error) {
	if err := d.ledger.RecordClient(ctx, d.self()); err != nil {
		return volume.Client{}, err
	}
	c, _, err := d.ledger.Client(ctx, d.nodeID)
	return c, err
}

// healthy fails if the whole storage backend is unusable.
func (d *csiServer) healthy(ctx context.Context) error {
	if d.backend.Health == nil {
		return nil
	}
	conditions, err := d.backend.Health.StorageHealth(ctx)
	if err != nil {
		return err
	}
	for _, c := range conditions {
		if c.Severity == volume.Inaccessible || c.Severity == volume.DataLoss {
			return errs.Errorf(errs.Unavailable, "%s: %s", c.Reason, c.Message)
		}
	}
	return nil
}

func (d *csiServer) status(ctx context.Context) (any, error) {
	s := driverStatus{
		Driver: d.driverName, Version: release, Node: d.nodeID, Services: d.services,
		Engine: d.engine, Pool: d.storage.describe(), Running: d.operations.Running(),
	}
	var err error
	switch {
	case d.manager != nil: // which knows the backend's conditions too
		s.Conditions, err = d.manager.StorageHealth(ctx)
	case d.backend.Health != nil:
		s.Conditions, err = d.backend.Health.StorageHealth(ctx)
	}
	return s, err
}
