package plugin_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/sriov/container"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/discovery"
	"github.com/cleatproject/cleat/sriov/discovery/sysfstest"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/sriov/plugin/plugintest"
	"github.com/cleatproject/cleat/sriov/podresources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	pfAddress = "0000:3b:00.0"
	resource  = "example.com/vf"
	patience  = time.Minute
)

// rig is a machine of files with a plugin and a kubelet.
type rig struct {
	t       testing.TB
	tree    *sysfstest.Tree
	kubelet *plugintest.Kubelet
	pods    *pods
	config  plugin.Config
	plugin  *plugin.Plugin
	ended   chan struct{}
	changes chan struct{}
}

// pods is PodResources: what the kubelet offers, and who is said to hold what.
type pods struct {
	kubelet *plugintest.Kubelet
	asked   atomic.Int64 // what is offered

	mu      sync.Mutex
	holders []podresources.Holder
	err     error
}

func (p *pods) Held(context.Context) ([]podresources.Holder, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.holders), p.err
}

func (p *pods) Offered(ctx context.Context) (map[string][]string, error) {
	p.asked.Add(1)
	p.mu.Lock()
	err := p.err
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return p.kubelet.Offered(ctx)
}

func (p *pods) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

func (p *pods) hold(holders ...podresources.Holder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holders = holders
}

const oneResource = `{"resourceList": [{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"pfNames": ["ens1"]}]}]}`

// newRig has a PF with some virtual functions. The plugin does not run yet.
func newRig(t testing.TB, vfs int) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{t: t, tree: sysfstest.New(t), changes: make(chan struct{}, 1)}
	r.tree.Add(sysfstest.Function{Address: pfAddress, Vendor: "8086", Device: "1572", Driver: "i40e", NUMA: 1, Netdev: "ens1", TotalVFs: 64, VFDevice: "154c", VFDriver: "iavf"})
	r.setVFs(vfs)
	r.kubelet = plugintest.New(filepath.Join(dir, "device-plugins"), t.Errorf)
	r.pods = &pods{kubelet: r.kubelet}
	way := plugin.Kubelet{Dir: filepath.Join(dir, "device-plugins")}
	r.config = plugin.Config{
		ConfigFile: filepath.Join(dir, "config", "config.json"), Bound: 20 * time.Second,
		Discovery: discovery.Config{Sysfs: r.tree.Sysfs, Dev: r.tree.Dev, Links: sysfstest.Links{Tree: r.tree}},
		Registrar: way, EndpointDir: way.Dir, Restarts: way.Restarts, Pods: r.pods, Watch: r.watch,
		Files: container.Files{DeviceInfo: filepath.Join(dir, "devinfo"), CDI: filepath.Join(dir, "cdi")},
	}
	if testing.Verbose() {
		r.config.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	r.configure(oneResource)
	if err := r.kubelet.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kubelet.Stop)
	return r
}

func (r *rig) setVFs(n int) {
	r.t.Helper()
	if err := r.tree.Write(sysfstest.Device(pfAddress)+"/sriov_numvfs", strconv.Itoa(n)); err != nil {
		r.t.Fatal(err)
	}
}

// configure replaces the configuration in one step, as a ConfigMap is.
func (r *rig) configure(text string) {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Dir(r.config.ConfigFile), 0o755); err != nil {
		r.t.Fatal(err)
	}
	next := r.config.ConfigFile + ".next"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(next, r.config.ConfigFile); err != nil {
		r.t.Fatal(err)
	}
}

// watch kicks for each change that the test tells of.
func (r *rig) watch(ctx context.Context, kick func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.changes:
			kick()
		}
	}
}

func (r *rig) start() {
	r.t.Helper()
	p, err := plugin.New(r.config)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.plugin, r.ended = p, make(chan struct{})
	ended := r.ended
	go func() {
		defer close(ended)
		if err := p.Run(ctx); err != nil {
			r.t.Errorf("the plugin ended: %v", err)
		}
	}()
	r.t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// stop ends the plugin in order.
func (r *rig) stop() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	if err := r.plugin.Stop(ctx); err != nil {
		r.t.Fatal(err)
	}
	<-r.ended
}

// await waits for something of the kubelet; it is looked at when that changes.
func (r *rig) await(what string, holds func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	if err := r.kubelet.Await(ctx, holds); err != nil {
		r.t.Fatalf("%s: %v; the plugin says %+v", what, err, r.plugin.Document())
	}
}

func (r *rig) awaitOffered(n int) {
	r.t.Helper()
	r.await(strconv.Itoa(n)+" devices are offered", func() bool { return r.kubelet.Allocatable(resource) == n })
}

// enable takes the gate.
func (r *rig) enable(c gate.Claim) control.Stream {
	r.t.Helper()
	if c.Session == "" {
		c.Session = r.t.Name()
	}
	s, err := r.plugin.Enable(r.t.Context(), c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(s.Close)
	return s
}

func (r *rig) context() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	r.t.Cleanup(cancel)
	return ctx
}
