package spdk

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// loading returns the calls that a target can get while it loads its lvols. Each
// uses objects of its own.
func (r *rig) loading(e *Engine) map[string]func(context.Context) error {
	r.t.Helper()
	v := map[string]volume.Volume{}
	for _, name := range []string{"grown", "copied", "snapshotted", "deleted", "published", "modified", "kept"} {
		v[name] = create(r.t, e, name, volume.Source{})
	}
	s, restored := takeSnap(r.t, e, "s", v["kept"].ID), takeSnap(r.t, e, "restored", v["kept"].ID)
	return map[string]func(context.Context) error{
		"create": func(ctx context.Context) error { return testkit.Err(e.Create(ctx, request("new", volume.Source{}))) },
		"copy": func(ctx context.Context) error {
			return testkit.Err(e.Create(ctx, request("copy", volume.Source{Volume: v["copied"].ID})))
		},
		"restore": func(ctx context.Context) error {
			return testkit.Err(e.Create(ctx, request("of-snapshot", volume.Source{Snapshot: restored.ID})))
		},
		"expand": func(ctx context.Context) error {
			return testkit.Err(e.Expand(ctx, v["grown"].ID, volume.SizeRange{Required: 32 * mib}))
		},
		"modify": func(ctx context.Context) error {
			return testkit.Err(e.Modify(ctx, v["modified"].ID, map[string]string{keyIOPS: "5000"}))
		},
		"snapshot": func(ctx context.Context) error {
			return testkit.Err(e.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "new", Source: v["snapshotted"].ID}))
		},
		"publish":         func(ctx context.Context) error { return e.Enforce(ctx, v["published"].ID) },
		"delete":          func(ctx context.Context) error { return e.Delete(ctx, v["deleted"].ID) },
		"delete snapshot": func(ctx context.Context) error { return e.DeleteSnapshot(ctx, s.ID) },
	}
}

// The target is killed between calls. Until it has its store, and has loaded the
// lvols of it, calls on recorded objects are Unavailable, and none gives up its
// record: each repeat succeeds when the lvols are there.
func TestCallsWhileTargetLoads(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	calls := r.loading(e)
	r.targets[0].HoldExamine()
	testkit.Must(t, r.targets[0].Restart())
	for name, call := range calls {
		wantKind(t, call(testkit.Context(t)), name+" without the lvol store", errs.Unavailable)
	}
	r.offer(0)
	brief, cancel := context.WithCancel(testkit.Context(t))
	failed := make(chan string, len(calls))
	for name, call := range calls {
		go func() {
			if err := call(brief); errs.KindOf(err) != errs.Unavailable && name != "create" {
				failed <- name + ": " + errors.Join(err, errors.New("want unavailable")).Error()
				return
			}
			failed <- ""
		}()
	}
	testkit.Eventually(t, "calls that wait for the lvols", func() bool { return r.targets[0].Counts()["bdev_wait_for_examine"] >= len(calls)-1 })
	cancel()
	for range calls {
		if text := <-failed; text != "" {
			t.Errorf("while the lvols are loaded: %s", text)
		}
	}
	r.targets[0].ReleaseExamine()
	for name, call := range calls {
		if err := call(testkit.Context(t)); err != nil {
			t.Errorf("%s after the lvols were loaded: %v", name, err)
		}
	}
	r.removeAll(e)
}

// The target is killed between the answer that its store is there and that about
// an lvol, and has not loaded its lvols when it answers next.
func TestRestartBetweenAnswers(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	own := testkit.Value(e.find(ctx, v.ID))(t)
	restart := func() {
		testkit.Must(t, r.targets[0].Restart())
	}
	rounds := 0
	restart()
	r.offer(0)
	_, err := e.order[0].loaded(ctx, own.UUID+"-no-such", func() error { return nil })
	wantKind(t, err, "an lvol that does not exist", errs.NotFound)
	_, err = e.order[0].loaded(ctx, alias(own.StoreName, "none"), func() error {
		if rounds++; rounds == 1 {
			restart() // after this answer: the store is gone, and nothing is examined
			return nil
		}
		return e.order[0].hasStore(ctx, own.Store, own.StoreName)
	})
	wantKind(t, err, "a restart between two answers", errs.Unavailable)
}

