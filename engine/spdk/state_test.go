package spdk

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/enforce"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/internal/configmap"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/store"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// inConfigMap returns an engine whose state is in a ConfigMap.
func (r *rig) inConfigMap() (*Engine, *kubeapi.Server) {
	r.t.Helper()
	api := kubeapi.New(r.t, kubeapi.ConfigMaps())
	return r.onConfigMap(api), api
}

// onConfigMap returns the engine of another process with the state of a server.
func (r *rig) onConfigMap(api *kubeapi.Server) *Engine {
	r.t.Helper()
	return r.engine(func(c *Config) {
		object := testkit.Value(configmap.New(configmap.Config{Kubeconfig: api.Kubeconfig(r.t), Namespace: kubeapi.ConfigMaps().Namespace, Name: "state"}))(r.t)
		db := testkit.Value(store.OpenShared(testkit.Context(r.t), "state", object, storeOptions()))(r.t)
		c.Database, c.Grants = db, ledger.New(db)
	})
}

// watched runs an engine as its process does, with a watch of its state.
func (r *rig) watched(e *Engine) {
	r.t.Helper()
	testkit.Go(r.t, func(ctx context.Context) error {
		e.config.Database.(*store.Shared).Watch(ctx, func(error) {})
		return nil
	})
	r.run(e)
}

// comparisons waits for further ones.
func (r *rig) comparisons() {
	r.t.Helper()
	const list = "nvmf_get_subsystems"
	after := r.targets[0].Counts()[list] + 10
	testkit.Eventually(r.t, "10 comparisons", func() bool { return r.targets[0].Counts()[list] >= after })
}

// verified counts how often a guard has read back its fences.
type verified struct {
	volume.Fencer
	times atomic.Int64
}

func (v *verified) Held(ctx context.Context) ([]netip.Prefix, error) {
	defer v.times.Add(1)
	return v.Fencer.Held(ctx)
}

// guard runs a guard of the fences of an engine until the test ends.
func (r *rig) guard(e *Engine) *verified {
	r.t.Helper()
	v := &verified{Fencer: e}
	operations := op.New(context.WithoutCancel(r.t.Context()), time.Second)
	r.t.Cleanup(func() { _ = operations.Close(context.Background()) })
	f := testkit.Value(enforce.New(enforce.Config{
		Ledger: ledgerOf(e), Operations: operations, Interval: time.Millisecond,
		Locals: []enforce.Local{{Name: "spdk", Fencer: v, Deferred: true}},
		Boots:  func(context.Context) (map[string]volume.Boot, error) { return nil, nil },
	}))(r.t)
	testkit.Go(r.t, f.Guard)
	return v
}

// While nothing changes neither a comparison nor the guard of the fences reads the state.
// A change by another controller is seen, and what is recorded and exported before its
// event arrives is not unknown.
func TestStateRequestsWhileIdle(t *testing.T) {
	r := newRig(t, "one", "two")
	e, api := r.inConfigMap()
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	r.watched(e)
	guard := r.guard(e)
	passes := func() {
		t.Helper()
		r.comparisons()
		after := guard.times.Load() + 10
		testkit.Eventually(t, "10 passes of the guard", func() bool { return guard.times.Load() >= after })
	}
	passes()
	// Reads that have begun before the watch end.
	testkit.Eventually(t, "the state is watched", func() bool {
		before := api.Count("get")
		passes()
		return api.Count("get") == before
	})
	before := api.Count("get")
	passes()
	if reads := api.Count("get") - before; reads > 0 {
		t.Errorf("%d reads of the state in 10 comparisons and 10 passes of the guard of an idle controller, want none", reads)
	}

	other := r.onConfigMap(api)
	testkit.Must(t, grant(t, other, v.ID, node("n2", "192.0.2.2")))
	testkit.Eventually(t, "a client that another controller has recorded is admitted", func() bool {
		return testkit.Value(e.order[0].Client.Subsystem(t.Context(), nqnOf(r.uuid(v))))(t).HasHost(access.HostNQN("n2"))
	})

	api.HoldEvents(true)
	another := create(t, other, "another", volume.Source{})
	publish(t, other, another.ID, node("n1", "192.0.2.1"))
	r.comparisons()
	if s := testkit.Value(e.state(t.Context()))(t); !s.compared[targetName(0)] || !s.compared[targetName(1)] {
		t.Errorf("targets without unknown exports: %v", s.compared)
	}
	if strings.Contains(r.log.String(), "no record has") {
		t.Error("an export is reported as unknown that another controller has recorded")
	}
}

