package configmap_test

import (
	"context"
	"errors"
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
