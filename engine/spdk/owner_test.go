package spdk

import (
	"context"
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
)

// otherRelease gives an engine a state of its own, as another release has.
func (r *rig) otherRelease(c *Config) {
	r.t.Helper()
	db := testkit.Value(store.OpenShared(testkit.Context(r.t), "of the other release", storetest.NewObject(store.ErrChanged), storeOptions()))(r.t)
	c.Database, c.Grants = db, ledger.New(db)
}

// Two releases create volumes at one target at the same time, and
// neither removes what the other one creates.
func testTwoReleases(t *testing.T, r *rig) {
	often := func(c *Config) { c.Interval = 10 * time.Millisecond } // of comparisons
	engines := []*Engine{r.engine(often), r.engine(often, r.otherRelease)}
	for _, e := range engines {
		r.run(e)
	}
	if r.targets != nil {
		r.targets[0].Inject(spdktest.Fault{Method: "nvmf_create_subsystem", Hold: 5 * time.Millisecond}) // as the HTTP proxy, which interleaves calls
	}
	const creations, workers = 256, 4
	var all sync.WaitGroup
	for i, e := range engines {
		for w := range workers {
			all.Go(func() {
				for n := w; n < creations/len(engines); n += workers {
					if _, err := e.Create(testkit.Context(t), request(fmt.Sprintf("v-%d-%d", i, n), volume.Source{})); err != nil {
						t.Errorf("creation %d beside another release: %v", n, err)
					}
				}
			})
		}
	}
	all.Wait()
	for i, e := range engines {
		testkit.Must(t, e.compare(testkit.Context(t), e.order[0]), e.sweep(testkit.Context(t), e.order[0]))
		for _, v := range testkit.Value(e.List(testkit.Context(t), "", 0))(t) {
			if conditions := testkit.Value(e.VolumeHealth(testkit.Context(t), v.ID))(t); len(conditions) > 0 {
				t.Errorf("volume %s of release %d: %+v", v.Name, i, conditions)
			}
		}
	}
	exports := testkit.Value(r.client(0).Subsystems(testkit.Context(t)))(t)
	if n := len(slices.DeleteFunc(exports, func(s rpc.Subsystem) bool { return len(s.Namespaces) != 1 || len(s.Listeners) != 1 })); n != creations {
		t.Errorf("%d of %d volumes are exported", n, creations)
	}
	if r.targets != nil && r.targets[0].Counts()["nvmf_delete_subsystem"] > 0 {
		t.Error("exports of new volumes were deleted")
	}
}

// A sweep of one release between the steps of a copy by another one.
func TestSweepBesideCopy(t *testing.T) {
	r := newRig(t, "one")
	e, other := r.engine(), r.engine(r.otherRelease)
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	source := testkit.Value(r.client(0).SnapshotLvol(ctx, r.uuid(v), record{Name: "copy"}.source()))(t)
	testkit.Must(t, other.sweep(ctx, other.order[0]))
	if _, err := r.client(0).Bdev(ctx, source); err != nil {
		t.Errorf("the snapshot of the other release's copy: %v", err)
	}
}

// A subsystem that another release has created, but not completed.
func TestCompareBesideCreation(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	nqn := nqnOf(someUUID)
	testkit.Must(t, r.client(0).CreateSubsystem(ctx, rpc.SubsystemCreate{NQN: nqn, Serial: "1", Model: "1", MaxNamespaces: 1}), e.compare(ctx, e.order[0]))
	if _, err := r.client(0).Subsystem(ctx, nqn); err != nil {
		t.Errorf("the subsystem of another release: %v", err)
	}
}

