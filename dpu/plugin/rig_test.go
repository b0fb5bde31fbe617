package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/google/uuid"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	host = "nqn.2014-08.org.nvmexpress:uuid:5d0e6b1c-934f-4a27-b861-2ec4709ad358"
	pool = "0b6f6c0e-8a55-4a3c-8f5e-2d1c9f0a7b11"
	rwo  = storagev1.AccessMode_ACCESS_MODE_RWO
	rwx  = storagev1.AccessMode_ACCESS_MODE_RWX
)

// rig is a plugin with a double of SNAP and targets.
type rig struct {
	t       *testing.T
	network *spdktest.Network
	snap    *spdktest.Process
	mounts  *directories
	pools   files
	dir     string
	change  func(*Config, *object.Config)
	idle    bool         // without the background loop
	skipped atomic.Int64 // nanoseconds that the network's clock is ahead

	plugin *Plugin
	table  *table.Table
	stop   func() // ends the plugin in order
	crash  func() // the plugin loses SNAP; then stop does nothing
}

func newRig(t *testing.T, c spdktest.Config, change func(*Config, *object.Config)) *rig {
	t.Helper()
	dir := testkit.Dir(t) // short enough for a socket
	c.Socket = filepath.Join(dir, "snap.sock")
	r := &rig{t: t, dir: dir, change: change, pools: files(filepath.Join(dir, "pool"))}
	r.network = spdktest.NewNetwork(r.now)
	r.mounts = &directories{dir: filepath.Join(dir, "volumes"), mounted: map[string]plan.MountSpec{}}
	for _, d := range []string{string(r.pools), r.mounts.dir} {
		testkit.Must(t, os.Mkdir(d, 0o700))
	}
	r.snap = testkit.Value(r.network.Start(c))(t)
	t.Cleanup(func() { testkit.Must(t, r.snap.Close()) })
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

// start uses the existing record.
func (r *rig) start() {
	r.t.Helper()
	s := testkit.Value(store.Open(r.t.Context(), filepath.Join(r.dir, "dpu.db"), store.Options{Role: table.Role, Version: table.Version}))(r.t)
	r.table = testkit.Value(table.Open(r.t.Context(), s))(r.t)
	rpc := testkit.Value(spdk.Open(spdk.Config{Socket: r.snap.Socket(), Timeout: time.Minute}))(r.t)
	oc := object.Config{RPC: rpc, Mounts: r.mounts, Pools: r.pools, KeyDir: "/keys", NamespaceWait: 50 * time.Millisecond}
	c := Config{Table: r.table, RPC: rpc, RetryEvery: 5 * time.Millisecond, Now: r.now, Settings: plan.Settings{
		Plugin: "test", HostNQN: host, Timeouts: access.Timeouts{Loss: access.Sec(-1), Delay: access.Sec(2), FastFail: access.Sec(0)},
	}}
	if r.change != nil {
		r.change(&c, &oc)
	}
	c.Objects = testkit.Value(object.New(oc))(r.t)
	r.plugin = testkit.Value(New(c))(r.t)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	if !r.idle {
		running.Go(func() { _ = r.plugin.Run(ctx) })
	}
	p := r.plugin
	stop := sync.OnceFunc(func() {
		cancel()
		running.Wait()
		testkit.Must(r.t, p.Close(testkit.Context(r.t)), rpc.Close(), s.Close())
	})
	r.stop, r.crash = stop, func() { _ = rpc.Close(); stop() }
}

func (r *rig) restart() {
	r.t.Helper()
	r.stop()
	r.start()
}

// now is the clock of the network and of the plugin.
func (r *rig) now() time.Time { return time.Now().Add(time.Duration(r.skipped.Load())) }

func (r *rig) skip(d time.Duration) { r.skipped.Add(int64(d)) }

// pass advances the clock until a call returns.
func pass[T any](r *rig, answered <-chan T) T {
	for {
		select {
		case got := <-answered:
			return got
		case <-time.After(time.Millisecond):
			r.skipped.Add(int64(time.Minute))
		}
	}
}

// target adds a subsystem with namespaces 1 to n.
func (r *rig) target(nqn string, n int) spdktest.Subsystem {
	s := spdktest.Subsystem{NQN: nqn, AnyHost: true, Addresses: []spdktest.Address{{Transport: "TCP", Host: "192.0.2.1", Port: "4420"}}}
	for i := range n {
		s.Namespaces = append(s.Namespaces, spdktest.Namespace{ID: uint32(i + 1), UUID: uuidOf(nqn, i+1)})
	}
	r.network.Put(s)
	return s
}

func uuidOf(nqn string, nsid int) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, fmt.Append(nil, nqn, "/", nsid)).String()
}

func nvme(volumeID, nqn string, more ...string) request.Create {
	c := map[string]string{"targetType": "tcp", "targetAddr": "192.0.2.1", "targetPort": "4420", "nqn": nqn}
	for i := 0; i+1 < len(more); i += 2 {
		c[more[i]] = more[i+1]
	}
	return request.Create{Volume: volumeID, Mode: request.Block, Modes: []storagev1.AccessMode{rwo}, Contexts: request.Contexts{Volume: c}}
}

func local(volumeID, name string, mode request.Mode) request.Create {
	return request.Create{Volume: volumeID, Mode: mode, Modes: []storagev1.AccessMode{rwo}, Contexts: request.Contexts{Volume: access.Encode(access.File{Pool: pool, Name: name})}}
}

func nfs(volumeID string) request.Create {
	return request.Create{Volume: volumeID, Mode: request.Filesystem, Modes: []storagev1.AccessMode{rwx}, Contexts: request.Contexts{Volume: map[string]string{"server": "192.0.2.9", "share": "/export", "subdir": volumeID}}}
}

