package spdk

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"slices"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/store/storetest"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// tlsSecret returns a TLS key in the interchange format.
func tlsSecret(of string) string {
	key := sha256.Sum256([]byte(of))
	return "NVMeTLSkey-1:01:" + base64.StdEncoding.EncodeToString(binary.LittleEndian.AppendUint32(key[:], crc32.ChecksumIEEE(key[:]))) + ":"
}

// encrypted creates a volume that requires TLS.
func encrypted(t testing.TB, e *Engine, name string) volume.Volume {
	t.Helper()
	return testkit.Value(e.Create(testkit.Context(t), withParameters(name, volume.Source{}, keyTLS, "gold")))(t)
}

// openPlain exports a volume without TLS, as a user can.
func (r *rig) openPlain(v volume.Volume, at netip.AddrPort) {
	r.t.Helper()
	testkit.Must(r.t, r.client(0).AddListener(testkit.Context(r.t), v.Locator.(access.NVMe).NQN, rpc.Listener{NVMeAddress: addressOf("tcp", at)}))
}

// wantTLS fails the test unless a node connects with TLS and its key, and only so.
func (r *rig) wantTLS(v volume.Volume, node, secret string) {
	r.t.Helper()
	at := r.endpoints[0].tls
	s, err := r.connectAt(v, node, at, spdktest.Keys{TLS: secret})
	if err != nil {
		r.t.Errorf("node %s with its key: %v", node, err)
	} else {
		s.Close()
	}
	for _, keys := range []spdktest.Keys{{}, {TLS: tlsSecret("other")}} {
		for _, to := range []netip.AddrPort{at, r.endpoints[0].addr} {
			if s, err := r.connectAt(v, node, to, keys); err == nil {
				s.Close()
				r.t.Errorf("node %s connects to %s with %+v", node, to, keys)
			}
		}
	}
}

// A host connects with TLS and a key of its own, or not at all, also after a restart
// of the target, which reads keys only when it has the transport.
func TestTLS(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := encrypted(t, e, "v")
	if l := v.Locator.(access.NVMe); l.TLSKey != "gold" || !slices.Equal(l.Paths, []netip.AddrPort{r.endpoints[0].tls}) {
		t.Errorf("locator %+v", l)
	}
	testkit.Must(t, grant(t, e, v.ID, node("n1", "192.0.2.1")))
	testkit.WantError(t, "publish without a key", e.Enforce(ctx, v.ID), errs.Precondition, "entry "+entryOf("n1"))
	r.provision("n1", "no key")
	r.provisionKey("n2", tlsSecret("n2"))
	testkit.Must(t, grant(t, e, v.ID, node("n2", "192.0.2.2")))
	testkit.WantError(t, "publish with a key in another format", e.Enforce(ctx, v.ID), errs.Precondition, "nvme gen-tls-key", entryOf("n1"))
	r.wantTLS(v, "n2", tlsSecret("n2"))
	unpublish(t, e, v.ID, "n2")
	r.provisionKey("n1", tlsSecret("n1"))
	testkit.Must(t, e.Enforce(ctx, v.ID), e.Enforce(ctx, v.ID))
	r.wantTLS(v, "n1", tlsSecret("n1"))

	testkit.Must(t, r.targets[0].Restart())
	r.offer(0)
	r.provisionKey("n1", tlsSecret("n1"))
	testkit.Must(t, e.compare(ctx, e.order[0]))
	r.wantTLS(v, "n1", tlsSecret("n1"))
	plain := create(t, e, "plain", volume.Source{})
	publish(t, e, plain.ID, node("n1", "192.0.2.1"))
	r.mustConnect(plain, access.HostNQN("n1"), "192.0.2.1").Close()
	r.requested(0)
	testkit.Must(t, e.compare(ctx, e.order[0]))
	testkit.Diff(t, "requests of a comparison", []string{"nvmf_get_subsystems" + ofAll, "keyring_get_keys", "framework_get_config"}, r.requested(0))

	unpublish(t, e, v.ID, "n1")
	if s, err := r.connectAt(v, "n1", r.endpoints[0].tls, spdktest.Keys{TLS: tlsSecret("n1")}); err == nil {
		s.Close()
		t.Error("a revoked host connects with its key")
	}
}

