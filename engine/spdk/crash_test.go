//go:build crashpoints

package spdk

import (
	"bytes"
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/store"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// childWork is one call of an engine with one target.
type childWork struct {
	enginetest.Call
	Socket, Database string
}

func child() { enginetest.Child(runChild) }

func runChild(ctx context.Context, w childWork) error {
	db, err := store.Open(ctx, w.Database, storeOptions())
	if err != nil {
		return err
	}
	client, err := rpc.Open(rpc.Config{Socket: w.Socket})
	if err != nil {
		return err
	}
	e, err := New(fileConfig(db, client))
	if err != nil {
		return err
	}
	return w.Do(ctx, e.Backend())
}

func fileConfig(db *store.Store, client *rpc.Client) Config {
	return Config{
		Database: db, Grants: ledger.New(db), HostNQN: access.HostNQN,
		Targets: []Target{{Name: targetName(0), Client: client, Transport: "tcp", Addresses: []netip.AddrPort{targetAddr(0)}, TLSAddresses: []netip.AddrPort{nextPort(targetAddr(0))}}},
	}
}

// TestCrashPoints holds the list below to the code.
func TestCrashPoints(t *testing.T) {
	var listed []string
	for _, c := range crashCases {
		listed = append(listed, c.points...)
	}
	slices.Sort(listed)
	if diff := cmp.Diff(slices.Compact(listed), testkit.CrashPoints(t)); diff != "" {
		t.Errorf("the crash points of the test and of the code differ:\n%s", diff)
	}
}

// crashCases are calls, and the points at which their process is killed. base is
// a volume with a grant of node n1; s is a snapshot of it with a clone.
var crashCases = []struct {
	name   string
	points []string
	work   func(base volume.Volume, s volume.Snapshot) enginetest.Call
}{
	{"create", []string{"create.recorded", "create.created", "create.completed", "export.subsystem", "export.admitted", "create.exported"}, func(volume.Volume, volume.Snapshot) enginetest.Call {
		req := request("new", volume.Source{})
		return enginetest.Call{Create: &req}
	}},
	{"clone", []string{"create.recorded", "create.frozen", "create.cloned", "create.created", "create.completed"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call {
		req := request("new", volume.Source{Volume: base.ID})
		req.Size.Required = 32 * mib
		return enginetest.Call{Create: &req}
	}},
	{"restore", []string{"create.recorded", "create.created"}, func(_ volume.Volume, s volume.Snapshot) enginetest.Call {
		req := request("new", volume.Source{Snapshot: s.ID})
		return enginetest.Call{Create: &req}
	}},
	{"zero", []string{"create.recorded", "zero.snapshot", "zero.resized", "zero.started", "create.created", "create.completed", "create.exported"}, func(volume.Volume, volume.Snapshot) enginetest.Call {
		req := withParameters("new", volume.Source{}, keyThin, "false")
		return enginetest.Call{Create: &req}
	}},
	{"discard", []string{"discard.recorded"}, func(volume.Volume, volume.Snapshot) enginetest.Call {
		req := request("new", volume.Source{})
		return enginetest.Call{Create: &req}
	}},
	{"expand", []string{"expand.grown"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call {
		return enginetest.Call{Expand: base.ID, Size: 32 * mib}
	}},
	{"modify", []string{"modify.recorded"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call {
		return enginetest.Call{Modify: base.ID, Attributes: map[string]string{keyIOPS: "5000"}}
	}},
	{"enforce", []string{"export.removed", "export.admitted"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call { return enginetest.Call{Enforce: base.ID} }},
	{"keys", []string{"export.removed", "export.keyed", "export.admitted"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call { return enginetest.Call{Enforce: base.ID} }},
	{"tls", []string{"export.plain", "export.removed", "export.keyed", "export.admitted"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call { return enginetest.Call{Enforce: base.ID} }},
	{"close", []string{"export.closed"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call { return enginetest.Call{Enforce: base.ID} }},
	{"snapshot", []string{"snapshot.recorded", "snapshot.taken"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call {
		return enginetest.Call{Snapshot: &volume.SnapshotRequest{Name: "new", Source: base.ID}}
	}},
	{"unsnap", []string{"unsnap.recorded", "unsnap.deleted"}, func(_ volume.Volume, s volume.Snapshot) enginetest.Call { return enginetest.Call{Unsnap: s.ID} }},
	{"unsnap alone", []string{"unsnap.marked", "unsnap.deleted"}, func(_ volume.Volume, s volume.Snapshot) enginetest.Call { return enginetest.Call{Unsnap: s.ID} }},
	{"delete without unmap", []string{"unclean.recorded"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call { return enginetest.Call{Delete: base.ID} }},
	{"delete", []string{"delete.recorded", "delete.unexported", "delete.deleted"}, func(base volume.Volume, _ volume.Snapshot) enginetest.Call { return enginetest.Call{Delete: base.ID} }},
}

// TestKilled kills a process at each point. A repeat by the next one succeeds,
// nothing exists twice, and when all is deleted nothing is left.
func TestKilled(t *testing.T) {
	for _, c := range crashCases {
		for _, point := range c.points {
			t.Run(c.name+"/"+point, func(t *testing.T) {
				r := newRig(t)
				r.timing.RemoveHost = time.Second
				r.start(0)
				database := filepath.Join(testkit.Dir(t), "controller.db")
				client := r.client(0)
				with := func(use func(e *Engine)) {
					db := testkit.Value(store.Open(testkit.Context(t), database, storeOptions()))(t)
					defer func() { testkit.Must(t, db.Close()) }()
					use(testkit.Value(New(fileConfig(db, client)))(t))
				}
				var call enginetest.Call
				var base volume.Volume
				with(func(e *Engine) { base, call = prepare(t, r, e, c.name, point, c.work) })
				enginetest.Kill(t, childWork{call, r.targets[0].Socket(), database}, point)
				r.targets[0].ReleaseInflate()
				with(func(e *Engine) {
					r.listed(e)
					if c.name == "close" { // not only the repeat ends what is left
						testkit.Must(t, e.compare(testkit.Context(t), e.order[0]))
						r.check(e, c.name, base)
					}
					testkit.Must(t, call.Do(testkit.Context(t), e.Backend()))
					r.check(e, c.name, base)
					if c.name == "zero" {
						r.checkZeroed(e, base, call)
					}
					r.removeAll(e)
				})
			})
		}
	}
}

func prepare(t *testing.T, r *rig, e *Engine, name, point string, work func(volume.Volume, volume.Snapshot) enginetest.Call) (volume.Volume, enginetest.Call) {
	req := request("base", volume.Source{})
	if name == "keys" {
		r.provision("n1", "secret")
		req.Parameters = map[string]string{keyDHChap: "gold"}
	}
	if name == "tls" {
		r.provisionKey("n1", tlsSecret("n1"))
		req.Parameters = map[string]string{keyTLS: "gold"}
	}
	base := testkit.Value(e.Create(testkit.Context(t), req))(t)
	s := takeSnap(t, e, "snap", base.ID)
	if name != "unsnap alone" {
		create(t, e, "restored", volume.Source{Snapshot: s.ID})
	}
	switch name {
	case "delete", "delete without unmap":
		if name != "delete" {
			r.withoutUnmap()
		}
		return base, work(base, s)
	case "discard":
		r.interrupt(e, "new", 8)
	case "zero":
		r.write(base)
		r.withoutUnmap()
		r.soil(e)
		if point == "zero.started" {
			r.targets[0].HoldInflate(5)
		}
	}
	publish(t, e, base.ID, node("n1", "192.0.2.1"))
	if name == "keys" { // admitted without its key
		nqn := base.Locator.(access.NVMe).NQN
		testkit.Must(t, r.client(0).SetHostKeys(testkit.Context(t), nqn, access.HostNQN("n1"), rpc.HostKeys{}))
		r.mustConnect(base, access.HostNQN("n1"), "192.0.2.1")
	}
	if name == "tls" { // admitted without its key, at an address without TLS
		nqn := base.Locator.(access.NVMe).NQN
		testkit.Must(t, r.client(0).RemoveHost(testkit.Context(t), nqn, access.HostNQN("n1")), r.client(0).AddHost(testkit.Context(t), nqn, access.HostNQN("n1"), rpc.HostKeys{}))
		r.openPlain(base, targetAddr(0))
		testkit.Value(r.connectAt(base, "n1", targetAddr(0), spdktest.Keys{}))(t)
	}
	if name == "close" { // every host was admitted
		nqn := base.Locator.(access.NVMe).NQN
		testkit.Must(t, r.client(0).AllowAnyHost(testkit.Context(t), nqn, true))
		r.mustConnect(base, oldHost, "192.0.2.9")
	}
	if name == "enforce" { // n1 has to go, n2 to come
		_, err := ledgerOf(e).Grant(testkit.Context(t), volume.Grant{Volume: base.ID, Client: node("n2", "192.0.2.2"), Mode: "MULTI_NODE_MULTI_WRITER/block"})
		testkit.Must(t, err, ledgerOf(e).Revoke(testkit.Context(t), base.ID, "n1", nil))
		r.mustConnect(base, access.HostNQN("n1"), "192.0.2.1")
	}
	return base, work(base, s)
}

// listed fails the test if a volume is listed whose lvol does not exist.
func (r *rig) listed(e *Engine) {
	r.t.Helper()
	for _, v := range testkit.Value(e.List(testkit.Context(r.t), "", 0))(r.t) {
		if !slices.Contains(r.lvols(0), lvolName(v.Name)) {
			r.t.Errorf("volume %s is listed, but its lvol is deleted", v.Name)
		}
	}
}

// checkZeroed fails the test if the new volume shows old data, or if a repeat of its
// creation changes any data.
func (r *rig) checkZeroed(e *Engine, base volume.Volume, call enginetest.Call) {
	r.t.Helper()
	v := testkit.Value(e.Create(testkit.Context(r.t), *call.Create))(r.t)
	r.showsZeros("the new volume", v)
	r.write(v)
	testkit.Must(r.t, call.Do(testkit.Context(r.t), e.Backend()))
	for _, v := range []volume.Volume{v, base} {
		if b := r.read(v); !bytes.Equal(b, bytes.Repeat([]byte("secret! "), len(b)/8)) {
			r.t.Errorf("volume %s has not the data that was written", v.Name)
		}
	}
}

// check compares the volumes with those expected after a call.
func (r *rig) check(e *Engine, name string, base volume.Volume) {
	r.t.Helper()
	want := map[string]int64{"base": 16 * mib, "restored": 16 * mib}
	switch name {
	case "create", "restore", "discard", "zero":
		want["new"] = 16 * mib
	case "clone":
		want["new"] = 32 * mib
	case "expand":
		want["base"] = 32 * mib
	case "delete", "delete without unmap":
		delete(want, "base")
	case "unsnap alone":
		delete(want, "restored")
	}
	got := map[string]int64{}
	for _, v := range testkit.Value(e.List(testkit.Context(r.t), "", 0))(r.t) {
		got[v.Name] = v.Size
	}
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("volumes after the repeat (-want +got):\n%s", diff)
	}
	if name == "close" {
		if n := r.network.Controllers(base.Locator.(access.NVMe).NQN)[oldHost]; n > 0 {
			r.t.Errorf("a host without a grant has %d sessions", n)
		}
	}
	if name == "keys" {
		if n := r.network.Controllers(base.Locator.(access.NVMe).NQN)[access.HostNQN("n1")]; n > 0 {
			r.t.Errorf("the host has %d sessions that began without its key", n)
		}
		r.wantKey(base, "n1", "secret")
	}
	if name == "tls" {
		if n := r.network.Controllers(base.Locator.(access.NVMe).NQN)[access.HostNQN("n1")]; n > 0 {
			r.t.Errorf("the host has %d sessions without TLS", n)
		}
		r.wantTLS(base, "n1", tlsSecret("n1"))
	}
	if name == "enforce" {
		if n := r.network.Controllers(base.Locator.(access.NVMe).NQN)[access.HostNQN("n1")]; n > 0 {
			r.t.Errorf("the revoked client has %d sessions after the repeat", n)
		}
		r.refused(base, access.HostNQN("n1"))
		r.mustConnect(base, access.HostNQN("n2"), "192.0.2.2").Close()
	}
}