// Two releases at one target: a fence of one adopts no export of the other, whose
// session goes on.
func TestFenceBesideOtherRelease(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine(func(c *Config) { c.Owner = "a" })
	other := r.engine(r.otherRelease, func(c *Config) { c.Owner = "b" })
	ctx := testkit.Context(t)
	v := create(t, other, "v", volume.Source{})
	publish(t, other, v.ID, node("n1", "192.0.2.1"))
	s := r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
	testkit.Must(t, enforcer(t, e).Fence(ctx, block("192.0.2.1/32")))
	if all := testkit.Value(e.records(ctx))(t); len(all) > 0 || !s.Alive() {
		t.Errorf("a fence beside another release: adopted are %d of its volumes, its session is alive: %t", len(all), s.Alive())
	}
	if conditions := testkit.Value(e.StorageHealth(ctx))(t); len(conditions) > 0 {
		t.Errorf("conditions beside another release: %+v", conditions)
	}
	for what, err := range map[string]error{
		"publish": e.Enforce(ctx, v.ID),
		"delete":  e.Delete(ctx, v.ID),
		"create":  testkit.Err(e.Create(ctx, request("v", volume.Source{}))),
	} {
		wantKind(t, err, what+" a volume of another release", errs.Precondition)
	}
}

// An export that no record has, and that names no release: whose it is is not
// known, so that a fence is not confirmed until it is gone.
func TestFenceBesideUnownedExport(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	c, nqn := r.client(0), nqnOf(r.uuid(v))
	testkit.Must(t, e.drop(ctx, testkit.Value(e.find(ctx, v.ID))(t)), c.DeleteSubsystem(ctx, nqn),
		c.CreateSubsystem(ctx, rpc.SubsystemCreate{NQN: nqn, Serial: "spdkcsi-sn", Model: r.uuid(v), MaxNamespaces: 1}),
		c.AddNamespace(ctx, nqn, rpc.SubsystemDisk{ID: 1, Bdev: r.uuid(v)}))
	f := enforcer(t, e)
	wantKind(t, f.Fence(ctx, block("192.0.2.1/32")), "a fence beside it", errs.Unavailable)
	if all := testkit.Value(e.records(ctx))(t); len(all) > 0 {
		t.Errorf("%d volumes are adopted", len(all))
	}
	testkit.Must(t, c.DeleteSubsystem(ctx, nqn), f.Fence(ctx, block("192.0.2.1/32")))
}

// A snapshot that was taken for a copy still has clones when the copy is deleted:
// the record of it goes on, and it is removed with the last but one of them.
func TestSourceOutlivesCopy(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	copied := create(t, e, "copy", volume.Source{Volume: v.ID})
	s := takeSnap(t, e, "s", copied.ID)
	testkit.Must(t, e.Delete(ctx, copied.ID))
	if n := len(r.lvols(0)); n != 3 {
		t.Fatalf("%d lvols, want the volume, the snapshot, and the one that both are clones of", n)
	}
	testkit.Must(t, r.engine().DeleteSnapshot(ctx, s.ID))
	if n := len(r.lvols(0)); n != 1 {
		t.Errorf("%d lvols are left, want that of the volume", n)
	}
	r.removeAll(e)
}

// A volume is deleted by another controller with the same state, while this one
// exports it: nothing is left that no record names.
func TestExportOfDeletedVolume(t *testing.T) {
	r := newRig(t, "one")
	e, other := r.engine(), r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	testkit.Must(t, r.client(0).DeleteSubsystem(ctx, nqnOf(r.uuid(v))))
	r.targets[0].Forget()
	entered, leave, exported := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	e.config.Grants = ledger.New(&pausedRead{e.config.Database, sync.OnceFunc(func() { close(entered); <-leave })})
	go func() { exported <- e.Enforce(ctx, v.ID) }()
	<-entered
	testkit.Must(t, other.Delete(ctx, v.ID))
	close(leave)
	testkit.Must(t, <-exported)
	if r.targets[0].Counts()["nvmf_create_subsystem"] == 0 {
		t.Error("the volume was not exported, so that the test shows nothing")
	}
	r.left(0)
	testkit.Must(t, other.compare(ctx, other.order[0]))
	if conditions := testkit.Value(other.StorageHealth(ctx))(t); len(conditions) > 0 {
		t.Errorf("conditions: %+v", conditions)
	}
}

// pausedRead calls pause in the first read.
type pausedRead struct {
	store.Database
	pause func()
}

func (d *pausedRead) View(ctx context.Context, fn func(*store.Tx) error) error {
	d.pause()
	return d.Database.View(ctx, fn)
}
