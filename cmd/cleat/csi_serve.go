package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cleatproject/cleat/attach"
	attachfile "github.com/cleatproject/cleat/attach/file"
	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/engine/local"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	busyWait  = 3 * time.Second  // how long a call waits for another on its object
	stopBound = 25 * time.Second // a pod has 30 s by default
)

// localAbilities are what engine local offers; a process that opens no engine
// announces them all the same.
var localAbilities = csi.Abilities{Snapshots: true, Clones: true, Groups: true, Deltas: true, Modify: true, Health: true}

// driver is cleat csi put together. Its fields are set in the order in which
// start needs them, and closed in reverse.
type driver struct {
	flags      csiFlags
	deployment csi.Deployment
	logger     *slog.Logger
	registry   *prometheus.Registry
	telemetry  *server.Telemetry
	operations *op.Operations
	engine     *local.Engine
	backend    volume.Backend
	grants     *store.Store
	ledger     *ledger.Ledger
	fencing    *fencing
	machine    *attach.Machine
	server     *server.GRPC
	listener   net.Listener
	registrar  *register.Registrar // nil: none
}

func serveCSI(ctx context.Context, f csiFlags, logs io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	deployment, err := f.deployment()
	if err != nil {
		return err
	}
	logger, err := server.NewLogger(logs, f.logFormat, f.logLevel)
	if err != nil {
		return err
	}
	d := &driver{
		flags: f, deployment: deployment, logger: logger,
		registry: server.NewRegistry(server.Build{Version: release, Commit: strings.Trim(revision(), " ()")}),
	}
	d.telemetry = server.NewTelemetry(d.registry, logger)
	if err := d.begin(ctx); err != nil {
		return err
	}
	d.serveFences()
	parts := []server.Part{
		{Name: "state", Prepare: d.openState, Stop: d.closeState},
		{Name: "telemetry", Prepare: d.listenTelemetry, Start: d.telemetry.Serve, Stop: d.telemetry.Stop},
		{Name: "trim", Start: d.trim},
	}
	if f.fencesServed() {
		parts = append(parts, d.fencing.parts()...)
	}
	parts = append(parts, server.Part{Name: "csi", Prepare: d.listen, Start: d.serve, Stop: d.drain})
	if d.registrar != nil { // a host may call CSI as soon as it has asked
		parts = append(parts, server.Part{Name: "registration", Start: d.registrar.Serve, Stop: d.registrar.Stop})
	}
	return server.Run(ctx, server.Options{Logger: logger, Bound: stopBound}, parts...)
}

// openState opens engine, grants and node, each of which puts right what an
// earlier process left half done, before anything is served.
func (d *driver) openState(ctx context.Context) error {
	if err := os.MkdirAll(d.flags.stateDir, 0o700); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	err := d.openLedger(ctx)
	if err == nil && d.deployment.Services.Controller {
		err = d.openController(ctx)
	}
	if err == nil {
		err = d.restoreFences(ctx)
	}
	if err == nil && d.deployment.Services.Node {
		err = d.openNode(ctx)
	}
	if err != nil {
		return errors.Join(err, d.closeState(ctx))
	}
	return nil
}

func (d *driver) openController(ctx context.Context) error {
	var err error
	d.engine, err = local.Open(ctx, local.Config{
		Pool: d.flags.pool, Image: int64(d.flags.poolImage), StateDir: d.flags.stateDir,
		OverProvision: d.flags.overProvision, Guard: freezeGuard(), Logger: d.logger,
	})
	if err != nil {
		return err
	}
	d.backend = d.engine.Backend()
	holdsVolumes := func(ctx context.Context) (bool, error) {
		some, err := d.engine.List(ctx, "", 1)
		return len(some) > 0, err
	}
	if err := checkTopology(ctx, d.flags.stateDir, d.deployment.Topology, holdsVolumes, d.logger); err != nil {
		return err
	}
	return d.registry.Register(d.engine.Collector())
}

func (d *driver) openNode(ctx context.Context) error {
	config := attach.Config{
		Store:     filepath.Join(d.flags.stateDir, "node.db"),
		Private:   []string{d.flags.pool, d.flags.stateDir},
		Attachers: map[string]attach.Attacher{attachfile.Protocol(): attachfile.New(d.flags.pool)},
		Logger:    d.logger,
	}
	if d.engine != nil {
		config.Ephemerals, config.Grower, config.Health = d.engine, d.engine, d.engine
		config.Locate = func(ctx context.Context, id volume.ID) (access.Access, error) {
			v, err := d.engine.Get(ctx, id)
			return v.Locator, err
		}
	} else {
		d.logger.Info("topology of this node", "segments", d.deployment.Topology)
	}
	var err error
	if d.machine, err = attach.Open(ctx, config); err != nil {
		return err
	}
	if err := d.registry.Register(d.machine.Collector()); err != nil {
		return err
	}
	return d.machine.Reconcile(ctx)
}

func (d *driver) closeState(ctx context.Context) error {
	var errs []error
	if d.machine != nil {
		errs = append(errs, d.machine.Close())
	}
	if d.grants != nil {
		errs = append(errs, d.grants.Close())
	}
	if d.engine != nil {
		errs = append(errs, d.engine.Close(ctx))
	}
	return errors.Join(append(errs, d.fencing.close())...)
}

