// Package plugin is the SR-IOV device plugin: it offers the node's functions to
// the kubelet (device plugin API v1beta1), as upstream's configuration says,
// and withdraws them when their holder is lost.
//
// A monitor (internal/monitor) guards the gate.Gate. Calls and streams step it on
// their own goroutines and wait for what they need; scans, registrations and
// PodResources queries run on goroutines that the gate starts (driver.go).
package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/internal/monitor"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// Config configures a Plugin.
type Config struct {
	ConfigFile string // upstream's config.json
	Prefix     string // of resources without one
	Strict     bool   // probable mistakes are errors

	Controlled bool          // offer nothing without a holder
	Bound      time.Duration // timeout of a withdrawal; 0: default of gate
	LinkHealth bool          // a function whose link is down is unhealthy

	Discovery inventory.DiscoverConfig
	// Watch calls changed when a scan might find changes. Nil: periodic scans
	// only.
	Watch    func(ctx context.Context, changed func()) error
	Interval time.Duration // 0: one minute

	Registrar Registrar
	// For the sockets of resources.
	EndpointDir string
	// Socket names begin with a dot, for an EndpointDir that the plugin watcher
	// watches.
	Hidden bool
	// Restarts calls started after each start of the kubelet. Nil: the
	// Registrar handles restarts.
	Restarts func(ctx context.Context, started func()) error

	Pods   Pods   // nil: holders are unknown
	Memory Memory // nil: not recorded
	Files  inventory.DeviceFiles
	CDI    bool // containers get devices by CDI

	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Pods queries PodResources; podresources.Client implements it.
type Pods interface {
	Held(ctx context.Context) ([]podresources.Holder, error)
	Offered(ctx context.Context) (map[string][]string, error)
}

// Registrar registers resources with the kubelet.
type Registrar interface {
	// Register returns when the kubelet has accepted. It is called again when
	// the kubelet has lost the resource.
	Register(ctx context.Context, r Registration) error
	// Forget removes what Register created.
	Forget(ctx context.Context, resource string) error
}

// Registration registers a resource.
type Registration struct {
	Resource string
	Endpoint string
	Options  *v1beta1.DevicePluginOptions
}

// Plugin is the device plugin. Call Stop before the context of Run ends.
type Plugin struct {
	cfg      Config
	logger   *slog.Logger
	metrics  *metrics
	settings inventory.AllocateSettings

	monitor  *monitor.Monitor
	loaded   atomic.Pointer[loaded]
	loading  sync.Mutex
	newest   string // last valid configuration; guarded by loading
	lastRead string // last configuration; guarded by loading
	found    atomic.Pointer[scanResult]
	status   atomic.Pointer[gate.Status]
	problems problems
	notices  problems // for logging

	began   atomic.Bool
	running sync.WaitGroup

	// Of the running scan.
	warned  []string
	holders lastHolders

	// Guarded by the monitor.
	ctx         context.Context
	gate        *gate.Gate
	endpoints   map[string]*endpoint
	scans       scans
	podsQueries podsQueries
	audits      audits
}

// New reads the configuration, which must be valid, and changes nothing.
func New(c Config) (*Plugin, error) {
	if c.Registrar == nil || c.EndpointDir == "" {
		return nil, errors.New("the device plugin requires Registrar and EndpointDir")
	}
	c.Interval = cmp.Or(c.Interval, time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Plugin{
		cfg: c, logger: c.Logger, endpoints: map[string]*endpoint{}, scans: scans{running: true}, audits: audits{foreign: map[string]*gate.Stream{}},
		settings: inventory.AllocateSettings{CDI: c.CDI, Exists: inventory.DeviceNodes{Sysfs: c.Discovery.Sysfs, Dev: c.Discovery.Dev}.Exists},
	}
	p.gate = gate.New(gate.Config{Controlled: c.Controlled, WithdrawTimeout: c.Bound}, driver{p})
	p.monitor = monitor.New(p.next, p.tick)
	p.status.Store(p.gate.Status())
	var err error
	if p.metrics, err = newMetrics(c.Metrics, p); err != nil {
		return nil, err
	}
	l, err := p.load()
	if err != nil {
		return nil, err
	}
	p.use(l)
	return p, nil
}

// Run serves until Stop or the end of ctx, once.
func (p *Plugin) Run(ctx context.Context) error {
	if p.began.Swap(true) {
		return errors.New("the device plugin can run only once; create a new one")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer p.running.Wait()
	defer cancel()
	p.step(func(now time.Time) {
		p.ctx, p.scans.running = ctx, false
		p.startAudit(now)
		p.startScan()
	})
	p.running.Go(func() { p.watchConfig(ctx) })
	p.watch(ctx, "functions", p.cfg.Watch, p.Rescan)
	p.watch(ctx, "kubelet", p.cfg.Restarts, func() {
		p.logger.Info("kubelet restarted")
		p.step(p.gate.KubeletStarted)
	})
	_ = p.monitor.Await(ctx, p.gate.Exited) // ctx's error
	p.monitor.Close()
	var all sync.WaitGroup
	for _, e := range p.endpoints {
		all.Go(e.end)
	}
	all.Wait()
	return nil
}

func (p *Plugin) watch(ctx context.Context, what string, watch func(context.Context, func()) error, changed func()) {
	if watch == nil {
		return
	}
	p.running.Go(func() {
		if err := watch(ctx, changed); err != nil && ctx.Err() == nil {
			p.logger.Warn("watch failed, changes are found by the next scan", "source", what, "err", err)
			p.problems.set("watch "+what, err)
		}
	})
}

// Reload reads the configuration and scans.
func (p *Plugin) Reload() {
	p.reload()
	p.Rescan()
}

// Rescan requests a scan.
func (p *Plugin) Rescan() { p.step(p.rescan) }

// Stop withdraws all devices and waits for that.
func (p *Plugin) Stop(ctx context.Context) error {
	p.step(p.gate.Quit)
	if err := p.monitor.Await(ctx, p.gate.Exited); err != nil && !errors.Is(err, monitor.ErrClosed) {
		return fmt.Errorf("withdraw the devices: %w", ctx.Err())
	}
	return nil
}

// Check returns an error while the plugin has a problem. Waiting for a holder
// is no problem.
func (p *Plugin) Check(context.Context) error {
	if s := p.status.Load(); s.State == gate.Failed {
		return errors.New(s.Error)
	}
	return p.problems.err()
}

var errStopped = &gate.End{Code: codes.Unavailable, Reason: "the plugin is shutting down"}

func (p *Plugin) await(ctx context.Context, ready func() bool) error {
	err := p.monitor.Await(ctx, ready)
	if errors.Is(err, monitor.ErrClosed) {
		return errStopped
	}
	return err
}

// Enable holds the devices until the stream ends. For another configuration
// than the last one read, the file is read first.
func (p *Plugin) Enable(ctx context.Context, session string, c gate.Claim, send func(gate.Status) error) error {
	if newest, _ := p.hashes(); c.Hash != "" && c.Hash != newest {
		p.reload()
	}
	var s *gate.Session
	var err error = errStopped
	p.step(func(now time.Time) { s, err = p.gate.Enable(now, session, c) })
	if end, refused := err.(*gate.End); refused {
		p.logEnd(session, end)
		return end
	}
	defer p.step(func(now time.Time) { p.gate.Disconnect(now, s) })
	for last := (*gate.Status)(nil); ; {
		var end *gate.End
		err := p.await(ctx, func() bool {
			now := p.gate.Status()
			changed := now != last
			last, end = now, s.End
			return changed || end != nil
		})
		switch {
		case err != nil:
			return err
		case end != nil:
			p.logEnd(session, end)
			return end
		}
		if err := send(*last); err != nil {
			return err
		}
	}
}

// Disable withdraws the devices and waits.
func (p *Plugin) Disable(ctx context.Context, session string) (gate.Withdrawal, error) {
	var d *gate.Disabling
	p.step(func(now time.Time) { d = p.gate.Disable(now, session) })
	if d == nil {
		return gate.Withdrawal{}, errStopped
	}
	if err := p.await(ctx, func() bool { return d.Done }); err != nil {
		p.step(func(now time.Time) { p.gate.Cancel(now, d) })
		return gate.Withdrawal{}, err
	}
	return d.Withdrawal, d.Err
}

// Heartbeat renews a lease.
func (p *Plugin) Heartbeat(session string) (lease time.Duration, err error) {
	err = errStopped
	p.step(func(now time.Time) { lease, err = p.gate.Heartbeat(now, session) })
	return lease, err
}

// Status returns the status, which must not be modified.
func (p *Plugin) Status() gate.Status { return *p.status.Load() }
