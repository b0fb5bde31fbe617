package driver

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/endpoint"
	"github.com/cleatproject/cleat/fence/enforce"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/fence/service"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/linux/netaddr"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// busyTimeout is the wait for another call on the same object.
const busyTimeout = 3 * time.Second

// driver is a process of a Program.
type driver struct {
	server.Server
	program                            Program
	engines                            []choice
	engineName                         string
	engine                             Engine // the one of --engine
	nodeID, driverName                 string
	services                           string
	addonsEndpoint                     string
	nodeAddresses                      []string
	addresses                          []netip.Addr // nodeAddresses parsed
	registrationDir, announcedEndpoint string
	fencing                            endpoint.Endpoint
	election                           election

	process    *Process
	operations *op.Operations
	ledger     *ledger.Ledger
	backend    volume.Backend // empty without the controller service
	background []task
	node       *csi.Node     // nil without the node service
	manager    *node.Manager // likewise
}

// task runs beside the services.
type task struct {
	name string
	run  func(ctx context.Context) error
}

// Assemble implements server.Program.
func (d *driver) Assemble(ctx context.Context) error {
	d.operations = op.New(context.WithoutCancel(ctx), busyTimeout, op.OnPanic(func(ctx context.Context, e *op.PanicError) {
		d.Panicked(ctx, "operation", e.Value, e.Stack)
	}))
	d.Status("csi", func(context.Context) (any, error) { return d.settings(), nil })
	if d.election.isSet() {
		d.AddTelemetry() // also while it waits
		if err := d.election.add(d); err != nil {
			return err
		}
		d.AddState(d.openState)
	} else {
		d.AddState(d.openState)
		d.AddTelemetry()
	}
	d.Add(server.Part{Name: "trim", Run: func(ctx context.Context) error {
		if d.node == nil {
			return nil
		}
		return d.node.RunTrims(ctx)
	}})
	d.Add(server.Part{Name: "background", Run: d.runBackground})
	if d.fencesServed() {
		d.fencing.AddParts(ctx, &d.Server, d.addonsEndpoint, service.Config{Offer: d.fenceOffer(), Client: d.client})
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
			"services", d.services, "engine", d.engine.Name, "pool", d.engine.describe(), "version", d.program.Version},
	})
	if d.registrationDir == "" {
		return nil
	}
	return d.addRegistrar() // last: the kubelet calls CSI right after GetInfo
}