// Without the permission to watch, comparisons read the state.
func TestStateIsNotWatched(t *testing.T) {
	r := newRig(t, "one")
	e, api := r.inConfigMap()
	v := create(t, e, "v", volume.Source{})
	api.Fail(func(verb string) kubeapi.Fault {
		if verb == "watch" {
			return kubeapi.Failed
		}
		return kubeapi.None
	})
	r.watched(e)
	r.comparisons()
	testkit.Must(t, grant(t, r.onConfigMap(api), v.ID, node("n1", "192.0.2.1")))
	testkit.Eventually(t, "a client that another controller has recorded is admitted", func() bool {
		return testkit.Value(e.order[0].Client.Subsystem(t.Context(), nqnOf(r.uuid(v))))(t).HasHost(access.HostNQN("n1"))
	})
}

// Each read is of the whole state, up to 1 MiB.
func TestStateRequestsOfFence(t *testing.T) {
	for _, targets := range []int{1, 4} {
		names := []string{"one", "two", "three", "four"}[:targets]
		r := newRig(t, names...)
		e, api := r.inConfigMap()
		ctx := testkit.Context(t)
		const clients = 3
		blocks := plan.Request{Owner: volume.FenceOwner{Digest: "a"}}
		for i := range clients {
			addr := fmt.Sprintf("192.0.2.%d", i+1)
			blocks.Blocks = append(blocks.Blocks, block(addr+"/32").Blocks...)
			for on := range names {
				req := request(fmt.Sprintf("v%d-%d", i, on), volume.Source{})
				req.Parameters = map[string]string{keyTarget: targetName(on)}
				v := testkit.Value(e.Create(ctx, req))(t)
				publish(t, e, v.ID, node(fmt.Sprint("n", i), addr))
				r.mustConnect(v, access.HostNQN(fmt.Sprint("n", i)), addr)
			}
		}
		for _, target := range e.order {
			testkit.Must(t, e.compare(ctx, target))
		}
		f := enforcer(t, e)
		for name, request := range map[string]plan.Request{"one block": block("192.0.2.1/32"), "all blocks": blocks} {
			gets, puts := api.Count("get"), api.Count("update")
			testkit.Must(t, f.Fence(ctx, request))
			if gets, puts = api.Count("get")-gets, api.Count("update")-puts; gets > 4 || puts > 2 {
				t.Errorf("%s at %d targets: %d reads and %d writes of the state, want at most 4 and 2", name, targets, gets, puts)
			}
			testkit.Must(t, f.Unfence(ctx, request))
			for _, target := range e.order {
				testkit.Must(t, e.compare(ctx, target))
			}
		}
	}
}

// A state that is too large for another volume has space for the fence of each client,
// and for the end of each grant.
func TestFullState(t *testing.T) {
	r := newRig(t, "one")
	e, _ := r.inConfigMap()
	ctx := t.Context() // filling takes up to a minute on a busy machine
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	publish(t, e, v.ID, node("n2", "192.0.2.2"))
	filler := store.Bucket[string]{Name: "filler"}
	for i := 0; e.config.Database.Spare(ctx) == nil; i++ {
		var noise strings.Builder // which is not compressed
		for range 2000 {
			noise.WriteString(uuid.NewString())
		}
		testkit.Must(t, e.config.Database.Update(ctx, func(tx *store.Tx) error { return filler.Put(tx, fmt.Sprint(i), noise.String()) }))
	}
	wantKind(t, testkit.Err(e.Create(ctx, request("another", volume.Source{}))), "a volume without space for its record", errs.Exhausted)
	testkit.Must(t, enforcer(t, e).Fence(ctx, block("192.0.2.1/32")), revoke(ctx, e, v.ID, "n2"))
	r.refused(v, access.HostNQN("n1"))
	r.refused(v, access.HostNQN("n2"))
}

