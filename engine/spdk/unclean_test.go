package spdk

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// withUnmap restarts a target with a bdev that can unmap, or not.
func (r *rig) withUnmap(unmaps bool) {
	r.t.Helper()
	r.noUnmap = !unmaps
	testkit.Must(r.t, r.targets[0].Restart())
	r.offer(0)
}

// refusedThin returns the token that the refusal of a thin volume names.
func (r *rig) refusedThin(e *Engine) string {
	r.t.Helper()
	_, err := e.Create(testkit.Context(r.t), request("refused", volume.Source{}))
	if wantKind(r.t, err, "a thin volume", errs.Precondition); err == nil {
		return ""
	}
	return regexp.MustCompile(`unclean-\w+|$`).FindString(err.Error())
}

// A store keeps data of deleted volumes when its bdev is replaced by one that can
// unmap. It is treated as before, also by another controller, until it was cleared.
func TestStoreWasWithoutUnmap(t *testing.T) {
	r := newRig(t, "one")
	ctx := testkit.Context(t)
	e := r.engine()
	old := create(t, e, "old", volume.Source{})
	sparse := create(t, e, "sparse", volume.Source{})
	r.write(old)
	r.withUnmap(false)
	testkit.Must(t, e.Delete(ctx, old.ID))
	r.withUnmap(true)
	e = r.engine() // another controller
	token := r.refusedThin(e)
	if token == "" {
		t.Error("the refusal names no token")
	}
	thick := testkit.Value(e.Create(ctx, withParameters("thick", volume.Source{}, keyThin, "false")))(t)
	r.showsZeros("a thick volume", thick)
	_, err := e.Expand(ctx, thick.ID, volume.SizeRange{Required: 32 * mib})
	wantKind(t, err, "growth of a block volume", errs.Precondition)
	if got := reasons(t, testkit.Value(e.VolumeHealth(ctx, sparse.ID))(t)); got != volume.ReasonOldDataVisible {
		t.Errorf("a thin volume has the conditions %q", got)
	}
	if got := reasons(t, testkit.Value(e.StorageHealth(ctx))(t)); got != volume.ReasonOldDataVisible {
		t.Errorf("the storage has the conditions %q", got)
	}
	if c := testkit.Value(e.Capacity(ctx, volume.CapacityQuery{}))(t); c.Available != 0 {
		t.Errorf("%d bytes are available for thin volumes, which are refused", c.Available)
	}

	cleared := r.engine(func(c *Config) { c.Targets[0].Cleared = []string{token} })
	testkit.Must(t, testkit.Err(cleared.Create(ctx, request("thin", volume.Source{}))), cleared.sweep(ctx, cleared.order[0]))
	if got := reasons(t, testkit.Value(cleared.StorageHealth(ctx))(t)); got != "" {
		t.Errorf("the storage has the conditions %q after it was cleared", got)
	}
	r.withUnmap(false)
	testkit.Must(t, cleared.Delete(ctx, thick.ID))
	r.withUnmap(true)
	if next := r.refusedThin(r.engine(func(c *Config) { c.Targets[0].Cleared = []string{token} })); next == "" || next == token {
		t.Errorf("without unmap again, the token is %q after %q", next, token)
	}
	r.removeAll(e)
}

// Whatever reads or frees first records that the bdev cannot unmap.
func TestFirstToSeeTheBdev(t *testing.T) {
	for name, act := range map[string]func(context.Context, *Engine, volume.Volume, volume.Snapshot) error{
		"sweep": func(ctx context.Context, e *Engine, _ volume.Volume, _ volume.Snapshot) error {
			return e.sweep(ctx, e.order[0])
		},
		"delete": func(ctx context.Context, e *Engine, v volume.Volume, _ volume.Snapshot) error {
			return e.Delete(ctx, v.ID)
		},
		"unsnap": func(ctx context.Context, e *Engine, _ volume.Volume, s volume.Snapshot) error {
			return e.DeleteSnapshot(ctx, s.ID)
		},
		"health": func(ctx context.Context, e *Engine, _ volume.Volume, _ volume.Snapshot) error {
			return testkit.Err(e.StorageHealth(ctx))
		},
		"reap": func(ctx context.Context, e *Engine, _ volume.Volume, s volume.Snapshot) error {
			_, uuid, _ := parseID(string(s.ID))
			testkit.Must(t, e.putDeleted(ctx, snapRecord{Name: "s", Target: targetName(0), UUID: uuid}))
			e.reap(ctx, e.order[0], uuid)
			return nil
		},
		"create": func(ctx context.Context, e *Engine, _ volume.Volume, _ volume.Snapshot) error {
			return testkit.Err(e.Create(ctx, withParameters("thick", volume.Source{}, keyThin, "false")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one")
			e := r.engine()
			v := create(t, e, "v", volume.Source{})
			s := takeSnap(t, e, "s", v.ID)
			r.withUnmap(false)
			testkit.Must(t, act(testkit.Context(t), e, v, s))
			r.withUnmap(true)
			if r.refusedThin(r.engine()) == "" {
				t.Error("the refusal names no token")
			}
		})
	}
}

// Another controller frees clusters of a store whose bdev was replaced since the call
// began: the call does not use the space.
func TestUncleanSinceTheCallBegan(t *testing.T) {
	r := newRig(t, "one")
	ctx := testkit.Context(t)
	var db *afterViews
	e := r.engine(func(c *Config) {
		db = &afterViews{Database: c.Database}
		c.Database, c.Grants = db, ledger.New(db)
	})
	other := r.engine()
	old := create(t, other, "old", volume.Source{})
	db.act = func() bool {
		r.withUnmap(false)
		testkit.Must(t, other.Delete(ctx, old.ID))
		r.withUnmap(true)
		return true
	}
	wantKind(t, testkit.Err(e.Create(ctx, request("thin", volume.Source{}))), "a thin volume", errs.Unavailable)
	r.refusedThin(e)
}

// A build before the records of unclean stores has left none, but volumes with zeros
// show that there was no unmap. Such a build keeps what it does not know.
func TestUncleanStoreOfAnEarlierBuild(t *testing.T) {
	r := newRig(t, "one")
	ctx := testkit.Context(t)
	r.withUnmap(false)
	e := r.engine()
	testkit.Value(e.Create(ctx, withParameters("thick", volume.Source{}, keyThin, "false")))(t)
	testkit.Must(t, e.config.Database.Update(ctx, func(tx *store.Tx) error { return uncleanStores().Delete(tx, r.store(0).UUID) }))
	r.withUnmap(true)
	testkit.Must(t, e.sweep(ctx, e.order[0]))
	r.refusedThin(e)

	empty := newRig(t, "one")
	other := empty.engine()
	create(t, other, "v", volume.Source{})
	testkit.Must(t, other.sweep(ctx, other.order[0]))
	create(t, other, "w", volume.Source{})
}

// Nothing is freed without the record.
func TestNothingIsFreedUnrecorded(t *testing.T) {
	r := newRig(t, "one")
	ctx := testkit.Context(t)
	e := r.engine()
	v := create(t, e, "v", volume.Source{})
	r.targets[0].Inject(spdktest.Fault{Method: "bdev_get_bdevs", Name: "disk", Times: 1, Error: &spdktest.Error{Code: -19, Message: "No such device"}})
	wantKind(t, e.Delete(ctx, v.ID), "a deletion that does not know the bdev", errs.Unavailable)
	if names := r.lvols(0); len(names) != 1 || !strings.HasPrefix(names[0], "v") {
		t.Errorf("the target has the lvols %q", names)
	}
	testkit.Must(t, e.Delete(ctx, v.ID))
}
