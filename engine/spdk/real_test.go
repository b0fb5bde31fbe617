package spdk

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/store/storetest"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/nvmehost"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// socketEnvironment names the variable with the socket of an SPDK process, on
// which TestTarget runs instead of the double. Its lvol stores are not touched:
// each test creates one in a file, and deletes it. No other controller can use
// the process meanwhile.
const socketEnvironment = "CLEAT_SPDK_SOCKET"

// programEnvironment names the variable with a program of SPDK (nvmf_tgt): each
// test runs it on its own, so that it can kill it.
const programEnvironment = "CLEAT_SPDK_PROGRAM"

func isReal() bool { return os.Getenv(socketEnvironment)+os.Getenv(programEnvironment) != "" }

// newTargetRig starts a target, the real one if there is one. noUnmap: its bdev
// cannot unmap.
func newTargetRig(t testing.TB, noUnmap bool) *rig {
	t.Helper()
	if !isReal() {
		r := newRig(t)
		r.noUnmap = noUnmap
		r.start(0)
		return r
	}
	name := "cleat-test-" + strings.ToLower(rand.Text()[:8])
	r := &rig{t: t, object: storetest.NewObject(store.ErrChanged), log: testkit.NewLog(t), noUnmap: noUnmap}
	r.endpoints = []endpoint{{socket: os.Getenv(socketEnvironment), addr: freeAddress(t), tls: freeAddress(t), store: name}}
	if program := os.Getenv(programEnvironment); program != "" {
		r.endpoints[0].socket = filepath.Join(testkit.Dir(t), "rpc.sock")
		r.process = launch(t, r.endpoints[0].socket, "--interrupt-mode", "-m", "0x1")
	}
	r.diskFile = filepath.Join(testkit.Dir(t), "disk")
	testkit.Must(t, os.WriteFile(r.diskFile, nil, 0o600), os.Truncate(r.diskFile, (storeMiB+2)*mib))
	r.real = r.client(0)
	r.offer(0)
	if r.process == nil {
		t.Cleanup(func() { r.clean(name) })
	}
	testkit.Must(t, r.real.Call(testkit.Context(t), "bdev_lvol_create_lvstore", map[string]any{"bdev_name": name, "lvs_name": name, "cluster_sz": cluster}, nil))
	return r
}

// launch starts the program, which listens on the socket afterwards.
func launch(t testing.TB, socket string, flags ...string) *testkit.Process {
	t.Helper()
	log := testkit.Value(os.OpenFile(socket+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(t)
	defer log.Close()
	t.Cleanup(func() {
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("the end of the log of %s:\n%s", socket, text[max(0, len(text)-2000):])
		}
	})
	cmd := exec.Command(os.Getenv(programEnvironment), append(flags, "--no-huge", "-s", "512", "--no-pci", "--disable-cpumask-locks", "-r", socket)...)
	cmd.Stdout, cmd.Stderr = log, log
	p := testkit.Start(t, cmd)
	c := testkit.Value(rpc.Open(rpc.Config{Socket: socket}))(t)
	testkit.Must(t, p.Until(func() error { return c.Do(testkit.Context(t), "framework_wait_init", nil) }), c.Close())
	return p
}

// needsProgram skips a test that a running process does not suffice for.
func (r *rig) needsProgram() {
	r.t.Helper()
	if r.process == nil && r.targets == nil {
		r.t.Skipf("only a program that the test starts is killed, or is an initiator (%s)", programEnvironment)
	}
}

// kill kills the target, starts it again, and gives its store back to it. SPDK has
// crashed while it loaded a store: it is started again then.
func (r *rig) kill() {
	r.t.Helper()
	if r.targets != nil {
		testkit.Must(r.t, r.targets[0].Restart(), r.offered(0))
		return
	}
	r.needsProgram()
	for failure, left := errNotOffered, 5; failure != nil; left-- {
		r.process.Kill()
		r.process = launch(r.t, r.endpoints[0].socket, "--interrupt-mode", "-m", "0x1")
		if failure = r.offered(0); failure != nil && left == 0 {
			r.t.Fatal(failure)
		} else if failure != nil {
			r.t.Logf("the target has crashed: %v", failure)
		}
	}
}

var errNotOffered = errors.New("not offered yet")

func freeAddress(t testing.TB) netip.AddrPort {
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	testkit.Must(t, l.Close())
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// clean deletes what a test has left on the real target: its exports, its store
// and the disk of that.
func (r *rig) clean(name string) {
	c, ctx := r.real, testkit.Context(r.t)
	for _, s := range testkit.Value(c.Subsystems(ctx))(r.t) {
		// An interrupted call leaves a subsystem before it has a listener.
		if listensOn(s, "tcp", r.endpoints[0].addr) || listensOn(s, "tcp", r.endpoints[0].tls) || strings.HasPrefix(s.NQN, nqnPrefix) && len(s.Listeners) == 0 {
			testkit.Must(r.t, c.DeleteSubsystem(ctx, s.NQN))
		}
	}
	if slices.ContainsFunc(testkit.Value(c.LvolStores(ctx))(r.t), func(s rpc.LvolStore) bool { return s.Name == name }) {
		testkit.Must(r.t, c.Call(ctx, "bdev_lvol_delete_lvstore", map[string]any{"lvs_name": name}, nil))
	}
	testkit.Must(r.t, c.DeleteAIO(ctx, name))
}

// session is the connection of a host to a volume.
type session interface {
	Alive() bool
	Close()
}

// realSession is a connection to a real target.
type realSession struct {
	*nvmehost.Host
	close func()
}

func (s *realSession) Close() { s.close() }

func (r *rig) connectReal(v volume.Volume, host, source string) (*realSession, error) {
	r.t.Helper()
	l := v.Locator.(access.NVMe)
	h, err := nvmehost.Connect(testkit.Context(r.t), nvmehost.Options{
		Address: l.Paths[0], NQN: l.NQN, HostNQN: host, HostID: hostID(host), Source: netip.MustParseAddr(source),
	})
	if err != nil {
		return nil, err
	}
	return &realSession{h, sync.OnceFunc(func() {
		testkit.Must(r.t, h.Close())
		testkit.Eventually(r.t, "the target ends the session of "+host, func() bool {
			left, err := r.real.SubsystemControllers(testkit.Context(r.t), l.NQN)
			return errors.Is(err, rpc.NotFound) || err == nil && !slices.ContainsFunc(left, func(c rpc.SubsystemController) bool {
				return c.ControllerID == int(h.Controller)
			})
		})
	})}, nil
}

// hostID is the same for the same host.
func hostID(host string) (id [16]byte) {
	copy(id[:], fmt.Sprintf("%016x", len(host)))
	for i, b := range []byte(host) {
		id[i%len(id)] ^= b
	}
	return id
}

// realDisk is a volume that a host of its own is connected to.
type realDisk struct {
	*nvmehost.Host
	close func()
}

func (d realDisk) Close() error {
	d.close()
	return nil
}

func (r *rig) openReal(e *Engine, v volume.Volume) realDisk {
	r.t.Helper()
	name := "disk-" + strings.ToLower(rand.Text()[:8])
	publish(r.t, e, v.ID, node(name, "127.0.1.1"))
	s := testkit.Value(r.connectReal(v, access.HostNQN(name), "127.0.1.1"))(r.t)
	return realDisk{s.Host, func() {
		s.Close()
		unpublish(r.t, e, v.ID, name)
	}}
}
