package spdk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/store"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// A target that never answers does not keep volumes from being created, and
// clients from being fenced, at the others.
func TestTargetHangs(t *testing.T) {
	r := newRig(t, "one", "two")
	e := r.engine()
	e.answerTime = 2 * time.Second
	ctx := testkit.Context(t)
	testkit.Must(t, e.compare(ctx, e.order[1]))
	r.targets[1].Inject(spdktest.Fault{Instead: spdktest.Silence})
	defer r.targets[1].Clear()
	v := createEventually(t, e, "v")
	if name, _, _ := parseID(string(v.ID)); name != targetName(0) {
		t.Errorf("volume %s is not on the target that answers", v.ID)
	}
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	f := enforcer(t, e)
	testkit.EventuallyNil(t, "the fence", func() error { return f.Fence(testkit.Context(t), block("192.0.2.1/32")) })
	r.refused(v, access.HostNQN("n1"))
	var conditions []volume.Condition
	testkit.EventuallyNil(t, "the condition", func() error {
		conditions = testkit.Value(e.StorageHealth(testkit.Context(t)))(t)
		if len(conditions) != 1 || conditions[0].Reason != volume.ReasonTargetUnreachable || conditions[0].Severity != volume.Degraded {
			return fmt.Errorf("conditions: %+v", conditions)
		}
		return nil
	})
	enginetest.CheckMessage(t, conditions[0], targetName(1))
}

// createEventually repeats the creation as a sidecar does: the answer of a target
// that answers can take longer than answerTime on a busy machine.
func createEventually(t *testing.T, e *Engine, name string) (v volume.Volume) {
	t.Helper()
	testkit.EventuallyNil(t, "the creation", func() (err error) {
		v, err = e.Create(testkit.Context(t), request(name, volume.Source{}))
		return err
	})
	return v
}

// A target that stops answering after it has listed its stores does not keep a
// volume from being created at another one, also if the request names no target.
func TestTargetStopsAnsweringDuringCreation(t *testing.T) {
	r := newRig(t, "one", "two")
	e := r.engine()
	e.answerTime = 2 * time.Second
	for i, p := range r.targets {
		p.Inject(spdktest.Fault{Method: "bdev_get_bdevs", Instead: spdktest.Silence})
		v := createEventually(t, e, fmt.Sprint("v", i))
		if name, _, _ := parseID(string(v.ID)); name == targetName(i) {
			t.Errorf("volume %s is on the target that does not answer", v.ID)
		}
		p.Clear()
	}
	for _, p := range r.targets {
		p.Inject(spdktest.Fault{Method: "bdev_get_bdevs", Instead: spdktest.Silence})
		defer p.Clear()
	}
	wantKind(t, testkit.Err(e.Create(testkit.Context(t), request("none", volume.Source{}))), "no target answers", errs.Unavailable)
}

// A copy and a snapshot whose answers were lost, and whose source is deleted
// then, are removed by the repeat, which cannot complete them.
func TestSourceDeletedMeanwhile(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	calls := []func() error{
		func() error { return testkit.Err(e.Create(ctx, request("copy", volume.Source{Volume: v.ID}))) },
		func() error {
			return testkit.Err(e.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "s", Source: v.ID}))
		},
	}
	for i, method := range []string{"bdev_lvol_clone", "bdev_lvol_snapshot"} {
		r.targets[0].Inject(spdktest.Fault{Method: method, Times: 1, Then: spdktest.Drop})
		wantKind(t, calls[i](), "a lost answer of "+method, errs.Unavailable)
	}
	testkit.Must(t, e.Delete(ctx, v.ID))
	for _, call := range calls {
		r.targets[0].Inject(spdktest.Fault{Method: "bdev_lvol_delete", Times: 1, Instead: spdktest.Drop})
		wantKind(t, call(), "the repeat, which cannot remove it", errs.Unavailable)
		wantKind(t, call(), "the next one", errs.NotFound)
	}
	r.removeAll(e)
}

// Deletions wait for a target that has just started: first its lvol store is
// missing, then the store is listed, but not all of its lvols.
func TestDeleteWhileTargetStarts(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v, foreign := create(t, e, "v", volume.Source{}), create(t, e, "foreign", volume.Source{})
	testkit.Must(t, e.drop(ctx, testkit.Value(e.find(ctx, foreign.ID))(t)))
	testkit.Must(t, r.targets[0].Restart())
	for _, id := range []volume.ID{v.ID, foreign.ID} {
		wantKind(t, e.Delete(ctx, id), "deletion without the lvol store", errs.Unavailable)
	}
	r.offer(0)
	for _, id := range []volume.ID{v.ID, foreign.ID} {
		_, uuid, _ := parseID(string(id))
		r.targets[0].Inject(spdktest.Fault{Method: "bdev_get_bdevs", Name: uuid, Times: 1, Error: &spdktest.Error{Code: -19, Message: "No such device"}})
		testkit.Must(t, e.Delete(ctx, id))
	}
	r.left(0)
}

