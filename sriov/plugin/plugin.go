// Package plugin is the SR-IOV device plugin: it offers the node's functions to
// the kubelet (device plugin API v1beta1) as configured by the upstream
// plugin's configuration, and withdraws them as soon as their holder is lost.
//
// One event loop (internal/actor) owns the gate.Gate and every gate.Resource.
// Calls, scans, registrations and PodResources queries run on their own
// goroutines and send their result to the loop as an event.
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

	"github.com/cleatproject/cleat/internal/actor"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// Config configures a Plugin.
type Config struct {
	ConfigFile string // upstream's config.json
	Prefix     string // of resources without a resourcePrefix
	Strict     bool   // reject a configuration with probable mistakes

	Controlled bool          // offer nothing without a holder
	Bound      time.Duration // timeout of a withdrawal; 0: default of gate
	LinkHealth bool          // treat a function whose link is down as unhealthy

	Discovery inventory.DiscoverConfig
	// Watch blocks and calls changed after each change that might affect a
	// scan. Nil: periodic scans only.
	Watch    func(ctx context.Context, changed func()) error
	Interval time.Duration // between periodic scans; 0: one minute

	Registrar Registrar
	// EndpointDir is the kubelet's directory for the sockets of resources.
	EndpointDir string
	// Hidden adds a leading dot to socket names, for an EndpointDir that the
	// plugin watcher watches.
	Hidden bool
	// Restarts blocks and calls started after each start of the kubelet. Nil:
	// the Registrar registers again by itself.
	Restarts func(ctx context.Context, started func()) error

	Pods   Pods                  // nil: the pods that hold devices are unknown
	Memory Memory                // nil: allocations are not recorded
	Files  inventory.DeviceFiles // for Multus and CDI
	CDI    bool                  // pass devices to containers by CDI

	Logger  *slog.Logger          // nil: no log
	Metrics prometheus.Registerer // nil: no metrics
}

// Pods queries the kubelet's PodResources; podresources.Client implements it.
type Pods interface {
	Held(ctx context.Context) ([]podresources.Holder, error)
	Offered(ctx context.Context) (map[string][]string, error)
}

// Registrar registers resources with the kubelet.
type Registrar interface {
	// Register returns nil when the kubelet has accepted the registration. It
	// is called again when the kubelet has lost the resource.
	Register(ctx context.Context, r Registration) error
	// Forget removes what Register created. The resource's server ends.
	Forget(ctx context.Context, resource string) error
}

// Registration is a registration of a resource.
type Registration struct {
	Resource string
	Endpoint string // path of the socket
	Options  *v1beta1.DevicePluginOptions
}

// Plugin is the device plugin. Call Stop before the context of Run ends.
type Plugin struct {
	cfg      Config
	logger   *slog.Logger
	metrics  *metrics
	settings inventory.AllocateSettings

	loop     *actor.Actor[event, action]
	ids      atomic.Uint64 // of calls and streams
	calls    sync.Map      // uint64: inbox; of all calls except Enable, and of ListAndWatch
	loaded   atomic.Pointer[loaded]
	loading  sync.Mutex
	newest   string // hash of the last valid configuration; guarded by loading
	lastRead string // hash of the last configuration read; guarded by loading
	found    atomic.Pointer[scanResult]
	status   atomic.Pointer[gate.Status]
	problems problems // reported by Check
	notices  problems // only for logging changes

	began   atomic.Bool
	running sync.WaitGroup

	// Owned by the running scan.
	warned  []string // warnings of the last scan
	holders lastHolders

	// Owned by the event loop.
	ctx       context.Context // of Run
	gate      *gate.Gate
	resources map[string]*resource
	sessions  map[string]inbox // of EnableDevices
	scans     scans
	questions questions
	audits    audits
}

