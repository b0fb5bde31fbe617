package spdk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/store/storetest"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// Only a client with a grant is admitted, and a revocation ends its session
// before it returns, also with releases that remove a host earlier.
func testGrant(t *testing.T, r *rig) {
	e := r.engine()
	v := create(t, e, "v", volume.Source{})
	n1, n2 := access.HostNQN("n1"), access.HostNQN("n2")
	r.refused(v, n1)
	publish(t, e, v.ID, node("n1", "127.0.1.1"))
	publish(t, e, v.ID, node("n2", "127.0.1.2"))
	s1, s2 := r.mustConnect(v, n1, "127.0.1.1"), r.mustConnect(v, n2, "127.0.1.2")
	for range 2 { // repeated
		unpublish(t, e, v.ID, "n1")
		if s1.Alive() {
			t.Error("the session of the revoked client is alive")
		}
		if !s2.Alive() {
			t.Error("the session of the other client has ended")
		}
		r.refused(v, n1)
	}
	wantKind(t, e.Delete(testkit.Context(t), v.ID), "delete while n2 is connected", errs.Precondition)
	unpublish(t, e, v.ID, "n2")
	testkit.Must(t, e.Delete(testkit.Context(t), v.ID), e.Enforce(testkit.Context(t), v.ID))
	r.left(0)
}

// A revocation whose deadline passed before the session has ended: a repeat ends
// it, although the host is on the list no more.
func TestRevokeAgain(t *testing.T) {
	r := newRig(t)
	r.timing.RemoveHost = 500 * time.Millisecond
	r.start(0)
	e := r.engine()
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	s := r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
	brief, cancel := context.WithTimeout(testkit.Context(t), 50*time.Millisecond)
	defer cancel()
	wantKind(t, revoke(brief, e, v.ID, "n1"), "revoke with a short deadline", errs.Unavailable)
	testkit.Must(t, revoke(testkit.Context(t), e, v.ID, "n1"))
	if s.Alive() {
		t.Error("the session of the revoked client is alive after the repeat")
	}
}

// A target that restarts has no exports. They come back without a call, and
// admit the same clients; a volume is not deleted because its store is missing.
func TestTargetRestarts(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	v := create(t, e, "v", volume.Source{})
	idle := create(t, e, "idle", volume.Source{})
	publish(t, e, v.ID, node("n1", "127.0.1.1"))
	host := access.HostNQN("n1")
	r.mustConnect(v, host, "127.0.1.1").Close()
	stop := r.run(e)
	defer stop()

	testkit.Must(t, r.targets[0].Restart())
	wantKind(t, e.Delete(testkit.Context(t), idle.ID), "delete while the store is missing", errs.Unavailable)
	if _, err := e.Get(testkit.Context(t), v.ID); err != nil {
		t.Errorf("a volume whose store is missing: %v", err)
	}
	testkit.Eventually(t, "the missing exports are a condition", func() bool {
		conditions := testkit.Value(e.StorageHealth(testkit.Context(t)))(t)
		return slices.ContainsFunc(conditions, func(c volume.Condition) bool { return c.Reason == volume.ReasonExportsIncomplete })
	})
	r.offer(0)
	testkit.EventuallyNil(t, "the client connects again", func() error {
		s, err := r.connect(v, host, "127.0.1.1")
		if err == nil {
			s.Close()
		}
		return err
	})
	r.refused(v, access.HostNQN("n2"))
	testkit.Eventually(t, "no condition is left", func() bool { return len(testkit.Value(e.StorageHealth(testkit.Context(t)))(t)) == 0 })
	testkit.Must(t, e.Delete(testkit.Context(t), idle.ID))
}

// Two controllers of one database, as after a change of the node: both get the
// same calls. Nothing exists twice, and the last record decides which clients are admitted.
func TestTwoControllers(t *testing.T) {
	r := newRig(t, "one", "two")
	both := []*Engine{r.engine(), r.engine()}
	ctx := testkit.Context(t)
	const count = 6
	ids := make([][2]volume.ID, count)
	var calls sync.WaitGroup
	for i := range count {
		for k, e := range both {
			calls.Go(func() {
				testkit.EventuallyNil(t, "create", func() error {
					v, err := e.Create(ctx, request(fmt.Sprintf("v%d", i), volume.Source{}))
					ids[i][k] = v.ID
					return err
				})
			})
		}
	}
	calls.Wait()
	for i, pair := range ids {
		if pair[0] != pair[1] {
			t.Errorf("v%d is %s and %s", i, pair[0], pair[1])
		}
	}
	if n := len(r.lvols(0)) + len(r.lvols(1)); n != count {
		t.Errorf("there are %d lvols, want %d", n, count)
	}
	v := testkit.Value(both[0].Get(ctx, ids[0][0]))(t)
	for round := range 10 {
		calls.Go(func() { publish(t, both[round%2], v.ID, node("n1", "127.0.1.1")) })
		calls.Go(func() { unpublish(t, both[(round+1)%2], v.ID, "n1") })
		calls.Wait()
	}
	unpublish(t, both[0], v.ID, "n1")
	testkit.Must(t, both[1].Enforce(ctx, v.ID))
	r.refused(v, access.HostNQN("n1"))
}

