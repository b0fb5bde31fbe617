package grants

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/test/testkit"
)

var start = time.Date(2026, 5, 1, 12, 0, 0, 7, time.UTC)

func open(t testing.TB, path string) (*Grants, *store.Store) {
	t.Helper()
	s := testkit.Value(store.Open(t.Context(), path, store.Options{Role: Role, Version: Version}))(t)
	g, err := Open(t.Context(), s)
	if err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	return g, s
}

func closing(t testing.TB, s *store.Store) {
	t.Helper()
	testkit.Must(t, s.Close())
}

func vf(address string) inventory.Function {
	return inventory.Function{
		Address: address, Kind: inventory.NetworkClass, Class: 0x020000, Vendor: "15b3", Device: "1018", Driver: "mlx5_core", NUMA: 1,
		PF: "0000:05:00.0", PFNames: []string{"ib0", "ibs1"}, VF: 3,
		Netdevs:   []inventory.Netdev{{Name: "ib0v3", Names: []string{"other"}, Link: "infiniband", MAC: "00:11", MTU: 2044, Up: true}},
		ACPIIndex: "7", IOMMUGroup: "12", UIO: "uio1",
		RDMA:        []inventory.RDMA{{Name: "mlx5_3", Devices: []inventory.CharDevice{{Role: "uverbs", Path: "/dev/infiniband/uverbs3"}}}},
		RDMACapable: true, VDPA: &inventory.VDPA{Name: "vdpa0", Driver: "vhost_vdpa", Path: "/dev/vhost-vdpa-0"},
		Representor: "pf0vf3", DDPProfile: "gtp", PKey: "0x8001",
	}
}

func sf(name string) inventory.Auxiliary {
	return inventory.Auxiliary{Name: name, Type: "sf", Index: 88, Driver: "mlx5_core.sf", Parent: vf("0000:05:00.0"),
		Netdev: []inventory.Netdev{{Name: "en3f0pf0sf88", Link: "ether"}}, RDMA: []inventory.RDMA{{Name: "mlx5_4"}}}
}

func function(f inventory.Function) inventory.Device {
	return inventory.Device{ID: f.Address, Function: &f}
}

func auxiliary(a inventory.Auxiliary) inventory.Device {
	return inventory.Device{ID: a.Name, Function: &a.Parent, Auxiliary: &a}
}

func record(resource string, d inventory.Device, age time.Duration) Record {
	return Of(resource, inventory.Member{Device: d}, start.Add(-age))
}

func TestRecordKeepsDevice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "grants")
	given := []inventory.Device{function(vf("0000:05:00.4")), auxiliary(sf("mlx5_core.sf.4"))}
	g, s := open(t, path)
	var records []Record
	for _, d := range given {
		records = append(records, record("intel.com/a", d, 0))
	}
	testkit.Must(t, g.Put(t.Context(), records))
	before := g.All()
	closing(t, s)
	g, s = open(t, path)
	defer closing(t, s)
	if diff := cmp.Diff(before, g.All()); diff != "" {
		t.Errorf("records (-before +after a restart):\n%s", diff)
	}
	for i, r := range g.All() {
		if diff := cmp.Diff(&given[i], r.Device()); diff != "" || !r.At.Equal(start) || r.Resource != "intel.com/a" {
			t.Errorf("%+v (-allocated +recorded):\n%s", r, diff)
		}
		if d := r.Device(); d.Auxiliary != nil && d.Function != &d.Auxiliary.Parent {
			t.Errorf("%s: the function is not the parent", d.ID)
		}
	}
}

func TestPutReplaces(t *testing.T) {
	g, s := open(t, filepath.Join(t.TempDir(), "grants"))
	defer closing(t, s)
	old, again := record("intel.com/a", function(vf("0000:05:00.4")), time.Hour), record("intel.com/a", function(vf("0000:05:00.4")), 0)
	again.Function.Driver = "vfio-pci"
	other := record("intel.com/b", function(vf("0000:05:00.4")), 0)
	for _, r := range []Record{old, other, again} {
		testkit.Must(t, g.Put(t.Context(), []Record{r}))
	}
	testkit.Diff(t, "records", []Record{again, other}, g.All())
	// Allocated again meanwhile.
	testkit.Must(t, g.Remove(t.Context(), []Record{old, other}))
	testkit.Diff(t, "records", []Record{again}, g.All())
}