// The target restarts between two requests of a deletion, and has not loaded the
// lvol that it is to delete.
func TestDeleteDuringRestart(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	s := takeSnap(t, e, "s", create(t, e, "other", volume.Source{}).ID)
	for what, remove := range map[string]func() error{
		"a volume": func() error { return e.Delete(ctx, v.ID) }, "a snapshot": func() error { return e.DeleteSnapshot(ctx, s.ID) },
	} {
		r.targets[0].Inject(spdktest.Fault{Method: "bdev_lvol_delete", Times: 1, Error: &spdktest.Error{Code: -19, Message: "No such device"}})
		wantKind(t, remove(), what, errs.Unavailable)
		testkit.Must(t, remove())
	}
	r.removeAll(e)
}

// While a target loads its lvols, the names of new volumes and copies are those of
// lvols that no call of this engine has created. They stay as they are.
func TestCreateWhileNameIsLoaded(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	s := takeSnap(t, e, "s", v.ID)
	for name, source := range map[string]volume.Source{"new": {}, "copy": {Volume: v.ID}, "restored": {Snapshot: s.ID}} {
		uuid := testkit.Value(r.client(0).CreateLvol(ctx, rpc.LvolCreate{StoreUUID: r.store(0).UUID, Name: name, SizeMiB: 8, Thin: true}))(t)
		before := r.lvols(0)
		unseen := spdktest.Fault{Method: "bdev_get_bdevs", Name: alias(storeName, name), Times: 1, Error: &spdktest.Error{Code: -19, Message: "No such device"}}
		r.targets[0].Inject(unseen)
		wantKind(t, testkit.Err(e.Create(ctx, request(name, source))), name+" while the lvol is not shown", errs.Unavailable)
		wantKind(t, testkit.Err(e.Create(ctx, request(name, source))), name+" with 8 MiB of another owner", errs.Exists)
		if after := r.lvols(0); !slices.Equal(before, after) {
			t.Errorf("%s: the target had the lvols %q, and has %q", name, before, after)
		}
		testkit.Must(t, r.client(0).DeleteLvol(ctx, uuid))
	}
	r.removeAll(e)
}

// The answer of a deletion is lost: the snapshot that only this volume needed is
// removed in the background.
func TestSnapshotLeftByLostAnswer(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	r.run(e)
	testkit.Eventually(t, "the first sweep", func() bool { return !e.order[0].unswept.Load() })
	copied := create(t, e, "copy", volume.Source{Volume: v.ID})
	testkit.Must(t, e.Delete(ctx, v.ID))
	r.targets[0].Inject(spdktest.Fault{Method: "bdev_lvol_delete", Times: 1, Then: spdktest.Drop})
	wantKind(t, e.Delete(ctx, copied.ID), "a lost answer", errs.Unavailable)
	testkit.Must(t, e.Delete(ctx, copied.ID))
	testkit.Eventually(t, "an empty target", func() bool { return len(r.lvols(0)) == 0 })
}

// One session that does not end keeps neither other volumes from being exported
// again, nor the failure from being reported.
func TestSessionDoesNotEnd(t *testing.T) {
	r := newRig(t)
	r.timing.RemoveHost = time.Hour
	r.start(0)
	e := r.engine()
	ctx := testkit.Context(t)
	v, other := create(t, e, "v", volume.Source{}), create(t, e, "other", volume.Source{})
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
	e.enforceTime = 200 * time.Millisecond // of calls that fail, or are repeated
	wantKind(t, revoke(ctx, e, v.ID, "n1"), "revoke", errs.Unavailable)
	r.run(e)
	testkit.Must(t, r.client(0).DeleteSubsystem(ctx, other.Locator.(access.NVMe).NQN))
	testkit.EventuallyNil(t, "the export of another volume", func() error {
		return testkit.Err(r.client(0).Subsystem(ctx, other.Locator.(access.NVMe).NQN))
	})
}

