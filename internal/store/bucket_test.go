package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/internal/store/storetest"
	"github.com/cleatproject/cleat/test/testkit"
)

// TestDatabases runs the tests of buckets over both databases.
func TestDatabases(t *testing.T) {
	for form, open := range map[string]func(t *testing.T) Database{
		"file": func(t *testing.T) Database {
			return openAt(t, filepath.Join(t.TempDir(), "a.db"), options())
		},
		"shared": func(t *testing.T) Database {
			return testkit.Value(OpenShared(t.Context(), "state", storetest.NewObject(ErrChanged), options()))(t)
		},
	} {
		for name, test := range map[string]func(*testing.T, Database){
			"records":           testRecords,
			"failed update":     testFailedUpdateChangesNothing,
			"range and prefix":  testRangeAndPrefix,
			"range and changes": testRangeWhileChanging,
			"context":           testEndedContext,
		} {
			t.Run(form+"/"+name, func(t *testing.T) { test(t, open(t)) })
		}
	}
}

func testRecords(t *testing.T, s Database) {
	want := thing{"größe", 1<<62 + 1}
	for _, key := range []string{"k", "a\x00b", "100%/ü", "\xff"} {
		if _, ok := get(t, s, key); ok {
			t.Errorf("%q is in an empty store", key)
		}
		testkit.Must(t, put(t.Context(), s, key, want))
		if got, ok := get(t, s, key); !ok || got != want {
			t.Errorf("%q: got %+v, %v", key, got, ok)
		}
		remove := func(tx *Tx) error { return things.Delete(tx, key) }
		testkit.Must(t, s.Update(t.Context(), remove), s.Update(t.Context(), remove))
		if _, ok := get(t, s, key); ok {
			t.Errorf("%q is still there after Delete", key)
		}
	}
	err := s.View(t.Context(), func(tx *Tx) error { return things.Put(tx, "k", want) })
	testkit.WantError(t, "Put in a View", err, nil, "things")
}

func testEndedContext(t *testing.T, s Database) {
	ended := testkit.Canceled(t)
	unexpected := func(*Tx) error { t.Error("the function was called"); return nil }
	testkit.WantError(t, "View", s.View(ended, unexpected), ended.Err())
	testkit.WantError(t, "Update", s.Update(ended, unexpected), ended.Err())
}

func testFailedUpdateChangesNothing(t *testing.T, s Database) {
	refused := errors.New("refused")
	err := s.Update(t.Context(), func(tx *Tx) error {
		return errors.Join(things.Put(tx, "k", thing{}), refused)
	})
	if !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if _, ok := get(t, s, "k"); ok {
		t.Error("the record is there")
	}
	if err := s.Update(t.Context(), func(tx *Tx) error { return things.Put(tx, "", thing{}) }); err == nil || !strings.Contains(err.Error(), "things") {
		t.Errorf("empty key: %v", err)
	}
}

func keysOf(t *testing.T, seq func(func(Entry[thing], error) bool)) []string {
	t.Helper()
	var keys []string
	for e, err := range seq {
		if err != nil {
			t.Error(err)
		}
		keys = append(keys, e.Key)
	}
	return keys
}

func testRangeAndPrefix(t *testing.T, s Database) {
	testkit.Must(t, s.Update(t.Context(), func(tx *Tx) error {
		for _, k := range []string{"b/2", "a", "b", "b/1", "c"} {
			if err := things.Put(tx, k, thing{Name: k}); err != nil {
				return err
			}
		}
		return nil
	}))
	check := func(tx *Tx) error {
		for name, c := range map[string]struct {
			got  []string
			want string
		}{
			"all":           {keysOf(t, things.Range(tx, "")), "[a b b/1 b/2 c]"},
			"after":         {keysOf(t, things.Range(tx, "b")), "[b/1 b/2 c]"},
			"after a gap":   {keysOf(t, things.Range(tx, "b/11")), "[b/2 c]"},
			"after the end": {keysOf(t, things.Range(tx, "c")), "[]"},
			"prefix":        {keysOf(t, things.Prefix(tx, "b/")), "[b/1 b/2]"},
			"no prefix":     {keysOf(t, things.Prefix(tx, "x")), "[]"},
			"no bucket":     {keysOf(t, Bucket[thing]{Name: "other"}.Range(tx, "")), "[]"},
		} {
			if got := fmt.Sprint(c.got); got != c.want {
				t.Errorf("%s: got %s, want %s", name, got, c.want)
			}
		}
		for range things.Range(tx, "") {
			break
		}
		return nil
	}
	testkit.Must(t, s.View(t.Context(), check), s.Update(t.Context(), check))
}

// Changes during a range must neither skip nor repeat a record.
func testRangeWhileChanging(t *testing.T, s Database) {
	const n = 2000
	fill := func(tx *Tx) (err error) {
		for i := range n {
			err = errors.Join(err, things.Put(tx, fmt.Sprintf("%06d", i), thing{Name: strings.Repeat("x", 50)}))
		}
		return err
	}
	empty := func(tx *Tx) error {
		seen := 0
		for e, err := range things.Range(tx, "") {
			if err != nil {
				return err
			}
			if i, _ := strconv.Atoi(e.Key); i != seen {
				return fmt.Errorf("record %d comes as number %d", i, seen)
			}
			seen++
			if err := errors.Join(things.Delete(tx, e.Key), things.Put(tx, "!"+e.Key, e.Value)); err != nil {
				return err
			}
		}
		if seen != n {
			return fmt.Errorf("saw %d records", seen)
		}
		for e := range things.Range(tx, "") {
			if err := things.Delete(tx, e.Key); err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(s.Update(t.Context(), fill), s.Update(t.Context(), empty)); err != nil {
		t.Errorf("records of before: %v", err)
	}
	if err := s.Update(t.Context(), func(tx *Tx) error { return errors.Join(fill(tx), empty(tx)) }); err != nil {
		t.Errorf("records of the same update: %v", err)
	}
}
