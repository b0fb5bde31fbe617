package table_test

import (
	"fmt"
	"testing"

	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
)

// BenchmarkPutDrop records a device with its own file and a shared controller,
// and drops it: two durable transactions, independent of the number of devices.
func BenchmarkPutDrop(b *testing.B) {
	for _, n := range []int{1, 100, 10000} {
		b.Run(fmt.Sprint("devices=", n), func(b *testing.B) {
			r := crowded(b, n)
			shared := controller("shared")
			o := aio("new", "new")
			d := device("pvc-new", "new", shared, o)
			for b.Loop() {
				testkit.Must(b, r.Put(b.Context(), d, shared, o))
				testkit.Must(b, r.Drop(b.Context(), d.Volume, o.ID))
			}
		})
	}
}

// BenchmarkDevice is the lookup of a GetDevice.
func BenchmarkDevice(b *testing.B) {
	for _, n := range []int{1, 100, 10000} {
		b.Run(fmt.Sprint("devices=", n), func(b *testing.B) {
			r := crowded(b, n)
			for b.Loop() {
				if _, ok := r.Device(volumeOf(n / 2)); !ok {
					b.Fatal("it is not there")
				}
			}
		})
	}
}

func crowded(b *testing.B, n int) *rig {
	b.Helper()
	r := open(b)
	shared := controller("shared")
	testkit.Must(b, r.store.Update(b.Context(), func(tx *store.Tx) error {
		devices, objects := store.Bucket[table.Device]{Name: "devices"}, store.Bucket[table.Object]{Name: "objects"}
		for i := range n {
			o := aio(volumeOf(i), volumeOf(i))
			if err := objects.Put(tx, o.ID.String(), o); err != nil {
				return err
			}
			if err := devices.Put(tx, volumeOf(i), device(volumeOf(i), "n"+volumeOf(i), shared, o)); err != nil {
				return err
			}
		}
		return objects.Put(tx, shared.ID.String(), shared)
	}))
	r.close()
	r.open()
	return r
}