// A creation that is not complete, and not undone, is Unavailable whatever the
// cause: the provisioner repeats the call, also after the claim is deleted.
func TestIncompleteCreation(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	r.targets[0].Inject(spdktest.Fault{Method: "nvmf_subsystem_add_ns", Times: 1, Error: &spdktest.Error{Code: -32602, Message: "Invalid parameters"}})
	wantKind(t, testkit.Err(e.Create(ctx, request("v", volume.Source{}))), "export fails", errs.Unavailable)
	v := create(t, e, "v", volume.Source{})
	testkit.Must(t, e.Delete(ctx, v.ID))
	r.left(0)
}

// A subsystem that vanishes during a call is no volume that is gone: the call
// fails.
func TestExportVanishes(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	v := create(t, e, "v", volume.Source{})
	_, err := ledgerOf(e).Grant(testkit.Context(t), volume.Grant{Volume: v.ID, Client: node("n1", "192.0.2.1"), Mode: "m"})
	testkit.Must(t, err)
	r.targets[0].Inject(spdktest.Fault{Method: "nvmf_subsystem_add_host", Times: 1, Error: &spdktest.Error{Code: -32602, Message: "Subsystem with NQN 'x' not found"}})
	wantKind(t, e.Enforce(testkit.Context(t), v.ID), "the subsystem vanishes", errs.Unavailable)
	testkit.Must(t, e.Enforce(testkit.Context(t), v.ID))
	r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1").Close()
}

// calls returns calls of each kind on volumes that they create.
func (r *rig) calls(e *Engine) []func() error {
	ctx := testkit.Context(r.t)
	var v, copied volume.Volume
	var s volume.Snapshot
	return []func() error{
		func() (err error) { v, err = e.Create(ctx, request("v", volume.Source{})); return err },
		func() error { return e.Enforce(ctx, v.ID) },
		func() error { return testkit.Err(e.Expand(ctx, v.ID, volume.SizeRange{Required: 32 * mib})) },
		func() error { return testkit.Err(e.Modify(ctx, v.ID, map[string]string{keyIOPS: "5000"})) },
		func() (err error) {
			copied, err = e.Create(ctx, request("copy", volume.Source{Volume: v.ID}))
			return err
		},
		func() (err error) {
			s, err = e.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "s", Source: v.ID})
			return err
		},
		func() error { return testkit.Err(e.Create(ctx, request("restored", volume.Source{Snapshot: s.ID}))) },
		func() error {
			return testkit.Err(ledgerOf(e).Grant(ctx, volume.Grant{Volume: copied.ID, Client: node("n1", "127.0.1.1"), Mode: "m"}))
		},
		func() error { return e.Enforce(ctx, copied.ID) },
		func() error { return revoke(ctx, e, copied.ID, "n1") },
		func() error { return e.DeleteSnapshot(ctx, s.ID) },
		func() error { return e.Delete(ctx, v.ID) },
	}
}

// repeated makes all calls, and repeats those that fail, which must succeed then.
func (r *rig) repeated(e *Engine, check func(error)) (failed int) {
	r.t.Helper()
	for _, call := range r.calls(e) {
		if err := call(); err != nil {
			failed++
			check(err)
			testkit.Must(r.t, call())
		}
	}
	return failed
}

// The answer of each call is lost once: a repeat finds what was done.
func TestLostAnswers(t *testing.T) {
	for _, method := range []string{
		"bdev_lvol_create", "nvmf_create_subsystem", "nvmf_subsystem_add_ns", "nvmf_subsystem_add_listener", "nvmf_subsystem_add_host",
		"bdev_lvol_resize", "bdev_lvol_snapshot", "bdev_lvol_clone", "nvmf_subsystem_remove_host", "nvmf_delete_subsystem", "bdev_lvol_delete",
	} {
		t.Run(method, func(t *testing.T) {
			r := newRig(t, "one")
			r.targets[0].Inject(spdktest.Fault{Method: method, Times: 1, Then: spdktest.Drop})
			e := r.engine()
			failed := r.repeated(e, func(err error) { wantKind(t, err, "the answer is lost", errs.Unavailable) })
			if failed > 1 {
				t.Errorf("%d calls failed for one lost answer", failed)
			}
			r.removeAll(e)
		})
	}
}

// failingWrite fails one write, as on a full disk.
type failingWrite struct {
	store.Database
	left int // writes before it
}

func (d *failingWrite) Update(ctx context.Context, fn func(*store.Tx) error) error {
	if d.left--; d.left == -1 {
		return &fs.PathError{Op: "write", Path: "controller.db", Err: unix.ENOSPC}
	}
	return d.Database.Update(ctx, fn)
}