// A host that is not connected gets a replaced key, one that is keeps its session
// and the former key until it is not.
func testRotationOfTLS(t *testing.T, r *rig) {
	r.needsProgram()
	e := r.engine()
	ctx := testkit.Context(t)
	v := encrypted(t, e, "v")
	for _, n := range []string{"n1", "n2"} {
		r.provisionKey(n, tlsSecret("old"))
		publish(t, e, v.ID, node(n))
	}
	s := testkit.Value(r.connectAt(v, "n1", r.endpoints[0].tls, spdktest.Keys{TLS: tlsSecret("old")}))(t)
	for _, n := range []string{"n1", "n2"} {
		r.provisionKey(n, tlsSecret("new"))
	}
	testkit.Must(t, e.compare(ctx, e.order[0]))
	wantAlive(t, "connected", []session{s}, true) // SPDK resets it when a handshake of another one fails
	s.Close()
	r.wantTLS(v, "n2", tlsSecret("new"))
	r.wantTLS(v, "n1", tlsSecret("old"))
	testkit.Must(t, e.compare(ctx, e.order[0]))
	r.wantTLS(v, "n1", tlsSecret("new"))
	if ring := testkit.Value(e.order[0].keyring(ctx))(t); ring[entryOf("n1")].replaced || ring[entryOf("n2")].replaced {
		t.Errorf("hosts have a removed key: keyring %+v", ring)
	}
}

// A host that was admitted without its key, or where no key is needed, has no session
// after the comparison that began so.
func testListenerWithoutTLS(t *testing.T, r *rig) {
	r.needsProgram()
	e := r.engine()
	ctx := testkit.Context(t)
	v := encrypted(t, e, "v")
	r.provisionKey("n1", tlsSecret("n1"))
	publish(t, e, v.ID, node("n1"))
	r.openPlain(v, r.endpoints[0].addr)
	s := testkit.Value(r.connectAt(v, "n1", r.endpoints[0].addr, spdktest.Keys{}))(t)
	nqn := v.Locator.(access.NVMe).NQN
	testkit.Must(t, e.compare(ctx, e.order[0]))
	if left := testkit.Value(r.client(0).SubsystemControllers(ctx, nqn))(t); len(left) > 0 {
		t.Errorf("sessions without TLS are left: %+v", left)
	}
	s.Close()
	r.wantTLS(v, "n1", tlsSecret("n1"))
	testkit.Must(t, r.client(0).RemoveHost(ctx, nqn, access.HostNQN("n1")), r.client(0).AddHost(ctx, nqn, access.HostNQN("n1"), rpc.HostKeys{}))
	testkit.Must(t, e.compare(ctx, e.order[0]))
	r.wantTLS(v, "n1", tlsSecret("n1"))
}

// Where another subsystem has opened the socket without TLS, SPDK shows TLS for those
// that come later, and has none: no host is admitted. Neither a revocation nor a fence
// waits for that.
func testSocketWithoutTLS(t *testing.T, r *rig) {
	r.needsProgram()
	e := r.engine()
	ctx := testkit.Context(t)
	other := create(t, e, "other", volume.Source{})
	nqn := other.Locator.(access.NVMe).NQN
	r.openPlain(other, r.endpoints[0].tls)
	_, err := e.Create(ctx, withParameters("v", volume.Source{}, keyTLS, "gold"))
	testkit.WantError(t, "create", err, errs.Precondition, r.endpoints[0].tls.String(), nqn)
	testkit.Must(t, r.client(0).RemoveListener(ctx, nqn, addressOf("tcp", r.endpoints[0].tls)))
	v := encrypted(t, e, "v")
	testkit.Must(t, r.client(0).DeleteSubsystem(ctx, v.Locator.(access.NVMe).NQN))
	r.openPlain(other, r.endpoints[0].tls)
	r.provisionKey("n1", tlsSecret("n1"))
	testkit.Must(t, grant(t, e, v.ID, node("n1", "192.0.2.1")))
	testkit.WantError(t, "publish", e.Enforce(ctx, v.ID), errs.Precondition, r.endpoints[0].tls.String(), nqn, "remove all listeners")
	testkit.WantError(t, "compare", e.compare(ctx, e.order[0]), errs.Precondition, nqn)
	for _, keys := range []spdktest.Keys{{}, {TLS: tlsSecret("n1")}} {
		if s, err := r.connectAt(v, "n1", r.endpoints[0].tls, keys); err == nil {
			s.Close()
			t.Errorf("n1 connects with %+v", keys)
		}
	}
	testkit.Must(t, enforcer(t, e).Fence(ctx, block("192.0.2.1/32")))
	unpublish(t, e, v.ID, "n1")
	testkit.Must(t, r.client(0).RemoveListener(ctx, nqn, addressOf("tcp", r.endpoints[0].tls)))
	testkit.Must(t, grant(t, e, v.ID, node("n2", "192.0.2.2")))
	r.provisionKey("n2", tlsSecret("n2"))
	testkit.Must(t, e.compare(ctx, e.order[0]))
	r.wantTLS(v, "n2", tlsSecret("n2"))
	r.openPlain(other, r.endpoints[0].tls)
	testkit.WantError(t, "compare", e.compare(ctx, e.order[0]), errs.Precondition, nqn)
}

