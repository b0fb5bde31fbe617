package spdk

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/store/storetest"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/nvmehost"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

func TestMain(m *testing.M) {
	child()
	goleak.VerifyTestMain(m)
}

// rig has targets, and a database.
type rig struct {
	t          testing.TB
	network    *spdktest.Network   // nil with a real target
	targets    []*spdktest.Process // none with a real target
	endpoints  []endpoint          // of the targets
	real       *rpc.Client         // of the real target, which accepts 64 connections
	object     *storetest.Object
	log        *testkit.Log
	timing     spdktest.Timing // of targets that are started
	flavour    spdktest.Flavour
	noUnmap    bool             // of the bdevs that are offered
	diskFile   string           // of the real target
	process    *testkit.Process // the real target, if the test has started it
	initiators []*initiator     // of a real target
}

type endpoint struct {
	socket string
	addr   netip.AddrPort
	tls    netip.AddrPort // for volumes with TLS
	store  string
}

const (
	storeName = "lvs0"
	cluster   = mib
	storeMiB  = 2048
)

// newRig starts targets with an lvol store each.
func newRig(t testing.TB, names ...string) *rig {
	t.Helper()
	r := &rig{t: t, network: spdktest.NewNetwork(nil), object: storetest.NewObject(store.ErrChanged), log: testkit.NewLog(t)}
	for i := range names {
		r.start(i)
	}
	return r
}

func targetName(i int) string { return fmt.Sprintf("target-%d", i) }

func targetAddr(i int) netip.AddrPort {
	return netip.MustParseAddrPort(fmt.Sprintf("198.51.100.%d:4420", i+1))
}

func nextPort(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), a.Port()+1) }

func (r *rig) start(i int) {
	r.t.Helper()
	dir := testkit.Dir(r.t)
	p := testkit.Value(r.network.Start(spdktest.Config{
		Socket: filepath.Join(dir, "rpc.sock"), Addresses: []string{targetAddr(i).Addr().String()}, Timing: r.timing, Flavour: r.flavour,
	}))(r.t)
	r.t.Cleanup(func() { testkit.Must(r.t, p.Close()) })
	r.targets = append(r.targets, p)
	r.endpoints = append(r.endpoints, endpoint{p.Socket(), targetAddr(i), nextPort(targetAddr(i)), storeName})
	disk := filepath.Join(dir, "disk")
	testkit.Must(r.t, os.WriteFile(disk, nil, 0o600), os.Truncate(disk, (storeMiB+2)*mib))
	r.offer(i)
	c := r.client(i)
	testkit.Must(r.t, c.Call(testkit.Context(r.t), "bdev_lvol_create_lvstore", map[string]any{"bdev_name": "disk", "lvs_name": storeName, "cluster_sz": cluster}, nil))
}

// offer creates the bdev of a target's store, as the configuration of a target
// does at its start.
func (r *rig) offer(i int) {
	r.t.Helper()
	testkit.Must(r.t, r.offered(i))
}

func (r *rig) offered(i int) error {
	r.t.Helper()
	name, file := "disk", r.diskFile
	if file == "" {
		file = filepath.Join(filepath.Dir(r.targets[i].Socket()), "disk")
	} else {
		name = r.endpoints[i].store
	}
	return r.client(i).CreateAIO(testkit.Context(r.t), rpc.AIO{Name: name, Filename: file, BlockSize: 4096, Fallocate: !r.noUnmap})
}

func (r *rig) client(i int) *rpc.Client {
	r.t.Helper()
	c := testkit.Value(rpc.Open(rpc.Config{Socket: r.endpoints[i].socket}))(r.t)
	r.t.Cleanup(func() { testkit.Must(r.t, c.Close()) })
	return c
}