// Each write of a record fails once: a repeat of the call finds what was done.
func TestFailedWrites(t *testing.T) {
	for writes, all := 0, false; !all; writes++ {
		t.Run(fmt.Sprint(writes), func(t *testing.T) {
			r := newRig(t, "one")
			var d *failingWrite
			e := r.engine(func(c *Config) {
				d = &failingWrite{Database: c.Database, left: writes}
				c.Database, c.Grants = d, ledger.New(d)
			})
			failed := r.repeated(e, func(err error) {
				if !errors.Is(err, unix.ENOSPC) {
					t.Errorf("the write fails: %v, want %v", err, unix.ENOSPC)
				}
			})
			if failed > 1 {
				t.Errorf("%d calls failed for one failed write", failed)
			}
			all = d.left >= 0
			d.left = -1
			r.removeAll(e)
		})
	}
}

// On a full disk with the records nothing new is created, and volumes can be
// published, revoked, fenced and deleted, also after a restart of the controller.
func TestFullStateDisk(t *testing.T) {
	dir := testkit.Dir(t)
	testkit.Must(t, unix.Mount("none", dir, "tmpfs", 0, "size=10m"))
	t.Cleanup(func() { testkit.Must(t, unix.Unmount(dir, 0)) })
	r := newRig(t, "one")
	ctx := testkit.Context(t)
	path := filepath.Join(dir, "controller.db")
	open := func() (*Engine, *store.Store) {
		db := testkit.Value(store.Open(ctx, path, storeOptions()))(t)
		return r.engine(func(c *Config) { c.Database, c.Grants = db, ledger.New(db) }), db
	}
	e, db := open()
	v, other := create(t, e, "v", volume.Source{}), create(t, e, "other", volume.Source{})
	snap := takeSnap(t, e, "snap", v.ID)
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	publish(t, e, v.ID, node("n2", "192.0.2.2"))
	sessions := []session{r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1"), r.mustConnect(v, access.HostNQN("n2"), "192.0.2.2")}
	free := fillDisk(t, dir, db)

	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, unix.ENOSPC) || errs.KindOf(err) != errs.Exhausted || !strings.Contains(err.Error(), path) {
			t.Errorf("%s on a full disk: %v (%s)", what, err, errs.KindOf(err))
		}
	}
	for range 2 {
		refused("create", testkit.Err(e.Create(ctx, request("new", volume.Source{}))))
		refused("clone", testkit.Err(e.Create(ctx, request("new", volume.Source{Volume: v.ID}))))
		refused("snapshot", testkit.Err(e.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "new", Source: v.ID})))
		if n := len(r.lvols(0)); n != 3 {
			t.Errorf("%d lvols, want those of two volumes and a snapshot", n)
		}
		testkit.Must(t, db.Close())
		e, db = open()
	}
	defer func() { testkit.Must(t, db.Close()) }()
	if again := create(t, e, "v", volume.Source{}); again.ID != v.ID {
		t.Errorf("created again is %s, want %s", again.ID, v.ID)
	}
	testkit.Must(t, enforcer(t, e).Fence(ctx, block("192.0.2.1/32")))
	unpublish(t, e, v.ID, "n2")
	wantAlive(t, "fenced or revoked", sessions, false)
	publish(t, e, v.ID, node("n3", "192.0.2.3"))
	r.mustConnect(v, access.HostNQN("n3"), "192.0.2.3").Close()
	testkit.Must(t, e.Delete(ctx, other.ID), e.DeleteSnapshot(ctx, snap.ID))
	free()
	create(t, e, "new", volume.Source{})
	r.removeAll(e)
}

// fillDisk fills the file system of a database, and that until only its reserve
// is left.
func fillDisk(t *testing.T, dir string, db *store.Store) (free func()) {
	t.Helper()
	filler := filepath.Join(dir, "filler")
	page := make([]byte, os.Getpagesize())
	f := testkit.Value(os.Create(filler))(t)
	for {
		if _, err := f.Write(page); errors.Is(err, unix.ENOSPC) {
			break
		} else {
			testkit.Must(t, err)
		}
	}
	testkit.Must(t, f.Close())
	ctx, records := testkit.Context(t), store.Bucket[string]{Name: "filler"}
	for i := 0; db.Spare(ctx) == nil; i++ {
		testkit.Must(t, db.Update(ctx, func(tx *store.Tx) error { return records.Put(tx, fmt.Sprint(i), strings.Repeat("x", 64<<10)) }))
	}
	return func() { testkit.Must(t, os.Remove(filler)) }
}

