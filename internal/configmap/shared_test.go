package configmap_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
)

// appendID fails with Exists if the id was appended, so that a second execution
// of the same update shows.
func appendID(ctx context.Context, db *store.Shared, id int) error {
	ids := store.Bucket[[]int]{Name: "ids"}
	return db.Update(ctx, func(tx *store.Tx) error {
		list, _, err := ids.Get(tx, "list")
		if err != nil {
			return err
		}
		if slices.Contains(list, id) {
			return errs.Exists
		}
		return ids.Put(tx, "list", append(list, id))
	})
}

// TestTwoProcesses: an update that succeeded is stored, one that failed without
// Unavailable is not, and no update is executed twice.
func TestTwoProcesses(t *testing.T) {
	s := kubeapi.New(t, kubeapi.ConfigMaps())
	rapid.Check(t, func(rt *rapid.T) {
		s.Delete(name)
		options := store.Options{Role: "engine", Version: 1}
		both := []*store.Shared{
			testkit.Value(store.OpenShared(t.Context(), "a", open(t, s), options))(rt),
			testkit.Value(store.OpenShared(t.Context(), "b", open(t, s), options))(rt),
		}
		faults := rapid.SliceOfN(rapid.SampledFrom([]kubeapi.Fault{
			kubeapi.None, kubeapi.None, kubeapi.Changed, kubeapi.Failed, kubeapi.Lost, kubeapi.Dropped, kubeapi.Late,
		}), 0, 20).Draw(rt, "faults")
		s.Fail(func(verb string) kubeapi.Fault {
			if verb == "get" || len(faults) == 0 {
				return kubeapi.None
			}
			next := faults[0]
			faults = faults[1:]
			return next
		})
		defer s.Fail(nil)
		uncertain, stored := map[int]bool{}, map[int]bool{}
		for id := range rapid.IntRange(1, 10).Draw(rt, "updates") {
			err := appendID(t.Context(), rapid.SampledFrom(both).Draw(rt, "process"), id)
			switch {
			case err == nil:
				stored[id] = true
			case errors.Is(err, errs.Unavailable):
				uncertain[id] = true
			default:
				rt.Fatalf("append %d: %v", id, err)
			}
			var list []int
			testkit.Must(rt, both[id%2].View(t.Context(), func(tx *store.Tx) (err error) {
				list, _, err = store.Bucket[[]int]{Name: "ids"}.Get(tx, "list")
				return err
			}))
			for id := range stored {
				if !slices.Contains(list, id) {
					rt.Fatalf("%d was acknowledged, stored are %v", id, list)
				}
			}
			for _, id := range list {
				if !stored[id] && !uncertain[id] {
					rt.Fatalf("%d was refused, stored are %v", id, list)
				}
			}
		}
	})
}

// An update after a read sends one request, and one that another process has
// overtaken is decided on the present state, also if it fails or changes nothing.
func TestRequestsOfUpdate(t *testing.T) {
	s := kubeapi.New(t, kubeapi.ConfigMaps())
	options := store.Options{Role: "engine", Version: 1}
	db, other := testkit.Value(store.OpenShared(t.Context(), "a", open(t, s), options))(t), testkit.Value(store.OpenShared(t.Context(), "b", open(t, s), options))(t)
	count := func(what string, wantGets, wantPuts int, update func() error) {
		t.Helper()
		gets, puts := s.Count("get"), s.Count("update")
		testkit.Must(t, update())
		if gets, puts = s.Count("get")-gets, s.Count("update")-puts; gets != wantGets || puts != wantPuts {
			t.Errorf("%s: %d reads and %d writes, want %d and %d", what, gets, puts, wantGets, wantPuts)
		}
	}
	count("an update", 0, 1, func() error { return appendID(t.Context(), db, 1) })
	count("an overtaken update", 1, 2, func() error { return appendID(t.Context(), other, 2) })
	count("an overtaken one that fails", 1, 1, func() error {
		if err := appendID(t.Context(), db, 2); !errors.Is(err, errs.Exists) {
			return fmt.Errorf("%w, want %w", err, errs.Exists)
		}
		return nil
	})
	count("one that changes nothing", 1, 0, func() error {
		return other.Update(t.Context(), func(*store.Tx) error { return nil })
	})
}
