package table_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

func TestConflicts(t *testing.T) {
	r := open(t)
	ctx := t.Context()
	a, b := aio("a", "images/1"), aio("b", "images/1")
	r.put(device("va", "one", a), a)
	testkit.WantError(t, "Put", r.Put(ctx, device("vb", "one")), errs.Precondition, "volume vb", "device one", "volume va", "nsId")
	testkit.WantError(t, "Put", r.Put(ctx, device("vb", "two", b), b), errs.Precondition, "images/1", "aio-bdev a", `"va"`)
	testkit.WantError(t, "PutObject", r.PutObject(ctx, b), errs.Precondition, "images/1")
	c, d := aio("c", "images/2"), aio("d", "images/2")
	testkit.WantError(t, "Put", r.Put(ctx, device("vb", "two", c, d), c, d), errs.Internal, "images/2", "aio-bdev c", "aio-bdev d")
	testkit.WantError(t, "Put", r.Put(ctx, device("vb", "two", c)), errs.Internal, "aio-bdev c", "not on record")
	testkit.WantError(t, "Put", r.Put(ctx, device("", "two")), errs.Internal, "without a volume")
	testkit.WantError(t, "PutObject", r.PutObject(ctx, table.Object{Object: plan.Object{ID: plan.ID{Kind: plan.AIO, Name: "e"}}}), errs.Internal, "aio-bdev e")
	testkit.WantError(t, "Drop", r.Drop(ctx, "vb", a.ID), errs.Internal, "aio-bdev a", "volume va")
	if devices, objects := r.Count(); devices[table.Creating] != 1 || objects != 1 {
		t.Errorf("what was refused is on record: %v, %v", devices, r.Objects())
	}
	// With another file the first one is free.
	moved := aio("a", "images/3")
	r.put(device("va", "one", a), a)
	r.put(device("va", "three", moved), moved)
	r.put(device("vb", "one", b), b)
	// An object without device keeps its resource until it is dropped.
	testkit.Must(t, r.Drop(ctx, "vb"))
	testkit.WantError(t, "Put", r.Put(ctx, device("vc", "", a), a), errs.Precondition, "images/1", "still being removed")
	testkit.Must(t, r.Drop(ctx, "", b.ID))
	r.put(device("vc", "one", aio("f", "images/1")), aio("f", "images/1"))
	// Drop is idempotent.
	if err := r.Drop(ctx, "none", plan.ID{Kind: plan.Key, Name: "none"}); err != nil {
		t.Error(err)
	}
}

// TestCopies: records share no memory with callers.
func TestCopies(t *testing.T) {
	r := open(t)
	o, want := controller("c"), controller("c")
	d, wantDevice := device("v", "n", o), device("v", "n", o)
	r.put(d, o)
	spoil := func(d table.Device, o table.Object) {
		o.Controller.Paths[0], o.Controller.SubNQN = netip.AddrPort{}, "spoilt"
		d.Modes[0], d.Objects[0], d.Contexts.Volume["nqn"] = 4, plan.ID{}, "spoilt"
	}
	check := func(when string) {
		t.Helper()
		gotObject, _ := r.Object(want.ID)
		gotDevice, _ := r.Device("v")
		if diff := gocmp.Diff(want, gotObject, same) + gocmp.Diff(wantDevice, gotDevice, same); diff != "" {
			t.Errorf("%s:\n%s", when, diff)
		}
		spoil(gotDevice, gotObject)
	}
	spoil(d, o)
	check("after a change of what was recorded")
	check("after a change of what Device and Object answered")
	page, _ := r.List("", 1, all)
	spoil(page[0], r.Objects()[0])
	r.Users(want.ID)[0] = "spoilt"
	check("after a change of what List, Objects and Users answered")
	testkit.Must(t, r.Drop(t.Context(), "v"))
	r.Unused()[0].Controller.SubNQN = "spoilt"
	if got, _ := r.Object(want.ID); !gocmp.Equal(want, got, same) {
		t.Errorf("after a change of what Unused answered: %+v", got)
	}
}

