package spdk

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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

// requestsPerCall are the requests of each call to a target with one listener.
// SPDK executes them on a core that also moves data.
func requestsPerCall() map[string][]string {
	// A new volume is read by name before it is recorded, as spdk-csi can have
	// created it, and afterwards, as an interrupted call can have.
	// So is the bdev of its store, which clears what others leave, or not.
	find := []string{"bdev_lvol_get_lvstores", "bdev_get_bdevs", "bdev_get_bdevs", "bdev_get_bdevs"}
	export := []string{
		"nvmf_get_subsystems", "nvmf_create_subsystem", "nvmf_get_subsystems",
		"nvmf_subsystem_add_ns", "nvmf_subsystem_add_listener",
	}
	// An interrupted revocation can have left sessions of a host without a grant.
	const others = "nvmf_subsystem_get_controllers"
	copied := func(clone ...string) []string { return slices.Concat(find, clone, export) }
	return map[string][]string{
		"create":          slices.Concat(find, []string{"bdev_lvol_create", "bdev_get_bdevs"}, export),
		"create again":    nil,
		"get":             nil,
		"list":            nil,
		"publish":         {"nvmf_get_subsystems", others, "nvmf_subsystem_add_host"},
		"publish again":   {"nvmf_get_subsystems", others},
		"expand":          {"bdev_get_bdevs", "bdev_lvol_get_lvstores", "bdev_get_bdevs", "bdev_lvol_resize", "bdev_get_bdevs"},
		"modify":          {"nvmf_get_subsystems", others, "bdev_set_qos_limit"},
		"health":          {"bdev_get_bdevs", "bdev_get_bdevs"}, // at last that of the store
		"capacity":        {"bdev_lvol_get_lvstores", "bdev_get_bdevs"},
		"snapshot":        {"bdev_get_bdevs", "bdev_lvol_snapshot", "bdev_get_bdevs"},
		"restore":         copied("bdev_lvol_clone", "bdev_get_bdevs"),
		"delete snapshot": {"bdev_get_bdevs", "bdev_get_bdevs", "bdev_lvol_delete"},
		"clone":           copied("bdev_lvol_snapshot", "bdev_lvol_clone", "bdev_get_bdevs", "bdev_get_bdevs"), // at last the snapshot
		"unpublish":       {"nvmf_get_subsystems", "nvmf_subsystem_remove_host", "nvmf_subsystem_get_controllers", others},
		"delete":          {"nvmf_subsystem_get_controllers", "bdev_get_bdevs", "nvmf_delete_subsystem", "bdev_get_bdevs", "bdev_lvol_delete"},
		// One list of all subsystems instead of a request per volume.
		"comparison": {"nvmf_get_subsystems" + ofAll},
	}
}

func TestRequestsDoNotGrowWithVolumes(t *testing.T) {
	seen := map[int]map[string][]string{}
	const few, many = 3, 30
	r := newRig(t, "one")
	e := r.engine()
	for i := range many {
		if i == few {
			seen[few] = r.requests(e)
		}
		v := create(t, e, fmt.Sprintf("present-%d", i), volume.Source{})
		publish(t, e, v.ID, node("node", "192.0.2.1"))
	}
	seen[many] = r.requests(e)
	if diff := cmp.Diff(seen[few], seen[many]); diff != "" {
		t.Errorf("requests with %d (-) and with %d (+) volumes on the target: %s", few, many, diff)
	}
	if diff := cmp.Diff(requestsPerCall(), seen[many]); diff != "" {
		t.Errorf("requests, wanted (-) and sent (+): %s", diff)
	}
	for call, methods := range seen[many] {
		if call != "comparison" && slices.ContainsFunc(methods, func(m string) bool { return strings.HasSuffix(m, ofAll) }) {
			t.Errorf("%s lists everything on the target: %q", call, methods)
		}
	}
}

// requests makes each call once, and removes what was created.
func (r *rig) requests(e *Engine) map[string][]string {
	r.t.Helper()
	ctx, t := testkit.Context(r.t), r.t
	seen := map[string][]string{}
	do := func(what string, call func()) {
		r.requested(0)
		call()
		seen[what] = r.requested(0)
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
