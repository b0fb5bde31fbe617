package spdk

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/store"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// ofAll marks a request whose response has every object of the target.
const ofAll = " of all"

// requested returns the methods of the requests to a target since the last call.
func (r *rig) requested(i int) (all []string) {
	r.t.Helper()
	for _, c := range r.targets[i].Calls() {
		var filter struct{ Name, NQN string }
		if len(c.Params) > 0 {
			testkit.Must(r.t, json.Unmarshal(c.Params, &filter))
		}
		method := c.Method
		switch {
		case method == "bdev_get_bdevs" && filter.Name == "", method == "nvmf_get_subsystems" && filter.NQN == "", method == "bdev_lvol_get_lvols":
			method += ofAll
		}
		all = append(all, method)
	}
	r.targets[i].Forget()
	return all
}

// requestsPerCall are the requests of each call to a target with one listener, and
// the transactions. SPDK executes requests on a core that also moves data, and looks
// for them every 4 ms; a state in a ConfigMap is read for each transaction.
func requestsPerCall() map[string]cost {
	// A new volume is read by name before it is recorded, as spdk-csi can have
	// created it; and so is the bdev of its store, which clears what others leave, or
	// not.
	find := []string{"bdev_lvol_get_lvstores", "bdev_get_bdevs", "bdev_get_bdevs"}
	export := []string{"nvmf_create_subsystem", "nvmf_subsystem_add_ns", "nvmf_subsystem_add_listener"}
	// An interrupted revocation can have left sessions of a host without a grant.
	const others = "nvmf_subsystem_get_controllers"
	copied := func(clone ...string) []string { return slices.Concat(find, clone, export) }
	return map[string]cost{
		"create":          {slices.Concat(find, []string{"bdev_lvol_create"}, export), 2, 2},
		"create again":    {nil, 1, 0},
		"get":             {nil, 1, 0},
		"list":            {nil, 1, 0},
		"publish":         {[]string{"nvmf_get_subsystems", others, "nvmf_subsystem_add_host"}, 4, 1},
		"publish again":   {[]string{"nvmf_get_subsystems", others}, 4, 1},
		"expand":          {[]string{"bdev_get_bdevs", "bdev_lvol_get_lvstores", "bdev_get_bdevs", "bdev_lvol_resize", "bdev_get_bdevs"}, 3, 1},
		"modify":          {[]string{"nvmf_get_subsystems", others, "bdev_set_qos_limit"}, 4, 1},
		"health":          {[]string{"bdev_get_bdevs", "bdev_get_bdevs"}, 2, 0}, // at last that of the store
		"capacity":        {[]string{"bdev_lvol_get_lvstores", "bdev_get_bdevs"}, 1, 0},
		"snapshot":        {[]string{"bdev_lvol_snapshot", "bdev_get_bdevs"}, 2, 2},
		"restore":         {copied("bdev_lvol_clone", "bdev_get_bdevs"), 3, 2},
		"delete snapshot": {[]string{"bdev_get_bdevs", "bdev_get_bdevs", "bdev_lvol_delete"}, 3, 2},
		"clone":           {copied("bdev_lvol_snapshot", "bdev_lvol_clone", "bdev_get_bdevs", "bdev_get_bdevs"), 3, 2}, // at last the snapshot
		"unpublish":       {[]string{"nvmf_get_subsystems", "nvmf_subsystem_remove_host", "nvmf_subsystem_get_controllers"}, 4, 2},
		"delete":          {[]string{"nvmf_subsystem_get_controllers", "bdev_get_bdevs", "bdev_get_bdevs", "nvmf_delete_subsystem", "bdev_lvol_delete"}, 2, 2},
		// One list of all subsystems instead of a request per volume.
		"comparison": {[]string{"nvmf_get_subsystems" + ofAll}, 1, 0},
	}
}

// cost is that of a call: the requests, sorted, as some are sent at once.
type cost struct {
	Requests       []string
	Views, Updates int
}

// counted counts the transactions of a database, without those that read the
// snapshot of another one.
type counted struct {
	store.Database
	views, updates, inside atomic.Int64
}

func (c *counted) View(ctx context.Context, fn func(*store.Tx) error) error {
	if c.inside.Add(1) == 1 {
		c.views.Add(1)
	}
	defer c.inside.Add(-1)
	return c.Database.View(ctx, fn)
}

func (c *counted) Update(ctx context.Context, fn func(*store.Tx) error) error {
	c.updates.Add(1)
	return c.Database.Update(ctx, fn)
}

