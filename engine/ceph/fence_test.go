//go:build ceph

package ceph

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"

	"github.com/cleatproject/cleat/engine/ceph/blocklist"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/enforce"
	fences "github.com/cleatproject/cleat/fence/plan"
	reach "github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

var nodeAddress = netip.MustParseAddr("198.51.100.7")

// fenceRig is a controller that fences, and a node with an address of its own.
type fenceRig struct {
	*testing.T
	engine   *Engine // of images, if it is that
	ledger   *ledger.Ledger
	recorder *blocklist.Fencer
	fencer   *timedFencer
	enforcer *enforce.Enforcer
	node     testkit.NetNS
}

// timedFencer records when a fence was proved, before the enforcer confirms it.
type timedFencer struct {
	volume.Fencer
	proved time.Time
}

func (f *timedFencer) Apply(ctx context.Context, desired volume.FenceSet) error {
	err := f.Fencer.Apply(ctx, desired)
	f.proved = time.Now()
	return err
}

// newFenceRig assembles the controller of images as cmd/cleat does.
func newFenceRig(t *testing.T, user string, caps ...string) *fenceRig {
	config := testConfig(t)
	config.Credentials = cephconf.Credentials{User: user, Key: testkit.Value(shared.User(user, caps...))(t)}
	e := open(t, config)
	r := assembleFences(t, e, func(f *blocklist.Fencer) volume.Fencer { return f })
	r.engine = e
	return r
}

// assembleFences assembles the fences of a controller.
func assembleFences(t *testing.T, cluster interface {
	store.Object
	blocklist.Cluster
}, fencer func(*blocklist.Fencer) volume.Fencer) *fenceRig {
	r := &fenceRig{T: t}
	db := testkit.Value(store.OpenShared(testkit.Context(t), "of the test", cluster, store.Options{Role: "controller", Version: 1}))(t)
	r.ledger = ledger.New(db)
	logger := testkit.NewLog(t).Logger()
	r.recorder = blocklist.New(blocklist.Config{Cluster: cluster, Grants: r.ledger, Database: db, Interval: 20 * time.Millisecond, Logger: logger})
	r.fencer = &timedFencer{Fencer: fencer(r.recorder)}
	operations := op.New(context.Background(), testkit.Timeout)
	t.Cleanup(func() { testkit.Must(t, operations.Close(context.Background())) })
	r.enforcer = testkit.Value(enforce.New(enforce.Config{
		Ledger: r.ledger, Operations: operations, Locals: []enforce.Local{{Name: "ceph", Fencer: r.fencer}}, Logger: logger,
		Network: func(context.Context) (reach.Network, error) {
			return reach.Network{Own: []netip.Addr{clusterAddress}}, nil
		},
	}))(t)
	return r
}

// connectNode connects a network namespace to that of the cluster.
func (r *fenceRig) connectNode() {
	r.node = testkit.NewNetNS(r)
	ip := func(args ...string) { testkit.Run(r, "ip", args...) }
	ip("link", "add", "cluster", "type", "veth", "peer", "name", "node", "netns", r.node.Path())
	testkit.Must(r, r.node.Do(func() error {
		ip("address", "add", netip.PrefixFrom(nodeAddress, 24).String(), "dev", "node")
		ip("link", "set", "node", "up")
		return nil
	}))
	ip("link", "set", "cluster", "up")
	ip("route", "add", nodeAddress.String(), "dev", "cluster")
	r.Cleanup(func() { ip("link", "del", "cluster") })
}

// client returns a new client instance on the node, which has a volume open.
func (r *fenceRig) client(v volume.Volume) (c *rados.Conn, d device, err error) {
	err = r.node.Do(func() error { // librados' threads are in the namespace, too
		c, err = dial(shared.Cluster)
		return err
	})
	if err != nil {
		return nil, device{}, err
	}
	r.Cleanup(c.Shutdown)
	l := v.Locator.(access.RBD)
	io := testkit.Value(c.OpenIOContext(l.Pool))(r)
	r.Cleanup(io.Destroy)
	io.SetNamespace(l.Namespace)
	i, err := rbd.OpenImage(io, l.Image, rbd.NoSnapshot)
	if err != nil {
		return nil, device{}, err
	}
	r.Cleanup(func() { _ = i.Close() }) // of a fenced client it fails
	return c, device{i}, nil
}

