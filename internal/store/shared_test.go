package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store/storetest"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestObjectInMemory(t *testing.T) {
	storetest.Run(t, ErrChanged, func(*testing.T) func() storetest.Handle {
		object := storetest.NewObject(ErrChanged)
		return func() storetest.Handle { return object }
	})
}

func TestSharedRoleAndVersion(t *testing.T) {
	object := storetest.NewObject(ErrChanged)
	open := func(o Options) (*Shared, error) { return OpenShared(t.Context(), "pool/state", object, o) }
	older := testkit.Value(open(Options{Role: "ledger", Version: 2}))(t)
	testkit.Must(t, put(t.Context(), older, "k", thing{Size: 7}))
	for name, c := range map[string]struct {
		o    Options
		want error
		text string
	}{
		"other role":     {Options{Role: "engine", Version: 2}, ErrRole, `"ledger"`},
		"newer object":   {Options{Role: "ledger", Version: 1}, ErrVersion, "newer cleat"},
		"older object":   {Options{Role: "ledger", Version: 3}, ErrVersion, "version 2"},
		"failed upgrade": {Options{Role: "ledger", Version: 3, Upgrade: func(*Tx, int) error { return context.Canceled }}, context.Canceled, "from version 2 to 3"},
	} {
		testkit.WantError(t, name, testkit.Err(open(c.o)), c.want, c.text, "pool/state")
	}
	newer := Options{Role: "ledger", Version: 3, Upgrade: func(tx *Tx, from int) error {
		return things.Put(tx, "from", thing{Size: int64(from)})
	}}
	upgraded := testkit.Value(open(newer))(t)
	testkit.Value(open(newer))(t)
	if got, ok := get(t, upgraded, "from"); !ok || got.Size != 2 {
		t.Errorf("upgraded: %+v, %t", got, ok)
	}
	// A process from before the upgrade stops to use the object.
	testkit.WantError(t, "Update", put(t.Context(), older, "k", thing{}), ErrVersion, "newer cleat")
	testkit.WantError(t, "View", older.View(t.Context(), func(*Tx) error { return nil }), ErrVersion)
	if got, _ := get(t, upgraded, "k"); got.Size != 7 {
		t.Errorf("changed by the older process: %+v", got)
	}
}

// A View with the context of Join has the snapshot of the View around it, one of
// another database has its own.
func TestJoin(t *testing.T) {
	other := testkit.Value(OpenShared(t.Context(), "other", storetest.NewObject(ErrChanged), options()))(t)
	object := storetest.NewObject(ErrChanged)
	shared, writer := testkit.Value(OpenShared(t.Context(), "state", object, options()))(t), testkit.Value(OpenShared(t.Context(), "state", object, options()))(t)
	file := openAt(t, filepath.Join(t.TempDir(), "s.db"), options())
	for name, d := range map[string]struct{ db, writer Database }{"shared": {shared, writer}, "file": {file, file}} {
		testkit.Must(t, put(t.Context(), d.writer, "k", thing{Size: 1}), put(t.Context(), other, "k", thing{Size: 7}))
		size := func(ctx context.Context, db Database) (n int64) {
			testkit.Must(t, db.View(ctx, func(tx *Tx) error {
				found, _, err := things.Get(tx, "k")
				n = found.Size
				return err
			}))
			return n
		}
		testkit.Must(t, d.db.View(t.Context(), func(tx *Tx) error {
			testkit.Must(t, put(t.Context(), d.writer, "k", thing{Size: 2}))
			ctx := Join(t.Context(), tx)
			if got := []int64{size(ctx, d.db), size(ctx, other), size(t.Context(), d.db)}; !slices.Equal(got, []int64{1, 7, 2}) {
				t.Errorf("%s: joined, of another database and not joined: %d, want 1, 7, 2", name, got)
			}
			return nil
		}))
	}
}

func TestSharedObjectOfAnotherProgram(t *testing.T) {
	for name, want := range map[string]error{
		"csi.volume.x": ErrDamaged, "a/%zz": ErrDamaged, "a/b c": ErrDamaged, "a/b": ErrRole,
	} {
		object := storetest.NewObject(ErrChanged)
		testkit.Must(t, object.WriteState(t.Context(), 0, map[string][]byte{name: []byte("x")}, nil))
		_, err := OpenShared(t.Context(), "pool/state", object, options())
		testkit.WantError(t, name, err, want, "pool/state")
	}
}

func TestSharedFailures(t *testing.T) {
	object := storetest.NewObject(ErrChanged)
	s := testkit.Value(OpenShared(t.Context(), "pool/state", object, options()))(t)
	object.FailReads(errs.Errorf(errs.Denied, "no capability"))
	for name, err := range map[string]error{
		"Update": put(t.Context(), s, "k", thing{}),
		"View":   s.View(t.Context(), func(*Tx) error { return nil }),
		"open":   testkit.Err(OpenShared(t.Context(), "pool/state", object, options())),
	} {
		testkit.WantError(t, name, err, errs.Denied, "pool/state", "no capability")
	}
	object.FailReads(nil)
	for fault, stored := range map[storetest.Fault]bool{storetest.Failed: false, storetest.Lost: true, storetest.Late: true} {
		key := fmt.Sprint("k", fault)
		object.FailWrites(func() storetest.Fault { return fault })
		testkit.WantError(t, key, put(t.Context(), s, key, thing{}), errs.Unavailable, "perhaps recorded", storetest.ErrFault.Error())
		object.FailWrites(nil)
		if _, ok := get(t, s, key); ok != stored {
			t.Errorf("%s is stored: %t", key, ok)
		}
	}
	runs := 0
	object.FailWrites(func() storetest.Fault { runs++; return storetest.Changed })
	testkit.WantError(t, "always changed", put(t.Context(), s, "k", thing{}), errs.Busy, "retry")
	if runs != maxAttempts {
		t.Errorf("%d attempts", runs)
	}
	object.FailWrites(nil)
	before := object.Generation()
	testkit.Must(t, s.Update(t.Context(), func(*Tx) error { return nil }))
	if after := object.Generation(); after != before {
		t.Errorf("an empty update was written")
	}
}

