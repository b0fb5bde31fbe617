package local

import (
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func capacity(t testing.TB, e *Engine, q volume.CapacityQuery) volume.Capacity {
	t.Helper()
	c, err := e.Capacity(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCapacityIsKept: what is announced can be had, to the byte, and not more;
// on a file system of its own and in a directory among others.
func TestCapacityIsKept(t *testing.T) {
	for name, pool := range map[string]func(testing.TB) string{
		"own":    onXFS,
		"shared": func(t testing.TB) string { return filepath.Join(onExt4(t), "pool") },
	} {
		for _, kind := range []string{thin, thick} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				c := config(pool(t))
				c.OverProvision = 1.5
				e := open(t, c)
				if e.pool.ownMount != (name == "own") {
					t.Errorf("own mount: %v", e.pool.ownMount)
				}
				parameters := map[string]string{keyProvisioning: kind}
				left := capacity(t, e, volume.CapacityQuery{Parameters: parameters})
				if left.Available < 50*mib || left.Maximum != left.Available || left.Minimum != granule {
					t.Fatalf("an empty pool has %+v", left)
				}
				req := volume.CreateRequest{Name: "more", Content: volume.Raw, Parameters: parameters, Size: volume.SizeRange{Required: left.Available + mib}}
				// By a little the file system changes its mind all the time.
				_, err := e.Create(t.Context(), req)
				wantKind(t, err, "more than there is", errs.Exhausted)
				req.Size.Required = left.Available
				create(t, e, req)
				if after := capacity(t, e, volume.CapacityQuery{Parameters: parameters}); after.Available > mib {
					t.Errorf("%d bytes are left after all were taken", after.Available)
				}
			})
		}
	}
}

func TestCapacityQueries(t *testing.T) {
	e := open(t, config(onXFS(t)))
	for q, want := range map[string]int64{"": granule, "ext4": minimumSize("ext4"), "xfs": 300 * mib} {
		if got := capacity(t, e, volume.CapacityQuery{FSType: q}).Minimum; got != want {
			t.Errorf("the smallest volume with %q has %d bytes, want %d", q, got, want)
		}
	}
	_, err := e.Capacity(t.Context(), volume.CapacityQuery{FSType: "ntfs"})
	wantKind(t, err, "Capacity for ntfs", errs.Invalid)
	_, err = e.Capacity(t.Context(), volume.CapacityQuery{Parameters: map[string]string{"colour": "red"}})
	wantKind(t, err, "Capacity with an unknown parameter", errs.Invalid)
	_, err = e.Create(t.Context(), volume.CreateRequest{Name: "endless", Content: volume.Raw, Size: volume.SizeRange{Required: 1<<63 - 1}})
	wantKind(t, err, "the largest number of bytes", errs.OutOfRange)
}

// TestPromisesUnderConcurrency: many want the last bytes, as many get them as
// there are.
func TestPromisesUnderConcurrency(t *testing.T) {
	c := config(onXFS(t))
	c.OverProvision = 1
	e := open(t, c)
	left := capacity(t, e, volume.CapacityQuery{}).Available
	size := left / 8 / granule * granule
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range 32 {
		wg.Go(func() {
			_, err := e.Create(t.Context(), volume.CreateRequest{Name: fmt.Sprint(i), Content: volume.Raw, Size: volume.SizeRange{Required: size}})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else if errs.KindOf(err) != errs.Exhausted {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made < 7 || made > 8 || e.budget.promised() != int64(made)*size {
		t.Errorf("%d of 8 volumes were made, %d bytes are promised", made, e.budget.promised())
	}
}

func TestMetrics(t *testing.T) {
	e := open(t, config(onXFS(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
	snapshot(t, e, "s", v.ID)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(e.Collector())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	if got["cleat_pool_bytes"] == 0 {
		t.Error("the pool has no bytes")
	}
	delete(got, "cleat_pool_bytes")
	want := map[string]float64{"cleat_pool_promised_bytes": mib, "cleat_pool_volumes": 1, "cleat_pool_snapshots": 1, "cleat_pool_copies": 0}
	if !maps.Equal(got, want) {
		t.Errorf("metrics: %v, want %v", got, want)
	}
}