// A controller that gives an interrupted creation up, while another completes
// it, must not remove the volume; nor does a stale record overwrite another.
func TestDiscardAfterCompletion(t *testing.T) {
	r := newRig(t, "one")
	both := []*Engine{r.engine(), r.engine()}
	ctx := testkit.Context(t)
	stale := r.interrupt(both[0], "v", 16)
	v := create(t, both[1], "v", volume.Source{})
	wantKind(t, both[0].discard(ctx, stale), "remove a creation that another controller completed", errs.Busy)
	if names := r.lvols(0); !slices.Equal(names, []string{"v"}) {
		t.Errorf("lvols %q, want that of the volume", names)
	}
	before, _, err := both[0].recorded(ctx, v.ID)
	testkit.Must(t, err, testkit.Err(both[1].Modify(ctx, v.ID, map[string]string{keyIOPS: "5000"})))
	after := before
	after.Size = 32 * mib
	wantKind(t, both[0].put(ctx, &before, after), "overwrite a change of another controller", errs.Busy)
}

// An lvol without a record that has the name of a new volume, and another
// content, is not taken for it.
func TestNameOfAnotherLvol(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	source := create(t, e, "source", volume.Source{})
	c := r.client(0)
	stores := testkit.Value(c.LvolStores(ctx))(t)
	uuid := testkit.Value(c.CreateLvol(ctx, rpc.LvolCreate{StoreUUID: stores[0].UUID, Name: "taken", SizeMiB: 16, Thin: true}))(t)
	testkit.Must(t, testkit.Err(c.SnapshotLvol(ctx, uuid, "frozen")))
	for what, req := range map[string]volume.CreateRequest{
		"a copy": request("taken", volume.Source{Volume: source.ID}), "a volume with the name of a snapshot": request("frozen", volume.Source{}),
		"a volume of another size": {Name: "taken", Size: volume.SizeRange{Required: 32 * mib}, Content: volume.Raw},
	} {
		_, err := e.Create(ctx, req)
		wantKind(t, err, what, errs.Exists)
	}
	if all := testkit.Value(e.records(ctx))(t); len(all) != 1 {
		t.Errorf("%d records, want that of the source", len(all))
	}
}

// A volume of spdk-csi: its subsystem admits every host, and one is connected.
func testAdopt(t *testing.T, r *rig) {
	e := r.engine()
	ctx := testkit.Context(t)
	c := r.client(0)
	uuid := testkit.Value(c.CreateLvol(ctx, rpc.LvolCreate{StoreUUID: r.store(0).UUID, Name: "pvc-1", SizeMiB: 16, Thin: true}))(t)
	nqn := nqnOf(uuid)
	if err := c.CreateTransport(ctx, "TCP"); !errors.Is(err, rpc.Exists) {
		testkit.Must(t, err)
	}
	testkit.Must(t,
		c.Call(ctx, "nvmf_create_subsystem", map[string]any{"nqn": nqn, "allow_any_host": true, "serial_number": "spdkcsi-sn", "model_number": uuid}, nil),
		c.Call(ctx, "nvmf_subsystem_add_ns", map[string]any{"nqn": nqn, "namespace": map[string]any{"bdev_name": uuid}}, nil),
		c.AddListener(ctx, nqn, rpc.Listener{NVMeAddress: addressOf("tcp", r.endpoints[0].addr)}),
	)
	id := volumeID(targetName(0), uuid)
	v := testkit.Value(e.Get(ctx, id))(t)
	old := r.mustConnect(v, "nqn.2014-08.org.example:old", "127.0.1.7")

	publish(t, e, id, node("n1", "127.0.1.1"))
	if !old.Alive() {
		t.Error("the session from before the adoption has ended")
	}
	r.mustConnect(v, access.HostNQN("n1"), "127.0.1.1").Close()
	r.refused(v, "nqn.2014-08.org.example:new")
	if again := testkit.Value(e.Create(ctx, volume.CreateRequest{Name: "pvc-1", Size: volume.SizeRange{Required: 16 * mib}, Content: volume.Filesystem}))(t); again.ID != id {
		t.Errorf("CreateVolume of the same name returns %s, want %s", again.ID, id)
	}
	old.Close()
	r.away(e, v, "nqn.2014-08.org.example:old")
	unpublish(t, e, id, "n1")
	r.refused(v, "nqn.2014-08.org.example:old")
	testkit.Must(t, e.Delete(ctx, id), e.Delete(ctx, id))
	r.left(0)
}