// A volume that is adopted after the loss of the records still requires TLS. If its
// export does not show which key, it is not adopted.
func TestAdoptedVolumeKeepsTLS(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	v, idle := encrypted(t, e, "v"), encrypted(t, e, "idle")
	for _, n := range []string{"n1", "n2"} {
		r.provisionKey(n, tlsSecret(n))
	}
	publish(t, e, v.ID, node("n1"))
	r.object = storetest.NewObject(store.ErrChanged)
	next := r.engine()
	publish(t, next, v.ID, node("n2"))
	r.wantTLS(v, "n2", tlsSecret("n2"))
	if l := testkit.Value(next.Get(testkit.Context(t), v.ID))(t).Locator.(access.NVMe); l.TLSKey != "gold" || l.Paths[0] != r.endpoints[0].tls {
		t.Errorf("the adopted volume has %+v", l)
	}
	testkit.Must(t, grant(t, next, idle.ID, node("n2")))
	testkit.WantError(t, "adopt without the name of the key", next.Enforce(testkit.Context(t), idle.ID), errs.Precondition, keyTLS, idle.Locator.(access.NVMe).NQN)
	_, err := next.Create(testkit.Context(t), withParameters("idle", volume.Source{}, keyTLS, "gold"))
	testkit.Must(t, err)
}

// A target without TLS is refused when the volume is created, and says what it lacks.
func TestTargetWithoutTLS(t *testing.T) {
	r := newRig(t, "one", "two")
	e := r.engine(func(c *Config) { c.Targets[0].TLSAddresses = nil })
	ctx := testkit.Context(t)
	if v := encrypted(t, e, "v"); v.ID != volumeID(targetName(1), v.Locator.(access.NVMe).UUID) {
		t.Errorf("volume %s is not on the target with TLS", v.ID)
	}
	req := withParameters("w", volume.Source{}, keyTLS, "gold")
	req.Parameters[keyTarget] = targetName(0)
	_, err := e.Create(ctx, req)
	testkit.WantError(t, "create without addresses", err, errs.Precondition, targetName(0), "tlsAddresses")
	without := testkit.Value(e.Capacity(ctx, volume.CapacityQuery{Parameters: req.Parameters}))(t)
	if without.Available != 0 {
		t.Errorf("capacity %+v for volumes that are refused", without)
	}
	old := newRig(t)
	old.flavour = spdktest.Fork
	old.start(0)
	_, err = old.engine().Create(ctx, withParameters("v", volume.Source{}, keyTLS, "gold"))
	testkit.WantError(t, "create on an old release", err, errs.Precondition, "v24.01", "SPDK 24.09")
	_, err = New(Config{Targets: []Target{{Name: "t", Transport: "rdma", Addresses: []netip.AddrPort{targetAddr(0)}, TLSAddresses: []netip.AddrPort{targetAddr(1)}}}})
	wantKind(t, err, "TLS with RDMA", errs.Invalid)
}