// While the state cannot be read no client is admitted, and no fence is confirmed.
func TestUnreadableState(t *testing.T) {
	r := newRig(t, "one")
	e, api := r.inConfigMap()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	testkit.Must(t, e.compare(ctx, e.order[0]), grant(t, e, v.ID, node("n1", "192.0.2.1")))
	api.Refuse(500)
	for what, err := range map[string]error{
		"publish": e.Enforce(ctx, v.ID), "comparison": e.compare(ctx, e.order[0]), "fence": e.Apply(ctx, volume.FenceSet{Blocks: block("192.0.2.9/32").Blocks}),
	} {
		wantKind(t, err, what+" without the state", errs.Unavailable)
	}
	r.refused(v, access.HostNQN("n1"))
	api.Refuse(0)
	testkit.Must(t, e.Enforce(ctx, v.ID))
	r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
}

// A controller that was replaced has read the records before the fence, and its request
// to admit the client arrives after its end. The next one waits for that, once.
func TestFenceAfterTakeOver(t *testing.T) {
	r := newRig(t, "one")
	old := r.engine()
	ctx := testkit.Context(t)
	v := create(t, old, "v", volume.Source{})
	testkit.Must(t, old.compare(ctx, old.order[0]), grant(t, old, v.ID, node("n1", "192.0.2.1")))
	next := r.engine()
	arrived := make(chan struct{})
	next.tookOver = arrived
	r.targets[0].Forget()
	fenced := make(chan error, 1)
	go func() { fenced <- enforcer(t, next).Fence(ctx, block("192.0.2.1/32")) }()
	testkit.Eventually(t, "the fence has read the target", func() bool { return r.targets[0].Counts()["nvmf_subsystem_get_qpairs"] > 0 })
	testkit.Must(t, r.client(0).AddHost(ctx, nqnOf(r.uuid(v)), access.HostNQN("n1"), rpc.HostKeys{}))
	s := r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
	close(arrived)
	testkit.Must(t, <-fenced)
	if s.Alive() {
		t.Error("the fence is confirmed, and a session of the client is alive")
	}
	r.refused(v, access.HostNQN("n1"))
	testkit.Must(t, enforcer(t, next).Fence(ctx, block("192.0.2.9/32")))
}

// The records have to say whom to admit when the target gets the request, not an age ago.
func TestAdmissionAfterOldRead(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	x := export{engine: e, target: e.order[0], record: testkit.Value(e.find(ctx, v.ID))(t)} // read in the year 1
	err := x.apply(ctx, []string{access.HostNQN("n1")})
	wantKind(t, err, "an admission by an old read", errs.Unavailable)
	r.refused(v, access.HostNQN("n1"))
}

// A publish of another client holds the lock of the volume when the fence begins: what
// it records and admits stays.
func TestFenceAfterPublishOfAnother(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	testkit.Must(t, e.compare(ctx, e.order[0]))
	reads := &counted{Database: e.config.Database}
	e.config.Database = reads
	unlock := testkit.Value(e.lock(ctx, volumeKey(v.Name)))(t)
	fenced := make(chan error, 1)
	f := enforcer(t, e)
	go func() { fenced <- f.Fence(ctx, block("192.0.2.1/32")) }()
	testkit.Eventually(t, "the fence has read the records", func() bool { return reads.views.Load() > 0 })
	testkit.Must(t, grant(t, e, v.ID, node("n2", "192.0.2.2")), e.enforce(ctx, testkit.Value(e.find(ctx, v.ID))(t), false))
	s := r.mustConnect(v, access.HostNQN("n2"), "192.0.2.2")
	unlock()
	testkit.Must(t, <-fenced)
	if !s.Alive() {
		t.Error("the session of another client has ended")
	}
	r.refused(v, access.HostNQN("n1"))
}

// The host comes back on the list between its removal and the proof, which reads it.
func TestFenceReadsBack(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	testkit.Must(t, e.compare(ctx, e.order[0]))
	f := enforcer(t, e)
	for wait, inTime := time.Second, false; !inTime; wait *= 2 {
		r.targets[0].Forget()
		r.targets[0].Inject(spdktest.Fault{Method: "nvmf_subsystem_get_controllers", Times: 1, Wait: wait})
		begun, fenced := time.Now(), make(chan error, 1)
		go func() { fenced <- f.Fence(ctx, block("192.0.2.1/32")) }()
		testkit.Eventually(t, "the host is removed", func() bool { return r.targets[0].Counts()["nvmf_subsystem_get_controllers"] > 0 })
		added := r.client(0).AddHost(ctx, nqnOf(r.uuid(v)), access.HostNQN("n1"), rpc.HostKeys{})
		inTime = time.Since(begun) < wait
		testkit.Must(t, added, <-fenced)
	}
	r.refused(v, access.HostNQN("n1"))
}
