package spdk

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

var (
	zoneA = map[string]string{"region": "r", "zone": "a"}
	zoneB = map[string]string{"region": "r", "zone": "b"}
	zoneC = map[string]string{"region": "r", "zone": "c"}
)

// newZones has a target in each of the zones a and b.
func newZones(t *testing.T) (*rig, *Engine) {
	t.Helper()
	r := newRig(t, "a", "b")
	return r, r.engine(func(c *Config) { c.Targets[0].Topology, c.Targets[1].Topology = zoneA, zoneB })
}

func requestIn(name string, places ...map[string]string) volume.CreateRequest {
	r := request(name, volume.Source{})
	r.Topology = places
	return r
}

func TestPlacedByTopology(t *testing.T) {
	_, e := newZones(t)
	ctx := testkit.Context(t)
	thick := requestIn("thick", zoneB)
	thick.Parameters, thick.Size.Required = map[string]string{keyThin: "false"}, 1500*mib
	testkit.Value(e.Create(ctx, thick))(t)
	large := requestIn("large", zoneB, zoneA) // a has less space now, and is preferred nevertheless where b's is enough
	large.Size.Required = 1000 * mib
	for _, c := range []struct {
		req  volume.CreateRequest
		want map[string]string
	}{
		{requestIn("only a", zoneA), zoneA},
		{requestIn("only b", zoneB), zoneB},
		{requestIn("preferred", zoneB, zoneA), zoneB},
		{requestIn("first unknown", zoneC, zoneB), zoneB},
		{requestIn("fewer keys", map[string]string{"zone": "b"}), zoneB},
		{requestIn("more keys", map[string]string{"Zone": "b", "region": "r", "rack": "7"}), zoneB},
		{requestIn("no requirement"), zoneA},
		{large, zoneA},
	} {
		v := testkit.Value(e.Create(ctx, c.req))(t)
		again := testkit.Value(e.Create(ctx, c.req))(t)
		listed := testkit.Value(e.Get(ctx, v.ID))(t)
		if diff := cmp.Diff([]map[string]string{c.want, c.want, c.want}, []map[string]string{v.Topology, again.Topology, listed.Topology}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.req.Name, diff)
		}
	}
	for name, places := range map[string][]map[string]string{
		"unknown zone": {zoneC}, "zone of another region": {{"region": "s", "zone": "a"}}, "other keys": {{"rack": "7"}},
	} {
		_, err := e.Create(ctx, requestIn("nowhere", places...))
		wantKind(t, err, name, errs.Exhausted)
	}
}

// A copy is where its source is.
func TestTopologyOfACopy(t *testing.T) {
	_, e := newZones(t)
	ctx := testkit.Context(t)
	v := testkit.Value(e.Create(ctx, requestIn("source", zoneA)))(t)
	s := takeSnap(t, e, "snap", v.ID)
	for _, source := range []volume.Source{{Volume: v.ID}, {Snapshot: s.ID}} {
		r := request("copy-"+string(source.Volume), source)
		r.Topology = []map[string]string{zoneB}
		_, err := e.Create(ctx, r)
		wantKind(t, err, "a copy in another zone", errs.Exhausted)
		r.Topology = []map[string]string{zoneB, zoneA}
		if diff := cmp.Diff(zoneA, testkit.Value(e.Create(ctx, r))(t).Topology); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", source, diff)
		}
	}
}

// A repeat with other places: a volume that was returned is in the way, a
// creation that was interrupted is discarded.
func TestRepeatInAnotherZone(t *testing.T) {
	r, e := newZones(t)
	ctx := testkit.Context(t)
	testkit.Value(e.Create(ctx, requestIn("v", zoneA)))(t)
	_, err := e.Create(ctx, requestIn("v", zoneB))
	wantKind(t, err, "the name of a volume in another zone", errs.Exists)
	r.interrupt(e, "interrupted", 16)
	if diff := cmp.Diff(zoneB, testkit.Value(e.Create(ctx, requestIn("interrupted", zoneB)))(t).Topology); diff != "" {
		t.Errorf("after an interrupted creation (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{lvolName("v")}, r.lvols(0)); diff != "" {
		t.Errorf("lvols in zone a (-want +got):\n%s", diff)
	}
}

func TestCapacityOfAZone(t *testing.T) {
	_, e := newZones(t)
	capacity := func(topology map[string]string) volume.Capacity {
		return testkit.Value(e.Capacity(testkit.Context(t), volume.CapacityQuery{Topology: topology}))(t)
	}
	all, a, c := capacity(nil), capacity(zoneA), capacity(zoneC)
	if a.Available == 0 || all.Available != 2*a.Available || all.Maximum != a.Maximum {
		t.Errorf("all targets have %+v, zone a has %+v", all, a)
	}
	if c.Available != 0 || c.Maximum != 0 {
		t.Errorf("a zone without a target has %+v", c)
	}
}

// The space of a target that does not answer, or of a store whose bdev cannot be read,
// is not known. It is left out of a sum, and is not zero.
func TestCapacityOfWhatCannotBeRead(t *testing.T) {
	r, e := newZones(t)
	ctx := testkit.Context(t)
	capacity := func(topology map[string]string) (volume.Capacity, error) {
		return e.Capacity(ctx, volume.CapacityQuery{Topology: topology})
	}
	a := testkit.Value(capacity(zoneA))(t)
	for what, fault := range map[string]spdktest.Fault{
		"the target does not answer": {Instead: spdktest.Drop},
		"the bdev cannot be read":    {Method: "bdev_get_bdevs", Error: &spdktest.Error{Code: -32603, Message: "Internal error"}},
	} {
		r.targets[1].Inject(fault)
		_, err := capacity(zoneB)
		testkit.WantError(t, "the zone, and "+what, err, errs.Unavailable, targetName(1))
		for _, topology := range []map[string]string{nil, zoneA} {
			if got := testkit.Value(capacity(topology))(t); got != a {
				t.Errorf("%s: capacity of %v is %+v, want that of the other target, %+v", what, topology, got, a)
			}
		}
		if got := testkit.Value(capacity(zoneC))(t); got.Available != 0 {
			t.Errorf("%s: a zone without a target has %+v", what, got)
		}
		r.targets[1].Clear()
	}
	full := withParameters("full", volume.Source{}, keyThin, "false", keyTarget, targetName(0))
	full.Size.Required = a.Available
	testkit.Value(e.Create(ctx, full))(t)
	r.targets[1].Inject(spdktest.Fault{Instead: spdktest.Drop})
	_, err := capacity(nil)
	testkit.WantError(t, "one target is full, and the other does not answer", err, errs.Unavailable, targetName(1))
}