// engine returns a new engine with its own clients, as another process has.
func (r *rig) engine(change ...func(*Config)) *Engine {
	r.t.Helper()
	db := testkit.Value(store.OpenShared(testkit.Context(r.t), "of the test", r.object, storeOptions()))(r.t)
	c := Config{Database: db, Grants: ledger.New(db), HostNQN: access.HostNQN, Interval: 20 * time.Millisecond, Logger: r.log.Logger()}
	for i, p := range r.endpoints {
		c.Targets = append(c.Targets, Target{
			Name: targetName(i), Client: r.client(i), Transport: "tcp", Addresses: []netip.AddrPort{p.addr}, TLSAddresses: []netip.AddrPort{p.tls}, Stores: []string{p.store},
		})
	}
	for _, f := range change {
		f(&c)
	}
	e := testkit.Value(New(c))(r.t)
	e.tookOver = make(chan struct{})
	close(e.tookOver)              // no other controller has admitted a client before
	e.answerTime = testkit.Timeout // tests with a target that does not answer have less
	return e
}

func ledgerOf(e *Engine) *ledger.Ledger { return e.config.Grants.(*ledger.Ledger) }

// run runs the background part of an engine until the test ends.
func (r *rig) run(e *Engine) (stop func()) { return testkit.Go(r.t, e.Run) }

func request(name string, source volume.Source) volume.CreateRequest {
	return volume.CreateRequest{Name: name, Size: volume.SizeRange{Required: 16 * mib}, Content: volume.Raw, Source: source}
}

func create(t testing.TB, e *Engine, name string, source volume.Source) volume.Volume {
	t.Helper()
	return testkit.Value(e.Create(testkit.Context(t), request(name, source)))(t)
}

func takeSnap(t testing.TB, e *Engine, name string, source volume.ID) volume.Snapshot {
	t.Helper()
	return testkit.Value(e.CreateSnapshot(testkit.Context(t), volume.SnapshotRequest{Name: name, Source: source}))(t)
}

func node(name string, addrs ...string) volume.Client {
	c := volume.Client{Node: name}
	for _, a := range addrs {
		c.Addrs = append(c.Addrs, netip.MustParseAddr(a))
	}
	return c
}

func grant(t testing.TB, e *Engine, id volume.ID, c volume.Client) error {
	g := volume.Grant{Volume: id, Client: c, NameOnly: len(c.Addrs) == 0, Mode: "MULTI_NODE_MULTI_WRITER/block"}
	_, err := ledgerOf(e).Grant(testkit.Context(t), g)
	return err
}

// publish does what the CSI controller does.
func publish(t testing.TB, e *Engine, id volume.ID, c volume.Client) {
	t.Helper()
	testkit.Must(t, grant(t, e, id, c), e.Enforce(testkit.Context(t), id))
}

func unpublish(t testing.TB, e *Engine, id volume.ID, node string) {
	t.Helper()
	testkit.Must(t, revoke(testkit.Context(t), e, id, node))
}

func revoke(ctx context.Context, e *Engine, id volume.ID, node string) error {
	return ledgerOf(e).Revoke(ctx, id, node, func(ctx context.Context) error { return e.Revoke(ctx, id, node) })
}

// connect connects a host to a volume as its node plugin does.
func (r *rig) connect(v volume.Volume, host, source string) (session, error) {
	r.t.Helper()
	if r.network == nil {
		return r.connectReal(v, host, source)
	}
	l := v.Locator.(access.NVMe)
	return r.network.Connect(host, source, l.NQN, spdktest.Address{Transport: "TCP", Host: l.Paths[0].Addr().String(), Port: fmt.Sprint(l.Paths[0].Port())})
}

func (r *rig) mustConnect(v volume.Volume, host, source string) session {
	r.t.Helper()
	s := testkit.Value(r.connect(v, host, source))(r.t)
	r.t.Cleanup(s.Close)
	return s
}

func (r *rig) refused(v volume.Volume, host string) {
	r.t.Helper()
	s, err := r.connect(v, host, "127.0.1.99")
	if err == nil {
		s.Close()
		r.t.Errorf("host %s connects to volume %s", host, v.ID)
	} else if r.network == nil && !errors.Is(err, nvmehost.InvalidHost) {
		r.t.Errorf("host %s: %v; want a refusal of the host", host, err)
	}
}