// create must succeed.
func (r *rig) create(q request.Create) string {
	r.t.Helper()
	return testkit.Value(r.plugin.Create(r.t.Context(), q))(r.t)
}

func (r *rig) refused(q request.Create, words ...string) error {
	r.t.Helper()
	name, err := r.plugin.Create(r.t.Context(), q)
	if err == nil {
		r.t.Errorf("volume %s got device %s", q.Volume, name)
		return nil
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			r.t.Errorf("the answer %q does not hold %q", err, w)
		}
	}
	return err
}

func (r *rig) delete(volumeID, name string) {
	r.t.Helper()
	testkit.Must(r.t, r.plugin.Delete(r.t.Context(), request.Device{Volume: volumeID, Name: name}))
}

// has checks that GetDevice and ListDevices return a device.
func (r *rig) has(volumeID, name string) {
	r.t.Helper()
	d, err := r.plugin.Get(r.t.Context(), request.Device{Volume: volumeID, Name: name})
	if err != nil || d.Name != name {
		r.t.Errorf("GetDevice(%s, %s): %q, %v", volumeID, name, d.Name, err)
	}
	if !slices.Contains(r.listed(), volumeID+"="+name) {
		r.t.Errorf("ListDevices lacks %s=%s: %q", volumeID, name, r.listed())
	}
}

// hasNot checks that a volume has no device.
func (r *rig) hasNot(volumeID, name string) {
	r.t.Helper()
	if d, err := r.plugin.Get(r.t.Context(), request.Device{Volume: volumeID, Name: name}); !errors.Is(err, ErrNotFound) {
		r.t.Errorf("GetDevice(%s, %s): %q, %v, want ErrNotFound", volumeID, name, d.Name, err)
	}
	if slices.ContainsFunc(r.listed(), func(e string) bool { return strings.HasPrefix(e, volumeID+"=") }) {
		r.t.Errorf("ListDevices has %s: %q", volumeID, r.listed())
	}
}

func (r *rig) listed() []string {
	r.t.Helper()
	page, _, err := r.plugin.List(r.t.Context(), request.Page{Max: 1 << 20})
	testkit.Must(r.t, err)
	var all []string
	for _, d := range page {
		all = append(all, d.Volume+"="+d.Name)
	}
	return all
}

func ask[T any](r *rig, method string, params any) T {
	r.t.Helper()
	client := testkit.Value(spdk.Open(spdk.Config{Socket: r.snap.Socket()}))(r.t)
	defer client.Close()
	var result T
	testkit.Must(r.t, client.Call(r.t.Context(), method, params, &result))
	return result
}

func (r *rig) controllers() []string {
	r.t.Helper()
	var names []string
	for _, c := range ask[[]spdk.NVMeController](r, "bdev_nvme_get_controllers", nil) {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return names
}

func (r *rig) bdevs() []string {
	r.t.Helper()
	var names []string
	for _, b := range ask[[]spdk.Bdev](r, "bdev_get_bdevs", nil) {
		names = append(names, b.Name)
	}
	slices.Sort(names)
	return names
}

// empty awaits that nothing is left over.
func (r *rig) empty() {
	r.t.Helper()
	testkit.EventuallyNil(r.t, "nothing is left", func() error {
		left := slices.Concat(r.controllers(), r.bdevs(), r.mounts.names())
		if len(left) > 0 {
			return fmt.Errorf("SNAP and the machine hold %q", left)
		}
		if devices, objects := r.table.Count(); devices[table.Ready]+devices[table.Creating]+devices[table.Removing]+objects > 0 {
			return fmt.Errorf("on record are %v and objects %+v", devices, r.table.Objects())
		}
		return nil
	})
}

func (r *rig) asked(method string) (n int) {
	for _, c := range r.snap.Calls() {
		if c.Method == method {
			n++
		}
	}
	return n
}

func (r *rig) awaitCall(method string, n int) {
	r.t.Helper()
	testkit.EventuallyNil(r.t, fmt.Sprintf("%s is called %d times", method, n), func() error {
		if got := r.asked(method); got < n {
			return fmt.Errorf("%d times", got)
		}
		return nil
	})
}

// params of a method's last call.
func (r *rig) params(method string) map[string]any {
	r.t.Helper()
	for _, c := range slices.Backward(r.snap.Calls()) {
		if c.Method == method {
			var p map[string]any
			testkit.Must(r.t, json.Unmarshal(c.Params, &p))
			return p
		}
	}
	r.t.Fatalf("%s was not called", method)
	return nil
}

// directories replaces mounts by plain directories.
type directories struct {
	dir string

	mu      sync.Mutex
	mounted map[string]plan.MountSpec
	fail    error
}

func (d *directories) Path(name string) string { return filepath.Join(d.dir, name) }

func (d *directories) Mount(_ context.Context, name string, spec plan.MountSpec) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return d.fail
	}
	d.mounted[name] = spec
	return os.MkdirAll(d.Path(name), 0o700)
}

func (d *directories) Mounted(_ context.Context, name string, _ plan.MountSpec) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.mounted[name]
	return ok, nil
}

func (d *directories) IsMountPoint(ctx context.Context, name string) (bool, error) {
	return d.Mounted(ctx, name, plan.MountSpec{})
}

func (d *directories) Unmount(_ context.Context, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mounted, name)
	return os.RemoveAll(d.Path(name))
}

func (d *directories) names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.mounted))
}

type files string

func (f files) File(a access.File) (string, error) {
	if a.Pool != pool {
		return "", errs.Errorf(errs.Precondition, "pool %s is not here", a.Pool)
	}
	return filepath.Join(string(f), a.Name), nil
}

func (f files) make(t *testing.T, name string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(filepath.Join(string(f), name), make([]byte, 1<<20), 0o600))
}