// A lost lvol is a condition of its volume or snapshot, which the configuration
// ends. Other objects of the target are not affected.
func TestLostLvols(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v, other := create(t, e, "v", volume.Source{}), create(t, e, "other", volume.Source{})
	s := takeSnap(t, e, "s", other.ID)
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	_, snap, _ := parseID(string(s.ID))
	if !r.targets[0].Lose(r.uuid(v)) || !r.targets[0].Lose(snap) {
		t.Fatal("the lvols do not exist")
	}
	testkit.Must(t, r.targets[0].Restart())
	r.offer(0)
	stop := r.run(e)
	testkit.Eventually(t, "the condition", func() bool {
		return strings.Contains(reasons(t, testkit.Value(e.StorageHealth(ctx))(t)), volume.ReasonLvolLost)
	})
	stop()
	r.targets[0].Forget()
	if err := e.compare(ctx, e.order[0]); !errors.Is(err, errLost) || r.targets[0].Counts()["nvmf_create_subsystem"] > 0 {
		t.Errorf("the next comparison: %v; a lost volume was exported %d times", err, r.targets[0].Counts()["nvmf_create_subsystem"])
	}
	if got := reasons(t, testkit.Value(e.VolumeHealth(ctx, v.ID))(t)); got != volume.ReasonLvolLost {
		t.Errorf("conditions of the lost volume: %q", got)
	}
	for name, err := range map[string]error{
		"expand":          testkit.Err(e.Expand(ctx, v.ID, volume.SizeRange{Required: 32 * mib})),
		"copy":            testkit.Err(e.Create(ctx, request("copy", volume.Source{Volume: v.ID}))),
		"restore":         testkit.Err(e.Create(ctx, request("restored", volume.Source{Snapshot: s.ID}))),
		"snapshot":        testkit.Err(e.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "new", Source: v.ID})),
		"publish":         e.Enforce(ctx, v.ID),
		"delete":          e.Delete(ctx, v.ID),
		"delete snapshot": e.DeleteSnapshot(ctx, s.ID),
	} {
		wantKind(t, err, name+" of a lost object", errs.Precondition)
	}
	testkit.Must(t, e.Enforce(ctx, other.ID), enforcer(t, e).Fence(ctx, block("192.0.2.1/32")))
	unpublish(t, e, v.ID, "n1")
	create(t, e, "new", volume.Source{})

	forgets := r.engine(func(c *Config) { c.Targets[0].Forget = []string{r.uuid(v), snap} })
	testkit.Must(t, forgets.Delete(ctx, v.ID), forgets.DeleteSnapshot(ctx, s.ID), forgets.sweep(ctx, forgets.order[0]))
	if got := reasons(t, testkit.Value(forgets.StorageHealth(ctx))(t)); got != "" {
		t.Errorf("conditions after the deletion: %q", got)
	}
	testkit.Must(t, testkit.Err(forgets.Get(ctx, other.ID)))
}

func reasons(t *testing.T, all []volume.Condition) string {
	t.Helper()
	var words []string
	for _, c := range all {
		enginetest.CheckMessage(t, c, "")
		words = append(words, c.Reason)
	}
	return strings.Join(words, " ")
}

// The only store of a target is missing: it is reported, and none is asked for.
func TestMissingStore(t *testing.T) {
	r := newRig(t, "one")
	for name, change := range map[string]func(*Config){
		"of the configuration": func(*Config) {},
		"with volumes":         func(c *Config) { c.Targets[0].Stores = nil },
	} {
		e := r.engine(change)
		create(t, e, "v", volume.Source{})
		testkit.Must(t, r.targets[0].Restart())
		_, err := e.Create(testkit.Context(t), request("new", volume.Source{}))
		if wantKind(t, err, "create without the store "+name, errs.Unavailable); !strings.Contains(err.Error(), storeName) || strings.Contains(err.Error(), "bdev_lvol_create_lvstore") {
			t.Errorf("create without the store %s: %v", name, err)
		}
		r.offer(0)
	}
	empty := r.engine(func(c *Config) { c.Targets[0].Stores = nil; r.otherRelease(c) })
	testkit.Must(t, r.targets[0].Restart())
	wantKind(t, testkit.Err(empty.Create(testkit.Context(t), request("new", volume.Source{}))), "create at a target that never had a store", errs.Exhausted)
}

// The target loads its store after it has answered that it has none.
func TestStoreAppearsAfterAnswer(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	create(t, e, "v", volume.Source{})
	for name, call := range map[string]func() error{
		"create":   func() error { return testkit.Err(e.Create(ctx, request("new", volume.Source{}))) },
		"capacity": func() error { return testkit.Err(e.Capacity(ctx, volume.CapacityQuery{})) },
		"sweep":    func() error { return e.sweep(ctx, e.order[0]) },
	} {
		testkit.Must(t, r.targets[0].Restart())
		r.targets[0].Forget()
		r.targets[0].Inject(spdktest.Fault{Method: "bdev_lvol_get_lvstores", Times: 1, Hold: 300 * time.Millisecond})
		answer := make(chan error)
		go func() { answer <- call() }()
		testkit.Eventually(t, "the question", func() bool { return r.targets[0].Counts()["bdev_lvol_get_lvstores"] > 0 })
		r.offer(0)
		wantKind(t, testkit.Receive(t, name, answer), name, errs.Unavailable)
	}
	create(t, e, "new", volume.Source{})
}