func wantKind(t testing.TB, err error, what string, kind errs.Kind) {
	t.Helper()
	if err == nil || errs.KindOf(err) != kind {
		t.Errorf("%s: %v (%s), want %s", what, err, errs.KindOf(err), kind)
	} else {
		t.Logf("%s: %v", what, err)
	}
}

// store returns the lvol store of a target.
func (r *rig) store(i int) rpc.LvolStore {
	r.t.Helper()
	stores := testkit.Value(r.client(i).LvolStores(testkit.Context(r.t)))(r.t)
	at := slices.IndexFunc(stores, func(s rpc.LvolStore) bool { return s.Name == r.endpoints[i].store })
	if at < 0 {
		r.t.Fatalf("target %d has no store %s", i, r.endpoints[i].store)
	}
	return stores[at]
}

// lvols returns the names of the lvols of a target.
func (r *rig) lvols(i int) (names []string) {
	r.t.Helper()
	for _, l := range testkit.Value(r.client(i).Lvols(testkit.Context(r.t), r.store(i).UUID))(r.t) {
		names = append(names, l.Name)
	}
	return names
}

// left fails the test if anything is left of deleted volumes.
func (r *rig) left(i int) {
	r.t.Helper()
	if names := r.lvols(i); len(names) > 0 {
		r.t.Errorf("target %d still has the lvols %q", i, names)
	}
	for _, s := range testkit.Value(r.client(i).Subsystems(testkit.Context(r.t)))(r.t) {
		if strings.HasPrefix(s.NQN, nqnPrefix) {
			r.t.Errorf("target %d still exports %s", i, s.NQN)
		}
	}
}

// removeAll deletes all volumes and snapshots, the sources first. Nothing must be
// left on the target or in the database.
func (r *rig) removeAll(e *Engine) {
	r.t.Helper()
	ctx := testkit.Context(r.t)
	for _, s := range testkit.Value(e.ListSnapshots(ctx, volume.SnapshotQuery{}))(r.t) {
		testkit.Must(r.t, e.DeleteSnapshot(ctx, s.ID))
	}
	for _, v := range testkit.Value(e.List(ctx, "", 0))(r.t) {
		testkit.Must(r.t, ledgerOf(e).Revoke(ctx, v.ID, "", nil), e.Delete(ctx, v.ID))
	}
	for _, t := range e.order {
		testkit.Must(r.t, e.sweep(ctx, t))
	}
	r.left(0)
	testkit.Must(r.t, e.config.Database.View(ctx, func(tx *store.Tx) error {
		left := slices.Concat(keys(tx, volumes()), keys(tx, snapshots()), keys(tx, names()), keys(tx, deleted()))
		if len(left) > 0 {
			r.t.Errorf("the database still has records of %q", left)
		}
		return nil
	}))
}

func keys[T any](tx *store.Tx, b store.Bucket[T]) (all []string) {
	for entry := range b.Range(tx, "") {
		all = append(all, entry.Key)
	}
	return all
}

// interrupt leaves what a killed creation of a volume leaves: its record and its
// lvol.
func (r *rig) interrupt(e *Engine, name string, sizeMiB int64) record {
	r.t.Helper()
	ctx := testkit.Context(r.t)
	p, _ := e.stores(ctx, settings{target: targetName(0)})
	left := record{
		Name: name, Target: targetName(0), Store: p[0].store.UUID, StoreName: p[0].store.Name, Size: sizeMiB * mib, FirstSize: sizeMiB * mib,
		Content: volume.Raw, Created: time.Now().UTC().Truncate(time.Millisecond),
	}
	testkit.Must(r.t, e.put(ctx, nil, left))
	_, err := p[0].target.Client.CreateLvol(ctx, rpc.LvolCreate{StoreUUID: left.Store, Name: lvolName(name), SizeMiB: sizeMiB, Thin: true})
	testkit.Must(r.t, err)
	return left
}

// storeOptions are those of the driver (driver.StateFlags).
func storeOptions() store.Options {
	return store.Options{Role: "controller", Version: 1, Preallocate: 4 << 20}
}