// writers write to all placement groups until they fail.
type writers struct {
	running sync.WaitGroup
	counts  [16]int
	last    [16]time.Time // when the last write that succeeded began
	errs    [16]error
	began   sync.WaitGroup
}

func (r *fenceRig) write(d device) *writers {
	w := &writers{}
	stop := make(chan struct{})
	r.Cleanup(func() { close(stop); w.running.Wait() })
	const object = 4 * mib
	block := make([]byte, 4096)
	for n := range w.counts {
		w.began.Add(1)
		w.running.Go(func() {
			began := sync.OnceFunc(w.began.Done)
			defer began()
			for !isClosed(stop) {
				now := time.Now()
				if _, w.errs[n] = d.WriteAt(block, int64(n)*object); w.errs[n] != nil {
					return
				}
				if w.last[n], w.counts[n] = now, w.counts[n]+1; w.counts[n] == 3 {
					began()
				}
			}
		})
	}
	w.began.Wait()
	return w
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// wantEnded waits until all writers failed. No write that succeeded began after
// the fence was proved.
func (r *fenceRig) wantEnded(w *writers, proved time.Time) {
	r.Helper()
	w.running.Wait()
	sum, last := 0, time.Time{}
	for n, err := range w.errs {
		if !is(err, syscall.ESHUTDOWN) {
			r.Errorf("writer %d ended with %v, want %v", n, err, syscall.ESHUTDOWN)
		}
		if sum += w.counts[n]; w.last[n].After(last) {
			last = w.last[n]
		}
	}
	if last.After(proved) {
		r.Errorf("a write that began %v after the fence was proved succeeded", last.Sub(proved))
	}
	fmt.Printf("REPORT: ceph: of %d writes the last that succeeded began %.1f ms before the fence was proved\n", sum, float64(proved.Sub(last).Microseconds())/1000)
}

func requestFor(block string) fences.Request {
	owner := volume.FenceOwner{Digest: strings.Repeat("0", 64)}
	return fences.Request{Owner: owner, Blocks: []netip.Prefix{netip.MustParsePrefix(block)}}
}

func (r *fenceRig) fence(block string) error {
	return r.enforcer.Fence(testkit.Context(r), requestFor(block))
}

func (r *fenceRig) unfence(block string) {
	r.Helper()
	testkit.Must(r, r.enforcer.Unfence(testkit.Context(r), requestFor(block)))
}

// wantFenced compares the fences as the enforcer reads them back, and the
// entries of the cluster's blocklist at addresses of the node's network.
func (r *fenceRig) wantFenced(blocks []string, entries ...string) {
	r.Helper()
	var got []string
	for _, b := range testkit.Value(r.enforcer.List(testkit.Context(r), nil))(r) {
		got = append(got, b.String())
	}
	if !slices.Equal(got, blocks) {
		r.Errorf("fenced are %q, want %q", got, blocks)
	}
	var dump struct {
		Blocklist map[string]string
		Ranges    map[string]string `json:"range_blocklist"`
	}
	testkit.Must(r, json.Unmarshal([]byte(testkit.Value(shared.Command("osd", "dump", "--format", "json"))(r)), &dump))
	got = nil
	for _, m := range []map[string]string{dump.Blocklist, dump.Ranges} {
		for e := range m {
			killed := strings.HasPrefix(e, clusterAddress.String()+":") // a controller or daemon, by another test
			if strings.Contains(e, "198.51.100.") && !killed {
				got = append(got, e)
			}
		}
	}
	testkit.Diff(r, "the blocklist", slices.Sorted(slices.Values(entries)), slices.Sorted(slices.Values(got)))
}

// wantDead: the client cannot write.
func (r *fenceRig) wantDead(d device) {
	r.Helper()
	if _, err := d.WriteAt([]byte("late"), 0); !is(err, syscall.ESHUTDOWN) {
		r.Errorf("a write of a fenced client: %v, want %v", err, syscall.ESHUTDOWN)
	}
}

// instances returns the recorded client instances of the node, as entries of
// the blocklist.
func (r *fenceRig) instances() (entries []string, clients []uint64) {
	r.Helper()
	for _, i := range testkit.Value(r.ledger.Records(testkit.Context(r)))(r).InstancesIn(netip.PrefixFrom(nodeAddress, 32).Contains) {
		entries, clients = append(entries, fmt.Sprintf("%s:0/%d", i.Addr, i.Nonce)), append(clients, i.Client)
	}
	return entries, clients
}

// grant creates a volume and grants it to the node.
func (r *fenceRig) grant() volume.Volume {
	r.Helper()
	req := request("granted", volume.Source{})
	req.Size.Required = 64 * mib
	v := testkit.Value(r.engine.Create(testkit.Context(r), req))(r)
	c := volume.Client{Node: "node", Addrs: []netip.Addr{nodeAddress}}
	testkit.Value(r.ledger.Grant(testkit.Context(r), volume.Grant{Volume: v.ID, Client: c, Mode: "SINGLE_NODE_WRITER/block", Granted: time.Now()}))(r)
	return v
}

// TestFence fences a node that writes, by address and by range. When the call
// returns, the OSDs refuse its requests; after the fence its old client stays
// refused.
func TestFence(t *testing.T) {
	r := newFenceRig(t, "fencer", "mon", `profile rbd, allow command "osd blocklist"`, "mgr", "profile rbd pool="+testPool, "osd", "allow *")
	r.connectNode()
	t.Cleanup(func() { testkit.Value(shared.Command("osd", "blocklist", "clear"))(t) })
	stop := testkit.Go(t, r.recorder.Run)
	v := r.grant()
	var instances []string
	for block, entry := range map[string]string{
		"198.51.100.7/32": "198.51.100.7:0/0",
		"198.51.100.4/30": "cidr:198.51.100.4:0/30",
	} {
		client, old, err := r.client(v)
		testkit.Must(t, err)
		testkit.Eventually(t, "the client instance is recorded", func() bool {
			_, clients := r.instances()
			return slices.Contains(clients, client.GetInstanceID())
		})
		w := r.write(old)
		testkit.Must(t, r.fence(block))
		r.wantEnded(w, r.fencer.proved)
		instances, _ = r.instances()
		r.wantFenced([]string{block}, append(instances, entry)...)
		if _, _, err := r.client(v); !is(err, syscall.ESHUTDOWN) {
			t.Errorf("a new client of a fenced node: %v, want %v", err, syscall.ESHUTDOWN)
		}
		create(t, r.engine, "while fenced by "+block, volume.Source{})

		r.unfence(block)
		r.wantFenced(nil, instances...)
		_, again, err := r.client(v)
		testkit.Must(t, err)
		testkit.Value(again.WriteAt([]byte("new"), 0))(t)
		testkit.Must(t, again.Close())
		r.wantDead(old)
	}
	stop()
	for _, block := range []string{"198.51.100.0/30", "0.0.0.0/0"} {
		wantKind(t, r.fence(block), "a fence of the controller", errs.Invalid)
	}
	r.wantFenced(nil, instances...)
}

// A user that lacks a capability gets an error that names it, and no fence is
// reported.
func TestFenceIsDenied(t *testing.T) {
	t.Cleanup(func() { testkit.Value(shared.Command("osd", "blocklist", "clear"))(t) })
	for _, test := range []struct {
		block, capability string
		caps              []string
	}{
		// Each has a block of its own: the first leaves its entry, for a repeat.
		{"198.51.100.9/32", "osd 'allow *'", []string{"mon", `profile rbd, allow command "osd blocklist"`, "osd", "profile rbd pool=" + testPool}},
		{"198.51.100.10/32", `mon 'allow command "osd blocklist"'`, []string{"mon", "profile rbd", "osd", "allow *"}},
	} {
		r := newFenceRig(t, "denied", test.caps...)
		err := r.fence(test.block)
		wantKind(t, err, "a fence without "+test.capability, errs.Unavailable)
		if err != nil && !strings.Contains(err.Error(), test.capability) {
			t.Errorf("%v does not name %s", err, test.capability)
		}
		if list, err := r.enforcer.List(testkit.Context(t), nil); len(list) > 0 || err != nil {
			t.Errorf("fenced are %v, %v", list, err)
		}
	}
}