// The target loads an lvol after it has refused to export it: SPDK refuses what it
// does not have as it refuses what is wrong.
func TestLvolAppearsAfterRefusal(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	for method, refusal := range map[string]*spdktest.Error{
		"nvmf_create_subsystem":   {Code: -32603, Message: "Unable to create subsystem " + v.Locator.(access.NVMe).NQN},
		"nvmf_subsystem_add_ns":   {Code: -32602, Message: "Invalid parameters"},
		"nvmf_subsystem_add_host": {Code: -32603, Message: "Internal error"},
	} {
		r.kill()
		r.targets[0].Inject(spdktest.Fault{Method: method, Times: 1, Error: refusal})
		testkit.Must(t, grant(t, e, v.ID, node("n1", "192.0.2.1")))
		wantKind(t, e.Enforce(ctx, v.ID), "publish after the refusal of "+method, errs.Unavailable)
		testkit.Must(t, e.Enforce(ctx, v.ID))
	}
}

// A volume that the target has exported again since it was asked for the sessions
// is not taken for one that does not exist.
func TestExportAppearsDuringDelete(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	nqn := v.Locator.(access.NVMe).NQN
	r.targets[0].Inject(spdktest.Fault{Method: "nvmf_subsystem_get_controllers", Times: 1, Error: &spdktest.Error{Code: -32602, Message: "Subsystem with NQN '" + nqn + "' not found"}})
	wantKind(t, e.Delete(ctx, v.ID), "delete", errs.Unavailable)
	testkit.Must(t, testkit.Err(e.Get(ctx, v.ID)), e.Delete(ctx, v.ID))
	r.left(0)
}

// The snapshot of a copy is removed later if the target restarts meanwhile.
func TestSweepAfterRestart(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	copied := create(t, e, "copy", volume.Source{Volume: v.ID})
	testkit.Must(t, r.targets[0].Restart())
	if err := e.sweep(ctx, e.order[0]); err == nil {
		t.Error("a sweep without the store counts as done")
	}
	r.offer(0)
	testkit.Must(t, e.Delete(ctx, copied.ID), e.sweep(ctx, e.order[0]))
	if names := r.lvols(0); len(names) != 1 {
		t.Errorf("lvols %q, want that of the volume", names)
	}
}

// afterViews acts once, after a transaction of a database.
type afterViews struct {
	store.Database
	act func() (done bool)
}

func (d *afterViews) View(ctx context.Context, fn func(*store.Tx) error) error {
	err := d.Database.View(ctx, fn)
	if act := d.act; act != nil {
		d.act = nil
		if !act() {
			d.act = act
		}
	}
	return err
}

// The target restarts after a sweep has waited for the lvols, and lists those that
// it has opened so far: without a record nothing would remove the deleted snapshot.
func TestRestartDuringSweep(t *testing.T) {
	r := newRig(t, "one")
	ctx := testkit.Context(t)
	var db *afterViews
	e := r.engine(func(c *Config) {
		db = &afterViews{Database: c.Database}
		c.Database, c.Grants = db, ledger.New(db)
	})
	v := create(t, e, "v", volume.Source{})
	s := takeSnap(t, e, "s", v.ID)
	copied := create(t, e, "copy", volume.Source{Snapshot: s.ID})
	testkit.Must(t, e.DeleteSnapshot(ctx, s.ID)) // it has two clones
	r.targets[0].Forget()
	db.act = func() bool {
		if r.targets[0].Counts()["bdev_wait_for_examine"] == 0 {
			return false
		}
		r.targets[0].HoldExamine()
		testkit.Must(t, r.targets[0].Restart())
		r.offer(0)
		return true
	}
	swept := make(chan error, 1)
	go func() { swept <- e.sweep(ctx, e.order[0]) }()
	testkit.Eventually(t, "a question about the missing lvol", func() bool { return r.targets[0].Counts()["bdev_wait_for_examine"] == 2 })
	r.targets[0].ReleaseExamine()
	wantKind(t, testkit.Receive(t, "the sweep", swept), "a sweep during a restart", errs.Unavailable)
	testkit.Must(t, e.Delete(ctx, copied.ID), e.Delete(ctx, v.ID))
	r.removeAll(e)
}

// The target ends after it has deleted the last clone of a deleted snapshot: it shows
// the snapshot as none then, which is removed nevertheless.
func TestSweepOfSnapshotWithoutClones(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	s := takeSnap(t, e, "s", v.ID)
	copied := create(t, e, "copy", volume.Source{Snapshot: s.ID})
	testkit.Must(t, e.DeleteSnapshot(ctx, s.ID)) // it has two clones
	for _, lvol := range []volume.Volume{copied, v} {
		_, uuid, _ := parseID(string(lvol.ID))
		testkit.Must(t, r.client(0).DeleteLvol(ctx, uuid))
	}
	r.withUnmap(true) // restarts it
	own := r.engine(func(c *Config) { c.Targets[0].Forget = []string{r.uuid(v), r.uuid(copied)} })
	testkit.Must(t, own.Delete(ctx, v.ID), own.Delete(ctx, copied.ID))
	r.removeAll(own)
}