// TestFailedWrite: a failed write does not change memory.
func TestFailedWrite(t *testing.T) {
	r := newRig(t, t.TempDir())
	o := aio("a", "1")
	r.put(device("v", "n", o), o)
	r.close()
	for what, err := range map[string]error{
		"Put":       r.Put(t.Context(), device("w", "m", aio("b", "2")), aio("b", "2")),
		"PutObject": r.PutObject(t.Context(), aio("c", "3")),
		"Drop":      r.Drop(t.Context(), "v", o.ID),
	} {
		if err == nil {
			t.Errorf("%s succeeds on a closed store", what)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Put(ctx, device("w", "m")); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ended: %v", err)
	}
	if devices, objects := r.Count(); devices[table.Creating] != 1 || objects != 1 {
		t.Errorf("%v, %v", devices, r.Objects())
	}
}

// TestOneWins: of many concurrent volumes only one gets a namespace or file.
func TestOneWins(t *testing.T) {
	r := open(t)
	for _, c := range []struct {
		what string
		put  func(i int) (table.Device, []table.Object)
	}{
		{"name", func(i int) (table.Device, []table.Object) { return device(volumeOf(i), "the one"), nil }},
		{"file", func(i int) (table.Device, []table.Object) {
			o := aio(fmt.Sprint("aio", i), "the one")
			return device(volumeOf(i), "", o), []table.Object{o}
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			const many = 8
			var failed [many]error
			var group sync.WaitGroup
			start := make(chan struct{})
			for i := range many {
				group.Go(func() {
					<-start
					d, objects := c.put(i)
					failed[i] = r.Put(t.Context(), d, objects...)
					r.List("", many, all) // concurrent reads
					r.Unused()
				})
			}
			close(start)
			group.Wait()
			winners := 0
			for i, err := range failed {
				if _, there := r.Device(volumeOf(i)); there != (err == nil) {
					t.Errorf("volume %d: %v, and on record: %t", i, err, there)
				}
				if err == nil {
					winners++
				} else {
					testkit.WantError(t, "the error", err, errs.Precondition, "the one")
				}
			}
			if winners != 1 {
				t.Errorf("%d volumes have it", winners)
			}
			for i := range many {
				if err := r.Drop(t.Context(), volumeOf(i), plan.ID{Kind: plan.AIO, Name: fmt.Sprint("aio", i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestDamaged opens stores with invalid records.
func TestDamaged(t *testing.T) {
	good, shared := aio("good", "1"), controller("shared")
	changed := func(change func(*table.Device)) table.Device {
		d := device("v2", "n2", shared)
		change(&d)
		return d
	}
	type any2 = map[string]any
	for what, c := range map[string]struct {
		bucket, key string
		value       any
		words       string
	}{
		"not a device":             {"devices", "v2", "text", `"v2"`},
		"not an object":            {"objects", "key k", []int{1}, `"key k"`},
		"another volume":           {"devices", "v2", changed(func(d *table.Device) { d.Volume = "v3" }), `it belongs to volume "v3"`},
		"no phase":                 {"devices", "v2", changed(func(d *table.Device) { d.Phase = "" }), `phase is ""`},
		"another phase":            {"devices", "v2", changed(func(d *table.Device) { d.Phase = "made!" }), `phase is "made!"`},
		"no mode":                  {"devices", "v2", changed(func(d *table.Device) { d.Mode = "" }), `volume mode is ""`},
		"made without a name":      {"devices", "v2", changed(func(d *table.Device) { d.Phase, d.Name = table.Ready, "" }), "no name or no objects"},
		"made of nothing":          {"devices", "v2", changed(func(d *table.Device) { d.Phase, d.Objects = table.Ready, nil }), "no name or no objects"},
		"another device's name":    {"devices", "v2", changed(func(d *table.Device) { d.Name = "n1" }), "volume v1 also has device n1"},
		"an object that is not":    {"devices", "v2", changed(func(d *table.Device) { d.Objects = []plan.ID{{Kind: plan.Key, Name: "k"}} }), `its object "key k"`},
		"another object":           {"objects", "aio-bdev other", aio("else", "2"), `it belongs to "aio-bdev else"`},
		"an object of nothing":     {"objects", "aio-bdev x", any2{"kind": "aio-bdev", "name": "x"}, "do not match its kind"},
		"an object without name":   {"objects", "aio-bdev ", aio("", "2"), "do not match its kind"},
		"a file that is taken":     {"objects", "aio-bdev zz", aio("zz", "1"), `aio-bdev good also uses`},
		"an object without a kind": {"objects", " ", any2{}, "do not match its kind"},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, t.TempDir())
			defer r.close()
			r.put(device("v1", "n1", good), good, shared)
			write(t, r.store, c.bucket, c.key, c.value)
			got, err := table.Open(t.Context(), r.store)
			if got != nil || !errors.Is(err, store.ErrDamaged) {
				t.Fatalf("%v, %v, want ErrDamaged", got, err)
			}
			for _, w := range []string{c.words, fmt.Sprintf("%q", c.key)} {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not hold %s", err, w)
				}
			}
		})
	}
}

func write[T any](t *testing.T, s *store.Store, bucket, key string, value T) {
	t.Helper()
	testkit.Must(t, s.Update(t.Context(), func(tx *store.Tx) error { return store.Bucket[T]{Name: bucket}.Put(tx, key, value) }))
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const pool = "0198a6b2-7c1e-7b5e-9d0a-0123456789ab"

type rig struct {
	t     testing.TB
	path  string
	store *store.Store
	*table.Table
}

func newRig(t testing.TB, dir string) *rig {
	t.Helper()
	r := &rig{t: t, path: filepath.Join(dir, "dpu.db")}
	r.open()
	return r
}

func (r *rig) open() {
	r.t.Helper()
	var err error
	r.store = testkit.Value(store.Open(r.t.Context(), r.path, store.Options{Role: table.Role, Version: table.Version}))(r.t)
	if r.Table, err = table.Open(r.t.Context(), r.store); err != nil {
		_ = r.store.Close()
		r.t.Fatal(err)
	}
}

func (r *rig) close() {
	r.t.Helper()
	if err := r.store.Close(); err != nil {
		r.t.Error(err)
	}
}

func open(t testing.TB) *rig {
	t.Helper()
	r := newRig(t, t.TempDir())
	t.Cleanup(r.close)
	return r
}

func (r *rig) put(d table.Device, objects ...table.Object) {
	r.t.Helper()
	testkit.Must(r.t, r.Put(r.t.Context(), d, objects...))
}

func aio(name, file string) table.Object {
	return table.Object{Object: plan.Object{ID: plan.ID{Kind: plan.AIO, Name: name}, AIO: &plan.AIOSpec{File: access.File{Pool: pool, Name: file}}}}
}

func controller(name string) table.Object {
	return table.Object{
		Object: plan.Object{ID: plan.ID{Kind: plan.Controller, Name: name}, Controller: &plan.ControllerSpec{
			Transport: "tcp", Paths: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4420")}, SubNQN: "nqn.2016-06.io.spdk:" + name, HostNQN: "nqn.2016-06.io.spdk:host",
		}},
		Foreign: true, ForeignName: "Nvme0", UnansweredUntil: time.Unix(1_700_000_000, 5).UTC(), Process: "p1",
	}
}

func device(volumeID, name string, objects ...table.Object) table.Device {
	d := table.Device{
		Volume: volumeID, Name: name, Phase: table.Creating, Mode: request.Block, Modes: []storagev1.AccessMode{1, 3},
		Contexts:  request.Contexts{Volume: map[string]string{"nqn": volumeID}},
		Namespace: plan.Choice{NSID: 1}, Process: "p1", Since: time.Unix(1_700_000_000, 7).UTC(),
	}
	for _, o := range objects {
		d.Objects = append(d.Objects, o.ID)
	}
	return d
}

func volumeOf(i int) string { return fmt.Sprintf("pvc-%06d", i) }