// Sessions of hosts that no list names end, and those of the others go on:
// allow_any_host was on, as after a change by hand, and still is, or not.
func testAnyHost(t *testing.T, r *rig) {
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("n1", "127.0.1.1"))
	own := r.mustConnect(v, access.HostNQN("n1"), "127.0.1.1")
	allow := func(any bool) { testkit.Must(t, r.client(0).AllowAnyHost(ctx, v.Locator.(access.NVMe).NQN, any)) }
	for what, correct := range map[string]func() error{
		"every host is admitted": func() error { return e.compare(ctx, e.order[0]) },
		"every host was admitted": func() error {
			allow(false)
			return e.Enforce(ctx, v.ID)
		},
	} {
		allow(true)
		other := r.mustConnect(v, access.HostNQN("n2"), "127.0.1.2")
		testkit.Must(t, correct())
		if !own.Alive() || other.Alive() {
			t.Errorf("%s: alive: the admitted host %t, another one %t", what, own.Alive(), other.Alive())
		}
		r.refused(v, access.HostNQN("n2"))
	}
	own.Close()
	unpublish(t, e, v.ID, "n1")
	testkit.Must(t, e.Delete(ctx, v.ID))
	r.left(0)
}

// Exports that no record has are reported, and left alone.
func testUnknownExports(t *testing.T, r *rig) {
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	c := r.client(0)
	empty := nqnOf("00000000-0000-4000-8000-000000000000")
	testkit.Must(t, c.CreateSubsystem(ctx, rpc.SubsystemCreate{NQN: empty, Serial: "1", Model: "1", MaxNamespaces: 1}))
	lost := r.engine(func(c *Config) {
		db := testkit.Value(store.OpenShared(ctx, "of the test", storetest.NewObject(store.ErrChanged), storeOptions()))(t)
		c.Database, c.Grants = db, ledger.New(db)
	})
	testkit.Must(t, lost.compare(ctx, lost.order[0]))
	conditions := testkit.Value(lost.StorageHealth(ctx))(t)
	if len(conditions) != 1 || conditions[0].Reason != volume.ReasonUnknownExports || conditions[0].Severity != volume.Degraded {
		t.Fatalf("conditions: %+v", conditions)
	}
	enginetest.CheckMessage(t, conditions[0], targetName(0))
	testkit.Must(t, testkit.Err(c.Subsystem(ctx, empty)))
	if got := testkit.Value(lost.Get(ctx, v.ID))(t); got.ID != v.ID || got.Size != v.Size {
		t.Errorf("without its record the volume is %+v", got)
	}
	testkit.Must(t, e.Delete(ctx, v.ID))
}

// The limits of a volume are in force again after its target has restarted.
func TestLimits(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	testkit.Must(t, testkit.Err(e.Modify(ctx, v.ID, map[string]string{keyIOPS: "5000", keyReadMB: "7"})))
	testkit.Must(t, r.targets[0].Restart())
	r.offer(0)
	// The first export is interrupted between namespace and limits.
	r.targets[0].Inject(spdktest.Fault{Method: "bdev_set_qos_limit", Times: 1, Instead: spdktest.Drop})
	wantKind(t, e.Enforce(ctx, v.ID), "interrupted", errs.Unavailable)
	r.targets[0].Forget()
	testkit.Must(t, e.Enforce(ctx, v.ID))
	defer r.limitsAfterHotPlug(e, v)
	set := slices.DeleteFunc(r.targets[0].Calls(), func(c spdktest.Call) bool { return c.Method != "bdev_set_qos_limit" })
	if len(set) != 1 {
		t.Fatalf("limits were set %d times", len(set))
	}
	want := fmt.Sprintf(`{"name":"%s","rw_ios_per_sec":5000,"rw_mbytes_per_sec":0,"r_mbytes_per_sec":7,"w_mbytes_per_sec":0}`, r.uuid(v))
	if got := string(set[0].Params); got != want {
		t.Errorf("limits %s, want %s", got, want)
	}
	_, err := e.Modify(ctx, v.ID, map[string]string{keyIOPS: "many"})
	wantKind(t, err, "a limit that is no number", errs.Invalid)
}