func TestRequestsDoNotGrowWithVolumes(t *testing.T) {
	seen := map[int]map[string]cost{}
	const few, many = 3, 30
	r := newRig(t, "one")
	registry := prometheus.NewRegistry()
	var db *counted
	e := r.engine(func(c *Config) {
		db = &counted{Database: c.Database}
		c.Database, c.Grants = db, ledger.New(db)
		c.Targets[0].Client = testkit.Open(rpc.Open(rpc.Config{Socket: r.endpoints[0].socket, Metrics: registry}))(t)
	})
	testkit.Must(t, e.compare(testkit.Context(t), e.order[0])) // the first one is recorded
	for i := range many {
		if i == few {
			seen[few] = r.requests(e, db)
		}
		v := create(t, e, fmt.Sprintf("present-%d", i), volume.Source{})
		publish(t, e, v.ID, node("node", "192.0.2.1"))
	}
	seen[many] = r.requests(e, db)
	if diff := cmp.Diff(seen[few], seen[many]); diff != "" {
		t.Errorf("requests with %d (-) and with %d (+) volumes on the target: %s", few, many, diff)
	}
	want := requestsPerCall()
	for _, c := range want {
		slices.Sort(c.Requests)
	}
	if diff := cmp.Diff(want, seen[many]); diff != "" {
		t.Errorf("requests, wanted (-) and sent (+): %s", diff)
	}
	for call, c := range seen[many] {
		if methods := c.Requests; call != "comparison" && slices.ContainsFunc(methods, func(m string) bool { return strings.HasSuffix(m, ofAll) }) {
			t.Errorf("%s lists everything on the target: %q", call, methods)
		}
	}
	for _, f := range testkit.Value(registry.Gather())(t) {
		if n := f.GetMetric()[0].GetCounter().GetValue(); f.GetName() == "cleat_spdk_connects_total" && n > 4 {
			t.Errorf("%g connections for all calls, want those of the client's pool", n)
		}
	}
}

// requests makes each call once, and removes what was created.
func (r *rig) requests(e *Engine, db *counted) map[string]cost {
	r.t.Helper()
	ctx, t := testkit.Context(r.t), r.t
	seen := map[string]cost{}
	do := func(what string, call func()) {
		r.requested(0)
		db.views.Store(0)
		db.updates.Store(0)
		call()
		seen[what] = cost{slices.Sorted(slices.Values(r.requested(0))), int(db.views.Load()), int(db.updates.Load())}
	}
	var v, copied volume.Volume
	var s volume.Snapshot
	host := node("host", "192.0.2.2")
	do("create", func() { v = create(t, e, "v", volume.Source{}) })
	do("create again", func() { create(t, e, "v", volume.Source{}) })
	do("get", func() { testkit.Value(e.Get(ctx, v.ID))(t) })
	do("list", func() { testkit.Value(e.List(ctx, "", 0))(t) })
	do("publish", func() { publish(t, e, v.ID, host) })
	do("publish again", func() { publish(t, e, v.ID, host) })
	do("expand", func() { testkit.Value(e.Expand(ctx, v.ID, volume.SizeRange{Required: 32 * mib}))(t) })
	do("modify", func() { testkit.Value(e.Modify(ctx, v.ID, map[string]string{keyIOPS: "1000"}))(t) })
	do("health", func() { testkit.Value(e.VolumeHealth(ctx, v.ID))(t) })
	do("capacity", func() { testkit.Value(e.Capacity(ctx, volume.CapacityQuery{}))(t) })
	do("snapshot", func() { s = takeSnap(t, e, "s", v.ID) })
	do("restore", func() { copied = create(t, e, "restored", volume.Source{Snapshot: s.ID}) })
	testkit.Must(t, e.Delete(ctx, copied.ID))
	do("delete snapshot", func() { testkit.Must(t, e.DeleteSnapshot(ctx, s.ID)) })
	do("clone", func() { copied = create(t, e, "cloned", volume.Source{Volume: v.ID}) })
	testkit.Must(t, e.Delete(ctx, copied.ID))
	do("comparison", func() { testkit.Must(t, e.compare(ctx, e.order[0])) })
	do("unpublish", func() { unpublish(t, e, v.ID, "host") })
	do("delete", func() { testkit.Must(t, e.Delete(ctx, v.ID)) })
	return seen
}

// A fence reads the connections of every volume with a grant before it, when it is
// enforced, and at last, and changes only the export of the fenced client.
func TestRequestsOfFence(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	const published = 10
	for i := range published {
		publish(t, e, create(t, e, fmt.Sprint("v", i), volume.Source{}).ID, node(fmt.Sprint("n", i), fmt.Sprintf("192.0.2.%d", i+1)))
	}
	testkit.Must(t, e.compare(testkit.Context(t), e.order[0]))
	r.requested(0)
	testkit.Must(t, enforcer(t, e).Fence(testkit.Context(t), block("192.0.2.1/32")))
	seen := map[string]int{}
	for _, method := range r.requested(0) {
		seen[method]++
	}
	most := map[string]int{
		"nvmf_get_subsystems" + ofAll: 3, "nvmf_get_subsystems": 1, "nvmf_subsystem_get_qpairs": 3 * published,
		"nvmf_subsystem_remove_host": 1, "nvmf_subsystem_get_controllers": 1,
	}
	for method, n := range seen {
		if n > most[method] {
			t.Errorf("%d requests %s for a fence of one of %d clients, want at most %d", n, method, published, most[method])
		}
	}
}