func TestPutRejectsInvalidRecords(t *testing.T) {
	g, s := open(t, filepath.Join(t.TempDir(), "grants"))
	defer closing(t, s)
	good := record("intel.com/a", function(vf("0000:05:00.4")), 0)
	for _, bad := range []Record{{}, {Resource: "intel.com/a"}, {ID: "x"}, {Resource: "a b", ID: "x"}} {
		if err := g.Put(t.Context(), []Record{good, bad}); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
	if len(g.All()) > 0 {
		t.Errorf("records were partly written: %v", g.All())
	}
	if err := errors.Join(g.Put(t.Context(), nil), g.Remove(t.Context(), nil), g.Remove(t.Context(), []Record{good})); err != nil {
		t.Errorf("Put of no records: %v", err)
	}
}

// A waiting write ends with its context, and records that are not on disk are
// not returned.
func TestWriteHonorsContext(t *testing.T) {
	g, s := open(t, filepath.Join(t.TempDir(), "grants"))
	good := []Record{record("intel.com/a", function(vf("0000:05:00.4")), 0)}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(os.ErrClosed)
	<-g.writeToken // a concurrent write
	testkit.WantError(t, "put", g.Put(ctx, good), os.ErrClosed)
	if len(g.All()) > 0 {
		t.Error("a record that was not written is returned")
	}
	g.writeToken <- struct{}{}
	closing(t, s)
	if err := g.Put(t.Context(), good); err == nil || len(g.All()) > 0 {
		t.Errorf("a closed store accepted a record: %v", err)
	}
}

func TestDamage(t *testing.T) {
	good := record("intel.com/a", function(vf("0000:05:00.4")), 0)
	for name, c := range map[string]struct {
		key string
		r   Record
	}{
		"no resource":    {" 0000:05:00.4", Record{ID: "0000:05:00.4"}},
		"no device":      {"intel.com/a ", Record{Resource: "intel.com/a"}},
		"another device": {"intel.com/a 0000:05:00.5", good},
	} {
		path := filepath.Join(t.TempDir(), "grants")
		g, s := open(t, path)
		testkit.Must(t, g.Put(t.Context(), []Record{good}))
		testkit.Must(t, s.Update(t.Context(), func(tx *store.Tx) error { return bucket().Put(tx, c.key, c.r) }))
		if _, err := Open(t.Context(), s); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		closing(t, s)
	}
	path := filepath.Join(t.TempDir(), "grants")
	_, s := open(t, path)
	defer closing(t, s)
	testkit.Must(t, s.Update(t.Context(), func(tx *store.Tx) error {
		return store.Bucket[[]int]{Name: "grants"}.Put(tx, "intel.com/a 0", []int{1})
	}))
	testkit.WantError(t, "an invalid record", testkit.Err(Open(t.Context(), s)), store.ErrDamaged)
}

func TestGrantsMatchModel(t *testing.T) {
	dir := t.TempDir()
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		path := filepath.Join(dir, fmt.Sprint(runs))
		g, s := open(t, path)
		model := map[string]Record{}
		draw := func() []Record {
			var records []Record
			for range rapid.IntRange(0, 4).Draw(rt, "records") {
				d := function(vf(fmt.Sprintf("0000:05:00.%d", rapid.IntRange(0, 3).Draw(rt, "device"))))
				records = append(records, record(rapid.SampledFrom([]string{"intel.com/a", "intel.com/b"}).Draw(rt, "resource"), d, time.Duration(rapid.IntRange(0, 2).Draw(rt, "age"))))
			}
			return records
		}
		for range rapid.IntRange(1, 12).Draw(rt, "calls") {
			switch records := draw(); rapid.IntRange(0, 2).Draw(rt, "call") {
			case 0:
				testkit.Must(rt, g.Put(t.Context(), records))
				for _, r := range records {
					model[r.Resource+r.ID] = r
				}
			case 1:
				testkit.Must(rt, g.Remove(t.Context(), records))
				for _, r := range records {
					if model[r.Resource+r.ID].At.Equal(r.At) {
						delete(model, r.Resource+r.ID)
					}
				}
			case 2:
				closing(t, s)
				g, s = open(t, path)
			}
			got := map[string]Record{}
			for _, r := range g.All() {
				got[r.Resource+r.ID] = r
			}
			if diff := cmp.Diff(model, got); diff != "" {
				rt.Fatalf("records (-model +got):\n%s", diff)
			}
		}
		closing(t, s)
		testkit.Must(rt, os.Remove(path))
	})
}

func TestRecordsSurviveKill(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "grants")
	g, s := open(t, path)
	defer closing(t, s)
	for i := range 20 {
		r := record("intel.com/a", function(vf(fmt.Sprintf("0000:05:00.%d", i%8))), time.Duration(i))
		err := g.Put(t.Context(), []Record{r})
		if i%5 == 4 {
			err = errors.Join(err, g.Remove(t.Context(), []Record{r}))
		}
		testkit.Must(t, err)
		left := filepath.Join(dir, fmt.Sprint(i))
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(left, text, 0o600)
		}
		testkit.Must(t, err)
		after, s := open(t, left)
		if diff := cmp.Diff(g.All(), after.All()); diff != "" {
			t.Errorf("after call %d (-before the kill +after):\n%s", i, diff)
		}
		closing(t, s)
	}
}

func TestConcurrentWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "grants")
	g, s := open(t, path)
	var wait sync.WaitGroup
	for i := range 16 {
		wait.Go(func() {
			r := record("intel.com/a", function(vf(fmt.Sprintf("0000:05:00.%d", i))), 0)
			if err := g.Put(t.Context(), []Record{r}); err != nil {
				t.Error(err)
			}
			g.All()
			if i%2 == 0 {
				if err := g.Remove(t.Context(), []Record{r}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	before := g.All()
	closing(t, s)
	g, s = open(t, path)
	defer closing(t, s)
	if diff := cmp.Diff(before, g.All()); diff != "" || len(before) != 8 {
		t.Errorf("%d records (-before +after):\n%s", len(before), diff)
	}
}