// limitsAfterHotPlug interrupts an export that has kept its listener, as when the
// bdev of the store was removed and is back.
func (r *rig) limitsAfterHotPlug(e *Engine, v volume.Volume) {
	r.t.Helper()
	ctx := testkit.Context(r.t)
	testkit.Must(r.t, r.client(0).Do(ctx, "nvmf_subsystem_remove_ns", map[string]any{"nqn": nqnOf(r.uuid(v)), "nsid": 1}))
	r.targets[0].Inject(spdktest.Fault{Method: "bdev_set_qos_limit", Times: 1, Instead: spdktest.Drop})
	wantKind(r.t, e.compare(ctx, e.order[0]), "interrupted", errs.Unavailable)
	r.targets[0].Forget()
	for range 2 {
		testkit.Must(r.t, e.compare(ctx, e.order[0]))
	}
	if n := r.targets[0].Counts()["bdev_set_qos_limit"]; n != 1 {
		r.t.Errorf("limits were set %d times after the interruption, want once", n)
	}
}

// Limits that are changed on a volume with a client.
func testSetLimits(t *testing.T, r *rig) {
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("n1", "127.0.1.1"))
	s := r.mustConnect(v, access.HostNQN("n1"), "127.0.1.1")
	for _, set := range []struct {
		parameters map[string]string
		want       rpc.QoS
	}{
		{map[string]string{keyIOPS: "5000", keyReadMB: "7"}, rpc.QoS{IOPS: 5000, ReadMBytes: 7}},
		{map[string]string{keyIOPS: "20000", keyReadMB: "0"}, rpc.QoS{IOPS: 20000}},
	} {
		testkit.Must(t, testkit.Err(e.Modify(ctx, v.ID, set.parameters)))
		var bdevs []struct {
			Limits rpc.QoS `json:"assigned_rate_limits"`
		}
		testkit.Must(t, r.client(0).Call(ctx, "bdev_get_bdevs", map[string]any{"name": r.uuid(v)}, &bdevs))
		testkit.Diff(t, "the limits of the bdev", bdevs[0].Limits, set.want)
	}
	if !s.Alive() {
		t.Error("the session has ended")
	}
	s.Close()
	unpublish(t, e, v.ID, "n1")
	testkit.Must(t, e.Delete(ctx, v.ID))
	r.left(0)
}

// SPDK does not delete a snapshot that two volumes are made from: it goes with
// the second of them.
func testSnapshotWithClones(t *testing.T, r *rig) {
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	snap := takeSnap(t, e, "s", v.ID)
	first := create(t, e, "first", volume.Source{Snapshot: snap.ID})
	second := create(t, e, "second", volume.Source{Snapshot: snap.ID})
	for range 2 {
		testkit.Must(t, e.DeleteSnapshot(ctx, snap.ID))
	}
	if all := testkit.Value(e.ListSnapshots(ctx, volume.SnapshotQuery{}))(t); len(all) > 0 {
		t.Errorf("a deleted snapshot is listed: %v", all)
	}
	if err := testkit.Err(e.GetSnapshot(ctx, snap.ID)); errs.KindOf(err) != errs.NotFound {
		t.Errorf("a deleted snapshot: %v, want not found", err)
	}
	// Its name can be used again.
	if again := takeSnap(t, e, "s", v.ID); again.ID == snap.ID {
		t.Error("a new snapshot has the id of the deleted one")
	} else {
		testkit.Must(t, e.DeleteSnapshot(ctx, again.ID))
	}
	testkit.Must(t, e.Delete(ctx, first.ID), e.Delete(ctx, v.ID))
	publish(t, e, second.ID, node("n1", "127.0.1.1"))
	s := r.mustConnect(second, access.HostNQN("n1"), "127.0.1.1")
	if !s.Alive() {
		t.Error("the volume of a deleted snapshot cannot be read")
	}
	s.Close()
	unpublish(t, e, second.ID, "n1")
	testkit.Must(t, e.Delete(ctx, second.ID))
	r.left(0)
}

func (r *rig) uuid(v volume.Volume) string {
	_, uuid, _ := parseID(string(v.ID))
	return uuid
}
