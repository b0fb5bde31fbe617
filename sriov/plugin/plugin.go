// Package plugin is the SR-IOV device plugin: it offers functions of this
// machine to the kubelet (device plugin API v1beta1) by the configuration of the
// upstream plugin, and takes them back the moment nobody answers for them.
//
// One goroutine owns the gate.Control, one each gate.Resource; package gate says
// how they are driven. Scans run on a goroutine of their own, one at a time.
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
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// Config is that of a Plugin.
type Config struct {
	ConfigFile string // upstream's config.json
	Prefix     string // of resources that name none
	Strict     bool   // what is probably a mistake in the configuration is an error

	Controlled bool          // nothing is offered unless somebody answers for it
	Bound      time.Duration // for a withdrawal; 0 is gate's
	LinkHealth bool          // a function whose link is down is unhealthy

	Discovery inventory.DiscoverConfig
	// Watch blocks and calls kick after each change that a scan may show. Nil:
	// there are only the scans of Interval.
	Watch    func(ctx context.Context, kick func()) error
	Interval time.Duration // between scans that nobody asked for; 0 is a minute

	Registrar Registrar
	// EndpointDir is where the kubelet finds the sockets of resources. It is the
	// kubelet's own.
	EndpointDir string
	// Hidden gives the sockets names with a leading dot, as EndpointDir is watched
	// for plugins.
	Hidden bool
	// Restarts blocks and calls started after each start of the kubelet. Nil: that
	// is the Registrar's matter.
	Restarts func(ctx context.Context, started func()) error

	Pods   Pods                  // nil: nobody can be asked who has a device
	Memory Memory                // nil: what was given out is forgotten at the end
	Files  inventory.DeviceFiles // for Multus and CDI
	CDI    bool                  // devices go into containers by CDI

	Logger  *slog.Logger          // nil: no log
	Metrics prometheus.Registerer // nil: none
}

// Pods is the kubelet's PodResources, as podresources.Client asks it.
type Pods interface {
	Held(ctx context.Context) ([]podresources.Holder, error)
	Offered(ctx context.Context) (map[string][]string, error)
}

// Registrar makes resources known to the kubelet.
type Registrar interface {
	// Register returns when the kubelet has said yes, or why not. It is called
	// again when the kubelet does not listen any more.
	Register(ctx context.Context, r Registration) error
	// Forget takes back what Register left behind. The server ends.
	Forget(ctx context.Context, resource string) error
}

// Registration is what the kubelet is told of a resource.
type Registration struct {
	Resource string
	Endpoint string // path of its socket
	Options  *v1beta1.DevicePluginOptions
}

// deps is what every resource needs.
type deps struct {
	logger      *slog.Logger
	metrics     *metrics
	callMetrics prometheus.Registerer
	registrar   Registrar
	endpointDir string
	hidden      bool
	discovery   inventory.DiscoverConfig
	settings    inventory.AllocateSettings
	files       inventory.DeviceFiles
	census      *census
	listening   *listening
	kicks       chan struct{} // a scan is due
	remember    func(ctx context.Context, resource string, members []inventory.Member) error
}

// Plugin is the device plugin. Run it, and Stop it before its context ends.
type Plugin struct {
	cfg  Config
	deps *deps

	mail    *mailbox[order]
	ids     atomic.Uint64 // of calls and sessions
	loaded  atomic.Pointer[loaded]
	loading sync.Mutex
	newest  string // hash of the last configuration that is in order; guarded by loading
	tried   string // hash of the last one that was read; guarded by loading
	found   atomic.Pointer[finding]
	status  atomic.Pointer[gate.Status]
	wanted  atomic.Uint64 // number of the last scan that the machine asked for
	asked   chan struct{} // it did
	wrong   troubles      // what is wrong
	odd     troubles      // what people are told once and nothing depends on

	began   atomic.Bool
	exited  chan struct{} // everything is taken back
	ended   chan struct{} // nobody answers orders any more
	running sync.WaitGroup

	// Owned by scanLoop.
	said     []string // by the last scan
	lastWord word     // the kubelet's

	// Owned by run.
	machine   *gate.Control
	alarms    *alarms
	resources map[string]*resource
	sessions  map[string]*session
	beats     map[uint64]chan gate.Beat
	disables  map[uint64]chan gate.Disabled
	fresh     []*session // accepted in the step under way
}

