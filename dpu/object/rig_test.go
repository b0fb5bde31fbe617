package object

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	one  = "nqn.2016-06.io.spdk:one"
	host = "nqn.2014-08.org.nvmexpress:uuid:5d0e6b1c-934f-4a27-b861-2ec4709ad358"
	uuid = "6f3a1e2c-0a7b-4c53-9d55-3f9f4f2a1b01"
)

type rig struct {
	*Manager
	t       *testing.T
	network *spdktest.Network
	snap    *spdktest.Process
	rpc     *spdk.Client
	dir     string
}

func newRig(t *testing.T, c spdktest.Config, change func(*Config)) *rig {
	t.Helper()
	dir := testkit.Dir(t) // short enough for a socket
	c.Socket = filepath.Join(dir, "snap.sock")
	r := &rig{t: t, network: spdktest.NewNetwork(nil), dir: dir}
	r.snap = testkit.Value(r.network.Start(c))(t)
	t.Cleanup(func() { testkit.Must(t, r.snap.Close()) })
	r.rpc = testkit.Value(spdk.Open(spdk.Config{Socket: c.Socket, Timeout: time.Minute}))(t)
	t.Cleanup(func() { _ = r.rpc.Close() })
	oc := Config{RPC: r.rpc, KeyDir: filepath.Join(dir, "keys"), CephDir: "/etc/ceph", Pools: files(dir), Mounts: directories(dir), NamespaceWait: 100 * time.Millisecond}
	if change != nil {
		change(&oc)
	}
	r.Manager = testkit.Value(New(oc))(t)
	return r
}

func (r *rig) target(nqn string, namespaces ...spdktest.Namespace) {
	r.network.Put(spdktest.Subsystem{NQN: nqn, AnyHost: true, Addresses: []spdktest.Address{{Transport: "TCP", Host: "192.0.2.1", Port: "4420"}}, Namespaces: namespaces})
}

func controller(name, nqn string) plan.Object {
	return plan.Object{ID: plan.ID{Kind: plan.Controller, Name: name}, Controller: &plan.ControllerSpec{
		Transport: "tcp", Paths: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4420")}, SubNQN: nqn, HostNQN: host,
		Timeouts: access.Timeouts{Loss: access.Sec(-1), Delay: access.Sec(2), FastFail: access.Sec(0)},
	}}
}

// make must succeed.
func (r *rig) make(o plan.Object) Outcome {
	r.t.Helper()
	return testkit.Value(r.Ensure(r.t.Context(), o, nil))(r.t)
}

// params of a method's last call.
func (r *rig) params(method string) string {
	r.t.Helper()
	for _, c := range slices.Backward(r.snap.Calls()) {
		if c.Method == method {
			return string(c.Params)
		}
	}
	r.t.Fatalf("%s was not called", method)
	return ""
}

type files string

func (f files) File(a access.File) (string, error) { return filepath.Join(string(f), a.Name), nil }

// directories replaces mounts.
type directories string

func (d directories) Path(name string) string { return filepath.Join(string(d), name) }

func (d directories) Mount(_ context.Context, name string, _ plan.MountSpec) error {
	return os.Mkdir(d.Path(name), 0o700)
}

func (d directories) Mounted(_ context.Context, name string, _ plan.MountSpec) (bool, error) {
	_, err := os.Stat(d.Path(name))
	return err == nil, nil
}

func (d directories) IsMountPoint(ctx context.Context, name string) (bool, error) {
	return d.Mounted(ctx, name, plan.MountSpec{})
}

func (d directories) Unmount(_ context.Context, name string) error { return os.Remove(d.Path(name)) }