func (d *driver) listenTelemetry(ctx context.Context) error {
	d.telemetry.Check("csi", d.healthy)
	d.telemetry.Status("csi", d.status)
	if d.flags.fencesServed() {
		d.telemetry.Check("fences", d.fencing.enforcer.Check)
		d.telemetry.Status("fences", func(ctx context.Context) (any, error) { return d.fencing.enforcer.Status(ctx) })
	}
	if d.registrar != nil {
		d.telemetry.Check(registrationCheck, d.registrar.Check)
		d.telemetry.Status("registration", func(context.Context) (any, error) { return d.registrar.Status(), nil })
	}
	path, err := statusSocket(d.flags.stateDir)
	if err == nil {
		err = d.telemetry.ListenSocket(ctx, unixsock.Address{Path: path, SharedDir: true, AnyLength: true})
	}
	if err != nil { // it is a convenience: volumes do not depend on it
		d.logger.Warn("cleat csi status will not find this process", "error", err)
	}
	return d.telemetry.Listen(ctx, d.flags.metricsAddress)
}

// trim gives free blocks of mounted volumes back when their interval is over.
func (d *driver) trim(ctx context.Context) error {
	if d.machine == nil {
		<-ctx.Done()
		return nil
	}
	return d.machine.Run(ctx)
}

// begin makes what takes calls and runs them; the status tells of it from the
// first moment.
func (d *driver) begin(ctx context.Context) error {
	var err error
	d.server, err = server.NewGRPC(server.GRPCConfig{
		Logger: d.logger, Metrics: d.registry, Code: errs.Code, Secrets: []protoreflect.ExtensionType{spec.E_CsiSecret},
		Private: []protoreflect.FullName{"csi.v1.VolumeCapability.MountVolume.mount_flags"},
	})
	if err != nil {
		return err
	}
	d.operations = op.New(context.WithoutCancel(ctx), busyWait, op.OnPanic(func(ctx context.Context, e *op.PanicError) {
		d.server.Panicked(ctx, "operation", e.Value, e.Stack)
	}))
	if d.registrar, err = d.flags.registrar(d.logger, d.registry); err != nil {
		return err
	}
	d.fencing, err = newFencing(ctx, d.flags.fences, d.flags.driverName, d.logger, d.registry)
	return err
}

// listen builds the services and binds the socket; from then on callers queue.
func (d *driver) listen(ctx context.Context) error {
	d.register()
	path, err := unixsock.ParseEndpoint(d.flags.endpoint)
	if err != nil {
		return err
	}
	d.listener, err = unixsock.Listen(ctx, unixsock.Address{Path: path, Group: d.flags.socketGroup, Mode: d.flags.socketMode()})
	return err
}

// register registers the services.
func (d *driver) register() {
	spec.RegisterIdentityServer(d.server, &csi.Identity{
		Name: d.flags.driverName, Version: release, Engine: d.flags.engine, Abilities: localAbilities, Deployment: d.deployment,
	})
	if d.deployment.Services.Controller {
		csi.NewController(csi.ControllerConfig{
			Backend: d.backend, Deployment: d.deployment, Operations: d.operations, Grants: d.ledger,
		}).Register(d.server)
	}
	if d.deployment.Services.Node {
		spec.RegisterNodeServer(d.server, csi.NewNode(csi.NodeConfig{
			Machine: d.machine, Operations: d.operations, NodeID: d.flags.nodeID, Deployment: d.deployment,
			Admission: d.ledger, Client: d.self,
		}))
	}
}

func (d *driver) serve(ctx context.Context) error {
	d.logger.Info("CSI is served", "endpoint", d.flags.endpoint, "driver", d.flags.driverName, "node", d.flags.nodeID,
		"services", d.flags.services, "engine", d.flags.engine, "pool", d.flags.pool, "version", release)
	return d.server.Serve(ctx, d.listener)
}

// drain lets running calls end, then the operations whose callers went away.
func (d *driver) drain(ctx context.Context) error {
	return errors.Join(d.server.Drain(ctx), d.operations.Close(ctx))
}

// healthy fails when the storage as a whole cannot be used.
func (d *driver) healthy(ctx context.Context) error {
	if d.backend.Health == nil {
		return nil
	}
	conditions, err := d.backend.Health.StorageHealth(ctx)
	if err != nil {
		return err
	}
	for _, c := range conditions {
		if c.Severity != volume.Degraded {
			return errs.Errorf(errs.Unavailable, "%s: %s", c.Reason, c.Message)
		}
	}
	return nil
}

// status is the driver's part of /status.
func (d *driver) status(ctx context.Context) (any, error) {
	s := driverStatus{
		Driver: d.flags.driverName, Version: release, Node: d.flags.nodeID, Services: d.flags.services,
		Engine: d.flags.engine, Pool: d.flags.pool, Running: d.operations.Running(),
	}
	if d.backend.Health == nil {
		return s, nil
	}
	var err error
	s.Conditions, err = d.backend.Health.StorageHealth(ctx)
	return s, err
}
