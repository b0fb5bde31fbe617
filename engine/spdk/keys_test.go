package spdk

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
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

// keyed creates a volume that requires keys.
func keyed(t testing.TB, e *Engine, name string) volume.Volume {
	t.Helper()
	req := request(name, volume.Source{})
	req.Parameters = map[string]string{keyDHChap: "gold"}
	return testkit.Value(e.Create(testkit.Context(t), req))(t)
}

func entryOf(node string) string { return keyEntry("gold", access.HostNQN(node)) }

// provision gives the target the key of a secret for a node.
func (r *rig) provision(node, secret string) {
	r.t.Helper()
	r.provisionKey(node, chapKey(secret)+"\n")
}

// provisionKey does what an agent at the target does: it replaces the key of a node.
func (r *rig) provisionKey(node, key string) {
	r.t.Helper()
	file := r.keyFile(fmt.Sprintf("%s-%x", node, sha256.Sum256([]byte(key))), key)
	if err := r.client(0).RemoveKey(testkit.Context(r.t), entryOf(node)); err != nil {
		testkit.WantError(r.t, "remove the key", err, rpc.NotFound)
	}
	testkit.Must(r.t, r.client(0).AddKeyFile(testkit.Context(r.t), entryOf(node), file))
}

// keyFile stores a key. The target is on this machine, and accepts no line break at
// the end of a key of TLS.
func (r *rig) keyFile(name, key string) (path string) {
	r.t.Helper()
	path = filepath.Join(filepath.Dir(r.endpoints[0].socket), name)
	testkit.Must(r.t, os.WriteFile(path, []byte(key), 0o600))
	return path
}

// chapKey has the format of nvme gen-dhchap-key.
func chapKey(secret string) string {
	if secret == "" {
		return ""
	}
	key := sha256.Sum256([]byte(secret))
	return "DHHC-1:00:" + base64.StdEncoding.EncodeToString(binary.LittleEndian.AppendUint32(key[:], crc32.ChecksumIEEE(key[:]))) + ":"
}

// authenticate connects node n1 from 127.0.1.1, n2 from 127.0.1.2, with the key of a
// secret.
func (r *rig) authenticate(v volume.Volume, node, secret string) (session, error) {
	r.t.Helper()
	return r.connectAt(v, node, v.Locator.(access.NVMe).Paths[0], spdktest.Keys{DHChap: chapKey(secret)})
}

func (r *rig) connectAt(v volume.Volume, node string, to netip.AddrPort, keys spdktest.Keys) (session, error) {
	r.t.Helper()
	nqn, source := v.Locator.(access.NVMe).NQN, "127.0.1."+strings.TrimPrefix(node, "n")
	if r.network == nil {
		return r.initiatorFor(nqn).connect(nqn, to, access.HostNQN(node), source, keys)
	}
	at := spdktest.Address{Transport: "TCP", Host: to.Addr().String(), Port: fmt.Sprint(to.Port())}
	return r.network.Authenticate(access.HostNQN(node), source, nqn, at, keys)
}

// wantKey fails the test unless the secret, and no other, admits a node.
func (r *rig) wantKey(v volume.Volume, node, secret string) {
	r.t.Helper()
	s, err := r.authenticate(v, node, secret)
	if err != nil {
		r.t.Errorf("node %s with its key: %v", node, err)
		return
	}
	s.Close()
	for _, other := range []string{"", "other"} {
		if s, err := r.authenticate(v, node, other); err == nil {
			s.Close()
			r.t.Errorf("node %s connects with the key %q", node, other)
		}
	}
}

// A host is admitted with the key of its own in the target's keyring, or not at
// all.
func testKeyOfAHost(t *testing.T, r *rig) {
	e := r.engine()
	ctx := testkit.Context(t)
	v := keyed(t, e, "v")
	if l := v.Locator.(access.NVMe); l.DHChapKey != "gold" || l.DHChapCtrlrKey != "" {
		t.Errorf("locator %+v", l)
	}
	testkit.Must(t, grant(t, e, v.ID, node("n1", "127.0.1.1")))
	err := e.Enforce(ctx, v.ID)
	testkit.WantError(t, "publish without a key", err, errs.Precondition, "entry "+entryOf("n1"), "keyring_file_add_key", access.HostNQN("n1"))
	r.refused(v, access.HostNQN("n1"))

	r.provision("n1", "secret")
	testkit.Must(t, e.Enforce(ctx, v.ID), e.Enforce(ctx, v.ID))
	r.wantKey(v, "n1", "secret")
	plain := create(t, e, "plain", volume.Source{})
	publish(t, e, plain.ID, node("n1", "127.0.1.1"))
	r.mustConnect(plain, access.HostNQN("n1"), "127.0.1.1").Close()

	unpublish(t, e, v.ID, "n1")
	if s, err := r.authenticate(v, "n1", "secret"); err == nil {
		s.Close()
		t.Error("a revoked host connects with its key")
	}
}