// insert adds an id, which makes a repeat safe.
func insert(ctx context.Context, s Database, id int) error {
	ids := Bucket[[]int]{Name: "ids"}
	return s.Update(ctx, func(tx *Tx) error {
		list, _, err := ids.Get(tx, "list")
		if err != nil || slices.Contains(list, id) {
			return err
		}
		return ids.Put(tx, "list", append(list, id))
	})
}

func inserted(ctx context.Context, s Database) (list []int, err error) {
	err = s.View(ctx, func(tx *Tx) error {
		list, _, err = Bucket[[]int]{Name: "ids"}.Get(tx, "list")
		return err
	})
	return list, err
}

// TestSharedByTwo: of two processes, every successful update is stored once, a
// failed one at most once, and its repeat is right.
func TestSharedByTwo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		object := storetest.NewObject(ErrChanged)
		faults := rapid.SliceOfN(rapid.SampledFrom([]storetest.Fault{
			storetest.None, storetest.None, storetest.Changed, storetest.Failed, storetest.Lost, storetest.Late,
		}), 0, 60).Draw(rt, "faults")
		both := []*Shared{
			testkit.Value(OpenShared(t.Context(), "a", object, options()))(rt),
			testkit.Value(OpenShared(t.Context(), "b", object, options()))(rt),
		}
		object.FailWrites(func() storetest.Fault {
			if len(faults) == 0 {
				return storetest.None
			}
			next := faults[0]
			faults = faults[1:]
			return next
		})
		certain := map[int]bool{}
		for range rapid.IntRange(1, 30).Draw(rt, "updates") {
			id := rapid.IntRange(0, 9).Draw(rt, "id")
			err := insert(t.Context(), rapid.SampledFrom(both).Draw(rt, "process"), id)
			if err != nil && !errors.Is(err, errs.Unavailable) {
				rt.Fatalf("insert %d: %v", id, err)
			}
			certain[id] = certain[id] || err == nil
			list := testkit.Value(inserted(t.Context(), rapid.SampledFrom(both).Draw(rt, "reader")))(rt)
			for id, is := range certain {
				if is && !slices.Contains(list, id) {
					rt.Fatalf("%d was acknowledged, stored are %v", id, list)
				}
			}
			slices.Sort(list)
			if unique := slices.Compact(slices.Clone(list)); len(unique) != len(list) {
				rt.Fatalf("stored twice: %v", list)
			}
			for _, id := range list {
				if _, requested := certain[id]; !requested {
					rt.Fatalf("%d was never inserted, stored are %v", id, list)
				}
			}
		}
	})
}

func TestSharedAtOnce(t *testing.T) {
	object := storetest.NewObject(ErrChanged)
	var all sync.WaitGroup
	const processes, each = 4, 25
	for i := range processes {
		all.Go(func() {
			s, err := OpenShared(t.Context(), "state", object, options())
			if err != nil {
				t.Error(err)
				return
			}
			for j := range each {
				for {
					err := insert(t.Context(), s, i*each+j)
					if err == nil {
						break
					}
					if !errors.Is(err, errs.Busy) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	s := testkit.Value(OpenShared(t.Context(), "state", object, options()))(t)
	if list, err := inserted(t.Context(), s); err != nil || len(list) != processes*each {
		t.Errorf("%d are stored, %v", len(list), err)
	}
}

func FuzzEntryName(f *testing.F) {
	for _, seed := range []string{"a/b", "grants/v%00n", "a/%zz", "a", "a/ü", "/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		bucket, key, err := parseEntryName(name)
		if err == nil && entryName(bucket, key) != name {
			t.Errorf("%q is bucket %q, key %q", name, bucket, key)
		}
		bucket, key, err = parseEntryName(entryName(name, name))
		if err != nil || bucket != name || key != name {
			t.Errorf("%q comes back as %q and %q, %v", name, bucket, key, err)
		}
	})
}

// The process that opened the object before its present owner neither reads nor changes
// it, also with a change that it had begun.
func TestSharedOwner(t *testing.T) {
	object := storetest.NewObject(ErrChanged)
	open := func(owner string) *Shared {
		return testkit.Value(OpenShared(t.Context(), "pool/state", object, Options{Role: "ledger", Version: 1, Owner: owner}))(t)
	}
	first := open("first")
	testkit.Must(t, put(t.Context(), first, "k", thing{Size: 7}))
	var second *Shared
	testkit.WantError(t, "Update", first.Update(t.Context(), func(tx *Tx) error {
		if second == nil {
			second = open("second")
		}
		return things.Put(tx, "k", thing{Size: 8})
	}), ErrReplaced, "second")
	testkit.WantError(t, "Update", put(t.Context(), first, "k", thing{}), ErrReplaced, "second")
	testkit.WantError(t, "View", first.View(t.Context(), func(*Tx) error { return nil }), ErrReplaced)
	testkit.WantError(t, "View", first.View(t.Context(), func(*Tx) error { return nil }), errs.Unavailable)
	if got, _ := get(t, second, "k"); got.Size != 7 {
		t.Errorf("changed by the process that was replaced: %+v", got)
	}
	testkit.Must(t, put(t.Context(), open(""), "k", thing{Size: 9}), put(t.Context(), second, "k", thing{Size: 10}))
}