func TestFullStore(t *testing.T) {
	r := newRig(t, "one", "two")
	e := r.engine()
	ctx := testkit.Context(t)
	big := request("big", volume.Source{})
	big.Size.Required = (storeMiB - 100) * mib
	big.Parameters = map[string]string{keyThin: "false"}
	first := testkit.Value(e.Create(ctx, big))(t)
	big.Name = "other"
	second := testkit.Value(e.Create(ctx, big))(t)
	if a, b := first.ID[:len(targetName(0))], second.ID[:len(targetName(0))]; a == b {
		t.Errorf("both are on %s: the second should be where space is free", a)
	}
	big.Name = "third"
	_, err := e.Create(ctx, big)
	wantKind(t, err, "no target has space", errs.Exhausted)
	small := request("small", volume.Source{})
	small.Parameters = map[string]string{keyTarget: string(first.ID[:len(targetName(0))]), keyThin: "false"}
	testkit.Must(t, testkit.Err(e.Create(ctx, small)))
	_, err = e.Expand(ctx, first.ID, volume.SizeRange{Required: storeMiB * mib})
	wantKind(t, err, "expand a thick volume beyond what is free", errs.OutOfRange)
	big.Parameters[keyTarget] = "nowhere"
	_, err = e.Create(ctx, big)
	wantKind(t, err, "a target that does not exist", errs.Invalid)
	testkit.Must(t, e.Delete(ctx, first.ID))
	big.Parameters[keyTarget] = string(first.ID[:len(targetName(0))])
	big.Name = "again"
	testkit.Must(t, testkit.Err(e.Create(ctx, big)))
}

// The name of an lvol is used before the lvol is shown: a repeat of a call that was
// cancelled waits for it.
func TestRepeatDuringCreation(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	for name, call := range map[string]func(context.Context) error{
		"bdev_lvol_create": func(ctx context.Context) error { return testkit.Err(e.Create(ctx, request("new", volume.Source{}))) },
		"bdev_lvol_clone": func(ctx context.Context) error {
			return testkit.Err(e.Create(ctx, request("copy", volume.Source{Volume: v.ID})))
		},
		"bdev_lvol_snapshot": func(ctx context.Context) error {
			return testkit.Err(e.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "s", Source: v.ID}))
		},
	} {
		if name == "bdev_lvol_clone" { // its snapshot is there
			r.targets[0].Inject(spdktest.Fault{Method: name, Times: 1, Error: &spdktest.Error{Code: -11, Message: "Resource temporarily unavailable"}})
			wantKind(t, call(ctx), "an interrupted copy", errs.Unavailable)
		}
		r.targets[0].Forget()
		r.targets[0].HoldCreate()
		requests := func(n int) func() bool { return func() bool { return r.targets[0].Counts()[name] == n } }
		brief, cancel := context.WithCancel(ctx)
		answer := make(chan error, 1)
		go func() { answer <- call(brief) }()
		testkit.Eventually(t, "the first "+name, requests(1))
		cancel()
		wantKind(t, testkit.Receive(t, "an answer", answer), "the call that was cancelled", errs.Unavailable)
		go func() { answer <- call(ctx) }()
		testkit.Eventually(t, "a question about the lvol after the second "+name, func() bool {
			calls := r.targets[0].Calls()
			return requests(2)() && calls[len(calls)-1].Method == "bdev_get_bdevs"
		})
		r.targets[0].ReleaseCreate()
		if err := testkit.Receive(t, "an answer", answer); err != nil {
			t.Errorf("a repeat during %s: %v", name, err)
		}
	}
	r.removeAll(e)
}

// SPDK forgets, but keeps, an lvol whose deletion overlaps with that of its snapshot or
// clone: it would be back after a restart of the target, without a record.
func TestDeletionsAtOnce(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	snaps := []volume.Snapshot{takeSnap(t, e, "s1", v.ID), takeSnap(t, e, "s2", v.ID)}
	r.targets[0].Forget()
	r.targets[0].HoldDelete()
	deleted := make(chan error, len(snaps))
	for _, s := range snaps {
		go func() { deleted <- e.DeleteSnapshot(ctx, s.ID) }()
	}
	testkit.Eventually(t, "two deletions", func() bool { return r.targets[0].Counts()["bdev_get_bdevs"] == 2*len(snaps) })
	for range 10 { // time for the second to arrive at the target
		r.lvols(0)
	}
	r.targets[0].ReleaseDelete()
	for range snaps {
		if err := testkit.Receive(t, "a deletion", deleted); err != nil {
			t.Errorf("one of two deletions: %v", err)
		}
	}
	r.withUnmap(true) // restarts it
	r.removeAll(e)
}