// The key of a target is an entry of its own.
func TestKeyOfATarget(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	req := request("v", volume.Source{})
	req.Parameters = map[string]string{keyDHChap: "gold", keyDHChapCtrlr: "silver"}
	v := testkit.Value(e.Create(testkit.Context(t), req))(t)
	r.provision("n1", "secret")
	testkit.Must(t, grant(t, e, v.ID, node("n1")))
	missing := keyEntry("silver", access.HostNQN("n1"))
	testkit.WantError(t, "publish", e.Enforce(testkit.Context(t), v.ID), errs.Precondition, missing)
	testkit.Must(t, r.client(0).AddKeyFile(testkit.Context(t), missing, r.keyFile("n1-silver", chapKey("silver"))))
	testkit.Must(t, e.Enforce(testkit.Context(t), v.ID))
	s := testkit.Value(r.client(0).Subsystem(testkit.Context(t), v.Locator.(access.NVMe).NQN))(t)
	if keys, _ := s.Keys(access.HostNQN("n1")); keys != (rpc.HostKeys{Host: entryOf("n1"), Target: missing}) {
		t.Errorf("keys %+v", keys)
	}
}

// An entry that is replaced in the keyring authenticates the host from then on,
// without a call. Its sessions go on.
func testRotation(t *testing.T, r *rig) {
	e := r.engine()
	ctx := testkit.Context(t)
	v := keyed(t, e, "v")
	r.provision("n1", "old")
	publish(t, e, v.ID, node("n1"))
	s := testkit.Value(r.authenticate(v, "n1", "old"))(t)
	defer s.Close()
	r.provision("n1", "new")
	testkit.Must(t, e.compare(ctx, e.order[0]), e.compare(ctx, e.order[0]))
	r.wantKey(v, "n1", "new")
	if !s.Alive() {
		t.Error("the session from before the rotation has ended")
	}
	if ring := testkit.Value(r.client(0).Keyring(ctx))(t); len(ring) != 1 {
		t.Errorf("hosts have a removed key: keyring %+v", ring)
	}
	if _, err := r.authenticate(v, "n1", "old"); err == nil {
		t.Error("the former key authenticates")
	}
}

// After a restart the keyring of a target is empty: no host is admitted until
// its key is there, and no other host waits for that.
func testKeysAfterARestart(t *testing.T, r *rig) {
	e := r.engine()
	ctx := testkit.Context(t)
	v := keyed(t, e, "v")
	for _, name := range []string{"n1", "n2"} {
		r.provision(name, name)
		publish(t, e, v.ID, node(name))
	}
	r.kill()
	r.provision("n2", "n2")
	testkit.WantError(t, "compare", e.compare(ctx, e.order[0]), errs.Precondition, entryOf("n1"))
	r.wantKey(v, "n2", "n2")
	r.refused(v, access.HostNQN("n1"))
	r.provision("n1", "n1")
	testkit.Must(t, e.compare(ctx, e.order[0]))
	r.wantKey(v, "n1", "n1")
}

// A fence and a revocation do not wait for keys, of whichever host.
func testFenceWithoutKeys(t *testing.T, r *rig) {
	e := r.engine()
	ctx := testkit.Context(t)
	v := keyed(t, e, "v")
	var sessions []session
	for i, name := range []string{"n1", "n2", "n3"} {
		r.provision(name, name)
		publish(t, e, v.ID, node(name, fmt.Sprintf("127.0.1.%d", i+1)))
		sessions = append(sessions, testkit.Value(r.authenticate(v, name, name))(t))
	}
	for _, name := range []string{"n1", "n2", "n3"} {
		testkit.Must(t, r.client(0).RemoveKey(ctx, entryOf(name)))
	}
	fenced := block("127.0.1.1/32")
	fenced.Force = true // loopback is this server's own
	testkit.Must(t, grant(t, e, v.ID, node("n4", "127.0.1.4")), enforcer(t, e).Fence(ctx, fenced))
	wantAlive(t, "fenced", sessions[:1], false)
	unpublish(t, e, v.ID, "n2")
	wantAlive(t, "revoked", sessions[1:2], false)
	wantAlive(t, "other", sessions[2:], true)
	// A host that no list names, as after an interrupted call.
	nqn := v.Locator.(access.NVMe).NQN
	testkit.Must(t, r.client(0).AddHost(ctx, nqn, oldHost, rpc.HostKeys{}))
	s := r.mustConnect(v, oldHost, "127.0.1.9")
	testkit.Must(t, r.client(0).AllowAnyHost(ctx, nqn, true))
	testkit.WantError(t, "compare", e.compare(ctx, e.order[0]), errs.Precondition, entryOf("n4"))
	wantAlive(t, "unknown", []session{s}, false)
	sessions[2].Close()
}