// runBackground runs what openState has added.
func (d *driver) runBackground(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, t := range d.background {
		g.Go(func() error {
			if err := t.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (d *driver) addRegistrar() error {
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
	d.Check("registration", r.Check)
	d.Status("registration", func(context.Context) (any, error) { return r.Status(), nil })
	d.Add(server.Part{Name: "registration", Run: r.Serve, Stop: r.Stop})
	return d.Metrics.Register(r.Collector())
}

// openState opens ledger, engine and node manager, which recover incomplete
// operations before anything is served.
func (d *driver) openState(ctx context.Context) error {
	if err := d.openController(ctx); err != nil {
		return err
	}
	d.Check("csi", d.healthy)
	d.Status("csi", d.status)
	if d.fencesServed() {
		// Local files have no remote sessions: refusing grants suffices.
		c := enforce.Config{Ledger: d.ledger}
		if d.backend.Fencer != nil {
			c.Locals = append(c.Locals, enforce.Local{Name: d.engine.Name, Fencer: d.backend.Fencer, Deferred: true})
			c.Network = ownNetwork
		}
		c.Boots = d.process.Boots
		if err := d.fencing.Restore(ctx, &d.Server, c); err != nil {
			return err
		}
		d.Check("fences", d.fencing.Enforcer.Check)
		d.Status("fences", func(ctx context.Context) (any, error) { return d.fencing.Enforcer.Status(ctx) })
	}
	if d.process.Deployment.Services.Node {
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
func (d *driver) openController(ctx context.Context) error {
	if !d.process.Deployment.Services.Controller {
		file, err := d.process.OpenFile(ctx, "fences")
		if err == nil {
			_, err = d.process.UseState(ctx, file)
		}
		return err
	}
	b, err := d.engine.Open(ctx, d.process)
	if err != nil {
		return err
	}
	if d.ledger == nil {
		return errs.Errorf(errs.Internal, "engine %s has opened no state for grants and fences: Engine.Open calls UseState", d.engine.Name)
	}
	d.backend = b
	return d.engine.checkBackend(b, d.process.Deployment)
}

func (d *driver) openNode(ctx context.Context) error {
	c := node.Config{Store: filepath.Join(d.StateDir, "node.db"), Private: []string{d.StateDir}, Logger: d.Logger}
	if d.engine.Node != nil {
		if err := d.engine.Node(ctx, d.process, &c); err != nil {
			return err
		}
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
	} else if len(d.process.Deployment.Topology) > 0 {
		d.Logger.Info("topology of this node", "segments", d.process.Deployment.Topology)
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
	d.node = csi.NewNode(csi.NodeConfig{
		Manager: manager, Operations: d.operations, NodeID: d.nodeID, Deployment: d.process.Deployment, InlineParameters: inlineParameters,
		Admission: admission{d.ledger, d.process.Admit}, Client: d.self, Named: d.named, Logger: d.Logger,
	})
	return manager.Reconcile(ctx)
}

// admission admits this node to stage and publish once the engine does.
type admission struct {
	csi.Admission
	admit func(ctx context.Context) error // nil: always
}

// Enter implements csi.Admission.
func (a admission) Enter(ctx context.Context, c volume.Client) (leave func(), err error) {
	if a.admit != nil {
		if err := a.admit(ctx); err != nil {
			return nil, err
		}
	}
	return a.Admission.Enter(ctx, c)
}

func (d *driver) register(r grpc.ServiceRegistrar) error {
	spec.RegisterIdentityServer(r, d.identity())
	if d.process.Deployment.Services.Controller {
		csi.NewController(csi.ControllerConfig{
			Backend: d.backend, Deployment: d.process.Deployment, Operations: d.operations, Grants: d.ledger,
		}).Register(r)
	}
	if d.process.Deployment.Services.Node {
		spec.RegisterNodeServer(r, d.node)
	}
	return nil
}

func (d *driver) identity() *csi.Identity {
	return &csi.Identity{
		Name: d.driverName, Version: d.program.Version, Engine: d.engine.Name, Abilities: d.engine.Abilities(), Deployment: d.process.Deployment,
	}
}

// fenceOffer announces fencing only if a fence reaches every process that can
// use a volume.
func (d *driver) fenceOffer() service.Offer {
	s := d.process.Deployment.Services
	o := service.Offer{Clients: s.Node}
	switch {
	case !s.Controller:
		o.Why = "this process runs only the node service; call the process with the controller service"
	case len(d.fencing.Peers) > 0, d.engine.Fences:
		o.Fence = true
	case !s.Node:
		o.Why = "the process with the node service would not receive the fence; add it with --fence-peer, and start it with --fence-listen"
	case d.process.Deployment.PerNode:
		o.Why = "each node runs its own driver (--per-node), and the other drivers would not receive the fence; add them with --fence-peer"
	default:
		o.Fence = true
	}
	return o
}

// healthy fails if the whole storage backend is unusable.
func (d *driver) healthy(ctx context.Context) error {
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

// settings is the part of the status that is known before the state is open.
func (d *driver) settings() csi.Status {
	return csi.Status{
		Driver: d.driverName, Version: d.program.Version, Node: d.nodeID, Services: d.services,
		Engine: d.engine.Name, Pool: d.engine.describe(),
	}
}

func (d *driver) status(ctx context.Context) (any, error) {
	s := d.settings()
	s.Running = d.operations.Running()
	var err error
	switch {
	case d.manager != nil: // which knows the backend's conditions too
		s.Conditions, err = d.manager.StorageHealth(ctx)
	case d.backend.Health != nil:
		s.Conditions, err = d.backend.Health.StorageHealth(ctx)
	}
	return s, err
}