// New reads the configuration, which must be right, and makes a plugin that has
// touched nothing yet.
func New(c Config) (*Plugin, error) {
	if c.Registrar == nil || c.EndpointDir == "" {
		return nil, errors.New("a device plugin needs a registrar and a directory for its sockets")
	}
	c.Interval = cmp.Or(c.Interval, time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Plugin{
		cfg: c, mail: newMailbox[order](), asked: make(chan struct{}, 1),
		exited: make(chan struct{}), ended: make(chan struct{}),
		machine: gate.NewControl(gate.Config{Controlled: c.Controlled, Bound: c.Bound}), alarms: newAlarms(),
		resources: map[string]*resource{}, sessions: map[string]*session{},
		beats: map[uint64]chan gate.Beat{}, disables: map[uint64]chan gate.Disabled{},
	}
	first := p.machine.Status()
	p.status.Store(&first)
	m, err := newMetrics(c.Metrics, p)
	if err != nil {
		return nil, err
	}
	p.deps = &deps{
		logger: c.Logger, metrics: m, callMetrics: c.Metrics, registrar: c.Registrar, endpointDir: c.EndpointDir, hidden: c.Hidden,
		discovery: c.Discovery, files: c.Files, kicks: make(chan struct{}, 1), census: newCensus(c.Pods), listening: &listening{}, remember: p.remember,
		settings: inventory.AllocateSettings{CDI: c.CDI, Exists: inventory.DeviceNodes{Sysfs: c.Discovery.Sysfs, Dev: c.Discovery.Dev}.Exists},
	}
	l, err := p.load()
	if err != nil {
		return nil, err
	}
	p.take(l)
	return p, nil
}

// Run serves until Stop, or until ctx ends. It can be called once.
func (p *Plugin) Run(ctx context.Context) error {
	if p.began.Swap(true) {
		return errors.New("a device plugin that ran cannot run again; make another")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer p.running.Wait()
	defer cancel()
	p.running.Go(func() { p.scanLoop(ctx) })
	p.running.Go(func() { p.watchConfig(ctx) })
	p.running.Go(func() { p.deps.census.run(ctx) })
	if p.cfg.Pods != nil {
		p.running.Go(func() { p.audit(ctx) })
	}
	p.watch(ctx, "functions", p.cfg.Watch, p.Rescan)
	p.watch(ctx, "kubelet", p.cfg.Restarts, func() { p.put(order{kubelet: true}) })
	return p.run(ctx)
}

// watch runs something that tells of changes, if it is there.
func (p *Plugin) watch(ctx context.Context, what string, watch func(context.Context, func()) error, kick func()) {
	if watch == nil {
		return
	}
	p.running.Go(func() {
		if err := watch(ctx, kick); err != nil && ctx.Err() == nil {
			p.cfg.Logger.Warn("changes are not heard of any more; they show at the next scan", "what", what, "error", err)
			p.wrong.set("watch "+what, err)
		}
	})
}

// Reload reads the configuration and looks at what there is.
func (p *Plugin) Reload() {
	p.reload()
	p.Rescan()
}

// Rescan looks soon at what there is.
func (p *Plugin) Rescan() { ring(p.deps.kicks) }

// Stop takes everything back and returns when that is done, or ctx ends.
func (p *Plugin) Stop(ctx context.Context) error {
	p.put(order{event: gate.Quit{}})
	select {
	case <-p.exited:
		return nil
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the devices could not be taken back in time: %w", ctx.Err())
	}
}

// Check is nil while the plugin does what it should: also while it waits, as
// it must, for somebody to answer for the devices.
func (p *Plugin) Check(context.Context) error {
	if s := p.status.Load(); s.State == gate.Failed {
		return errors.New(s.Error)
	}
	return p.wrong.err()
}
