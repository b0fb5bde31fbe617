package plugin_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/grants"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/sriov/plugin/plugintest"
	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	pfAddress = "0000:3b:00.0"
	resource  = "example.com/vf"
)

type rig struct {
	t       testing.TB
	tree    *sysfstest.Tree
	kubelet *plugintest.Kubelet
	pods    *pods
	config  plugin.Config
	plugin  *plugin.Plugin
	quit    func()
	changes chan struct{}
}

type pods struct {
	kubelet *plugintest.Kubelet
	asked   atomic.Int64

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
		Discovery: inventory.DiscoverConfig{Sysfs: r.tree.Sysfs, Dev: r.tree.Dev, Links: sysfstest.Links{Tree: r.tree}},
		Registrar: way, EndpointDir: way.Dir, Restarts: way.Restarts, Pods: r.pods, Watch: r.watch,
		Files: inventory.DeviceFiles{DeviceInfo: filepath.Join(dir, "devinfo"), CDI: filepath.Join(dir, "cdi")},
	}
	if testing.Verbose() {
		r.config.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	r.configure(oneResource)
	testkit.Must(t, r.kubelet.Start())
	t.Cleanup(r.kubelet.Stop)
	return r
}

func (r *rig) setVFs(n int) {
	r.t.Helper()
	testkit.Must(r.t, r.tree.Write(sysfstest.Device(pfAddress)+"/sriov_numvfs", strconv.Itoa(n)))
}

func (r *rig) configure(text string) {
	r.t.Helper()
	testkit.Must(r.t, os.MkdirAll(filepath.Dir(r.config.ConfigFile), 0o755))
	next := r.config.ConfigFile + ".next"
	testkit.Must(r.t, os.WriteFile(next, []byte(text), 0o644), os.Rename(next, r.config.ConfigFile))
}

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

func newOffering(t testing.TB, vfs int) *rig {
	t.Helper()
	r := newRig(t, vfs)
	r.start()
	r.awaitOffered(vfs)
	return r
}

func newControlled(t testing.TB, vfs int) *rig {
	t.Helper()
	r := newRig(t, vfs)
	r.config.Controlled = true
	r.start()
	return r
}

func (r *rig) start() {
	r.t.Helper()
	p := testkit.Value(plugin.New(r.config))(r.t)
	r.plugin, r.quit = p, testkit.Go(r.t, p.Run)
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("the plugin at the end: %+v", p.Document())
		}
	})
}

func (r *rig) stop() {
	r.t.Helper()
	testkit.Must(r.t, r.plugin.Stop(testkit.Context(r.t)))
	r.quit()
}

func (r *rig) await(what string, holds func() bool) {
	r.t.Helper()
	if err := r.kubelet.Await(testkit.Context(r.t), holds); err != nil {
		r.t.Fatalf("%s: %v; the plugin says %+v", what, err, r.plugin.Document())
	}
}

func (r *rig) awaitOffered(n int) {
	r.t.Helper()
	r.await(strconv.Itoa(n)+" devices are offered", func() bool { return r.kubelet.Allocatable(resource) == n })
}

func (r *rig) registered(times int) {
	r.t.Helper()
	if n := r.kubelet.Registrations(resource); n != times {
		r.t.Errorf("registered %d times, want %d", n, times)
	}
}

func (r *rig) log() *testkit.Log {
	l := &testkit.Log{}
	r.config.Logger = slog.New(slog.NewTextHandler(l, nil))
	return l
}

func (r *rig) loggedOnce(l *testkit.Log, text string) {
	r.t.Helper()
	if n := strings.Count(l.String(), text); n != 1 {
		r.t.Errorf("the log has %q %d times, want once", text, n)
	}
}

type links struct {
	tree           sysfstest.Links
	scans, waiting atomic.Int64
	fails          atomic.Bool
	lock           sync.RWMutex
}

func (l *links) Links(ctx context.Context) ([]netlinks.Link, error) {
	l.scans.Add(1)
	l.waiting.Add(1)
	l.lock.RLock()
	l.waiting.Add(-1)
	defer l.lock.RUnlock()
	if l.fails.Load() {
		return nil, syscall.EMFILE
	}
	return l.tree.Links(ctx)
}

func (l *links) DefaultRoutes(ctx context.Context) ([]int, error) { return l.tree.DefaultRoutes(ctx) }

func (r *rig) counted() *links {
	l := &links{tree: sysfstest.Links{Tree: r.tree}}
	r.config.Discovery.Links = l
	return l
}

func (r *rig) scans(l *links, n int64) {
	r.t.Helper()
	for range n {
		before := l.scans.Load()
		r.changes <- struct{}{}
		testkit.Eventually(r.t, "a scan", func() bool { return l.scans.Load() > before })
	}
}

func (r *rig) enable(session string, c gate.Claim) *plugintest.Stream {
	r.t.Helper()
	s := plugintest.Enable(r.t.Context(), r.plugin, session, c)
	r.t.Cleanup(s.Close)
	return s
}

type slowMemory struct {
	once             sync.Once
	entered, blocked chan struct{}
}

func (m *slowMemory) Put(context.Context, []grants.Record) error {
	m.once.Do(func() {
		close(m.entered)
		<-m.blocked
	})
	return nil
}

func (*slowMemory) Remove(context.Context, []grants.Record) error { return nil }
func (*slowMemory) All() []grants.Record                          { return nil }

func newMemory(t *testing.T) *grants.Grants {
	t.Helper()
	s := testkit.Open(store.Open(t.Context(), filepath.Join(t.TempDir(), "plugin.db"), store.Options{Role: grants.Role, Version: grants.Version}))(t)
	return testkit.Value(grants.Open(t.Context(), s))(t)
}
