package spdk

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/store/storetest"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
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

// initiatorEnvironment names the variable with the socket of a second SPDK process on
// this machine, which connects to the real target with TLS.
const initiatorEnvironment = "CLEAT_SPDK_INITIATOR_SOCKET"

func (r *rig) needInitiator() {
	r.t.Helper()
	if r.network == nil && os.Getenv(initiatorEnvironment) == "" {
		r.t.Skipf("%s is not set, and the host of these tests has no TLS", initiatorEnvironment)
	}
}

// initiatorSession is a controller of the second SPDK process.
type initiatorSession struct {
	*rpc.Client
	r    *rig
	name string
}

func (s initiatorSession) Alive() bool {
	c, err := s.NVMeController(testkit.Context(s.r.t), s.name)
	return err == nil && c.Paths[0].State == rpc.ControllerEnabled
}

func (s initiatorSession) Close() {
	if err := s.DetachNVMe(testkit.Context(s.r.t), s.name, nil); err != nil && !errors.Is(err, rpc.NotFound) {
		s.r.t.Error(err)
	}
}

// connectInitiator removes the key only after the controller, which reads it at each connect.
func (r *rig) connectInitiator(v volume.Volume, node string, to netip.AddrPort, keys spdktest.Keys) (session, error) {
	r.t.Helper()
	c := testkit.Value(rpc.Open(rpc.Config{Socket: os.Getenv(initiatorEnvironment)}))(r.t)
	s := initiatorSession{c, r, "test-" + strings.ToLower(rand.Text()[:8])}
	attach := rpc.NVMeAttach{Name: s.name, HostNQN: access.HostNQN(node), NVMeAddress: addressOf("tcp", to)}
	attach.SubNQN = v.Locator.(access.NVMe).NQN
	if keys.TLS != "" {
		attach.PSK = s.name
		testkit.Must(r.t, c.AddKeyFile(testkit.Context(r.t), s.name, r.keyFile(keys.TLS)))
	}
	r.t.Cleanup(func() {
		s.Close()
		if keys.TLS != "" {
			testkit.Must(r.t, c.RemoveKey(testkit.Context(r.t), s.name))
		}
		testkit.Must(r.t, c.Close())
	})
	_, err := c.AttachNVMe(testkit.Context(r.t), attach)
	return s, err
}

// newTargetRig starts a target, the real one if there is one.
func newTargetRig(t testing.TB) *rig {
	t.Helper()
	socket := os.Getenv(socketEnvironment)
	if socket == "" {
		return newRig(t, "one")
	}
	name := "cleat-test-" + strings.ToLower(rand.Text()[:8])
	r := &rig{t: t, object: storetest.NewObject(store.ErrChanged), log: testkit.NewLog(t)}
	r.endpoints = []endpoint{{socket: socket, addr: freeAddress(t), tls: freeAddress(t), store: name}}
	disk := filepath.Join(testkit.Dir(t), "disk")
	testkit.Must(t, os.WriteFile(disk, nil, 0o600), os.Truncate(disk, (storeMiB+2)*mib))
	r.real = r.client(0)
	c, ctx := r.real, testkit.Context(t)
	testkit.Must(t, c.CreateAIO(ctx, rpc.AIO{Name: name, Filename: disk, BlockSize: 4096, Fallocate: true}))
	t.Cleanup(func() { r.clean(name) })
	testkit.Must(t, c.Call(ctx, "bdev_lvol_create_lvstore", map[string]any{"bdev_name": name, "lvs_name": name, "cluster_sz": cluster}, nil))
	return r
}

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