// A host that was admitted without its key, as by hand, has no session after the
// comparison that began so.
func testHostWithoutItsKey(t *testing.T, r *rig) {
	e := r.engine()
	ctx := testkit.Context(t)
	v := keyed(t, e, "v")
	r.provision("n1", "secret")
	publish(t, e, v.ID, node("n1"))
	testkit.Must(t, r.client(0).SetHostKeys(ctx, v.Locator.(access.NVMe).NQN, access.HostNQN("n1"), rpc.HostKeys{}))
	s := r.mustConnect(v, access.HostNQN("n1"), "127.0.1.1")
	testkit.Must(t, e.compare(ctx, e.order[0]))
	wantAlive(t, "unauthenticated", []session{s}, false)
	r.wantKey(v, "n1", "secret")
}

// A volume that is adopted after the loss of the records still requires keys, also
// from a host that comes later.
func TestAdoptedVolumeKeepsItsKeys(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	v := keyed(t, e, "v")
	for _, name := range []string{"n1", "n2"} {
		r.provision(name, name)
	}
	publish(t, e, v.ID, node("n1"))
	s := testkit.Value(r.authenticate(v, "n1", "n1"))(t)
	defer s.Close()
	r.object = storetest.NewObject(store.ErrChanged)
	next := r.engine()
	publish(t, next, v.ID, node("n2"))
	r.wantKey(v, "n2", "n2")
	r.wantKey(v, "n1", "n1")
	wantAlive(t, "present", []session{s}, true)
	if got := testkit.Value(next.Get(testkit.Context(t), v.ID))(t).Locator.(access.NVMe).DHChapKey; got != "gold" {
		t.Errorf("the adopted volume has the key %q", got)
	}
	_, err := next.Create(testkit.Context(t), request("v", volume.Source{}))
	wantKind(t, err, "create it without keys", errs.Exists)
}

// Parameters name keys. What can be a key is not shown.
func TestKeyParameters(t *testing.T) {
	const secret = "DHHC-1:00:aHVzaGh1c2hodXNoaHVzaGh1c2hodXNoaHVzaGh1c2gR4vk9:"
	for value, words := range map[string]string{
		keyDHChap + "=" + secret:    "is not the name of a key",
		keyDHChap + "=/etc/keys/a":  "--nvme-key-dir",
		keyDHChap + "=":             "is not the name of a key",
		keyDHChapCtrlr + "=silver":  "dhchapCtrlrKey requires dhchapKey",
		keyTLS + "=" + secret:       "is not the name of a key",
		keyDHChap + "=gold:ring":    "is not the name of a key",
		keyDHChap + "=gold.of-node": "",
	} {
		key, v, _ := strings.Cut(value, "=")
		_, err := parseSettings(map[string]string{key: v})
		if (err == nil) != (words == "") || err != nil && (errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "aHVz")) {
			t.Errorf("%s: %v, want %q", value, err, words)
		}
	}
}

// A process of a release that ignores keys, or has none, admits no host.
func TestTargetWithoutAKeyring(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	v := keyed(t, e, "v")
	r.provision("n1", "secret")
	r.targets[0].Inject(spdktest.Fault{Method: "keyring_get_keys", Error: &spdktest.Error{Code: -32601, Message: "Method not found"}})
	testkit.Must(t, grant(t, e, v.ID, node("n1")))
	testkit.WantError(t, "publish", e.Enforce(testkit.Context(t), v.ID), errs.Precondition, "SPDK 24.09")
	r.refused(v, access.HostNQN("n1"))
	unpublish(t, e, v.ID, "n1")
}
