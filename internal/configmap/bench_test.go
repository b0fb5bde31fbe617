package configmap_test

import (
	"fmt"
	"testing"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
)

// BenchmarkShared has transactions of a database of 1,000 volumes.
func BenchmarkShared(b *testing.B) {
	s := kubeapi.New(b, kubeapi.ConfigMaps())
	o := open(b, s)
	db := testkit.Value(store.OpenShared(b.Context(), "state", o, store.Options{Role: "engine", Version: 1}))(b)
	bucket := store.Bucket[string]{Name: "volumes"}
	testkit.Must(b, db.Update(b.Context(), func(tx *store.Tx) error {
		for i := range 1000 {
			if err := bucket.Put(tx, fmt.Sprint(i), string(volume())); err != nil {
				return err
			}
		}
		return nil
	}))
	b.Run("View", func(b *testing.B) {
		for b.Loop() {
			testkit.Must(b, db.View(b.Context(), func(tx *store.Tx) error { _, _, err := bucket.Get(tx, "7"); return err }))
		}
	})
	b.Run("Update", func(b *testing.B) {
		for b.Loop() {
			testkit.Must(b, db.Update(b.Context(), func(tx *store.Tx) error { return bucket.Put(tx, "7", string(volume())) }))
		}
	})
}