// New returns a Plugin. It reads the configuration, which must be valid, and
// changes nothing.
func New(c Config) (*Plugin, error) {
	if c.Registrar == nil || c.EndpointDir == "" {
		return nil, errors.New("the device plugin requires Registrar and EndpointDir")
	}
	c.Interval = cmp.Or(c.Interval, time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Plugin{
		cfg: c, logger: c.Logger, loop: actor.New[event, action](),
		settings: inventory.AllocateSettings{CDI: c.CDI, Exists: inventory.DeviceNodes{Sysfs: c.Discovery.Sysfs, Dev: c.Discovery.Dev}.Exists},
		gate:     gate.New(gate.Config{Controlled: c.Controlled, WithdrawTimeout: c.Bound}), resources: map[string]*resource{},
		sessions: map[string]inbox{}, audits: audits{foreign: map[string]bool{}},
	}
	first := p.gate.Status()
	p.status.Store(&first)
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

// Run serves until Stop, or until ctx ends. It can be called once.
func (p *Plugin) Run(ctx context.Context) error {
	if p.began.Swap(true) {
		return errors.New("the device plugin can run only once; create a new one")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer p.running.Wait()
	defer cancel()
	p.ctx = ctx
	p.startAudit()
	p.running.Go(func() { p.watchConfig(ctx) })
	p.watch(ctx, "functions", p.cfg.Watch, p.Rescan)
	p.watch(ctx, "kubelet", p.cfg.Restarts, func() { p.loop.Send(kubeletStarted{}) })
	step := func(now time.Time, e event) []action { return e.handle(p, now) }
	_ = p.loop.Run(ctx, step, p.do) // returns only the error of ctx
	var all sync.WaitGroup
	for _, r := range p.resources {
		all.Go(r.stop)
	}
	all.Wait()
	return nil
}

// watch runs a watcher, if configured.
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

// Reload reads the configuration again and starts a scan.
func (p *Plugin) Reload() {
	p.reload()
	p.Rescan()
}

// Rescan requests a scan.
func (p *Plugin) Rescan() { p.loop.Send(rescan{}) }

// Stop withdraws all devices. It returns when they are withdrawn, or when ctx
// ends.
func (p *Plugin) Stop(ctx context.Context) error {
	p.loop.Send(gateEvent{Event: gate.Quit{}})
	select {
	case <-p.loop.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("withdraw the devices: %w", ctx.Err())
	}
}

// Check returns an error while the plugin has a problem. Waiting for a holder
// is not a problem.
func (p *Plugin) Check(context.Context) error {
	if s := p.status.Load(); s.State == gate.Failed {
		return errors.New(s.Error)
	}
	return p.problems.err()
}

// Plugin implements control.Plugin.
var _ control.Plugin = (*Plugin)(nil)

// Enable holds the devices with a claim until its stream ends. If the claim
// names another configuration than the last one read, the file is read again
// first.
func (p *Plugin) Enable(ctx context.Context, session string, c gate.Claim, send func(gate.Status) error) error {
	if newest, _ := p.hashes(); c.Hash != "" && c.Hash != newest {
		p.reload()
	}
	in := newInbox()
	p.loop.Send(gateEvent{Event: gate.Enable{Session: session, Claim: c}, inbox: in})
	defer p.loop.Send(gateEvent{Event: gate.StreamClosed{Session: session}})
	for {
		a, err := p.next(ctx, in)
		if err != nil {
			return err
		}
		switch a := a.(type) {
		case gate.EndStream:
			return &control.End{Code: a.Code, Reason: a.Reason}
		case gate.Publish:
			if err := send(a.Status); err != nil {
				return err
			}
		}
	}
}

// Disable withdraws the devices and waits for the result.
func (p *Plugin) Disable(ctx context.Context, session string) (gate.DisableReply, error) {
	id, in, end := p.call()
	defer end()
	p.loop.Send(gateEvent{Event: gate.Disable{Call: id, Session: session}})
	a, err := p.next(ctx, in)
	if err != nil {
		p.loop.Send(gateEvent{Event: gate.DisableCanceled{Call: id}})
		return gate.DisableReply{}, err
	}
	return a.(gate.DisableReply), nil // no other action is sent to this call
}

// Heartbeat renews a lease.
func (p *Plugin) Heartbeat(ctx context.Context, session string, at time.Time) (time.Duration, error) {
	id, in, end := p.call()
	defer end()
	p.loop.Send(gateEvent{at: at, Event: gate.Heartbeat{Call: id, Session: session}})
	a, err := p.next(ctx, in)
	if err != nil {
		return 0, err
	}
	b := a.(gate.HeartbeatReply) // no other action is sent to this call
	if b.Code != codes.OK {
		return 0, &control.End{Code: b.Code, Reason: b.Reason}
	}
	return b.Lease, nil
}

// Status returns the status.
func (p *Plugin) Status() gate.Status { return *p.status.Load() }
