package local

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func capacity(t testing.TB, e *Engine, q volume.CapacityQuery) volume.Capacity {
	t.Helper()
	return testkit.Value(e.Capacity(t.Context(), q))(t)
}

// Exactly the reported capacity can be used, on an own and on a shared file
// system.
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
				// The free space varies slightly all the time.
				refused(t, "more than there is", errs.Exhausted)(e.Create(t.Context(), req))
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
	for q, want := range map[string]int64{"": granule, "ext4": newvolume.MinimumSize("ext4", granule), "xfs": 300 * mib} {
		if got := capacity(t, e, volume.CapacityQuery{FSType: q}).Minimum; got != want {
			t.Errorf("the smallest volume with %q has %d bytes, want %d", q, got, want)
		}
	}
	refused(t, "Capacity for ntfs", errs.Invalid)(e.Capacity(t.Context(), volume.CapacityQuery{FSType: "ntfs"}))
	_, err := e.Capacity(t.Context(), volume.CapacityQuery{Parameters: map[string]string{"colour": "red"}})
	wantKind(t, err, "Capacity with an unknown parameter", errs.Invalid)
	_, err = e.Create(t.Context(), volume.CreateRequest{Name: "endless", Content: volume.Raw, Size: volume.SizeRange{Required: 1<<63 - 1}})
	wantKind(t, err, "the largest number of bytes", errs.OutOfRange)
}

// Concurrent requests for the last bytes succeed only while bytes are left.
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
	families := testkit.Value(registry.Gather())(t)
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

// A pool whose health cannot be read is not shown as healthy.
func TestMetricsOfUnreadablePool(t *testing.T) {
	e := open(t, config(t.TempDir()))
	dir := filepath.Join(e.pool.path, snapshotsDir)
	testkit.Must(t, os.Rename(dir, dir+".was"))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(e.Collector())
	for _, f := range testkit.Value(registry.Gather())(t) {
		if f.GetName() == "cleat_pool_health" {
			return
		}
	}
	t.Errorf("no adverse condition, though: %v", testkit.Err(e.StorageHealth(t.Context())))
}

// A start with a damaged engine.db fails with a remedy, and does not change the
// file.
func TestDamagedRecords(t *testing.T) {
	pool := t.TempDir()
	e := open(t, config(pool))
	for i := range 30 {
		create(t, e, volume.CreateRequest{Name: fmt.Sprint("v", i), Size: volume.SizeRange{Required: granule}})
	}
	closeEngine(t, e)
	path := filepath.Join(pool, storeName)
	whole, err := os.ReadFile(path)
	testkit.Must(t, err)
	page := os.Getpagesize()
	leaf := bytes.LastIndex(whole, []byte(`"name":"v29"`)) / page * page
	record := bytes.LastIndex(whole, []byte(`{"v":1,"r":{"name":"v29"`))
	if leaf < 2*page || record < leaf {
		t.Fatalf("page of the records at %d, one of them at %d", leaf, record)
	}
	with := func(at int, content []byte) []byte {
		damaged := bytes.Clone(whole)
		copy(damaged[at:], content)
		return damaged
	}
	for name, content := range map[string][]byte{
		"empty":                {},
		"text":                 []byte("precious"),
		"truncated":            whole[:3*page],
		"without its head":     with(0, make([]byte, 2*page)),
		"all zero":             make([]byte, len(whole)),
		"with a zeroed page":   with(leaf, make([]byte, page)),
		"with a page of noise": with(leaf, bytes.Repeat([]byte("noise"), page/5)),
		"with a broken page":   with(leaf+16, bytes.Repeat([]byte{0xff}, 256)),
		"with a broken record": with(record, []byte(`{"v":1,"r":{{{`)),
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Must(t, os.WriteFile(path, content, 0o600))
			for range 2 { // the pool is released
				refusesRecords(t, pool)
			}
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, content) {
				t.Errorf("the refused file has %d bytes now, %v; want the same %d", len(now), err, len(content))
			}
		})
	}
	for name, make := range map[string]func() error{
		"a FIFO":      func() error { return unix.Mkfifo(path, 0o600) },
		"a directory": func() error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Must(t, os.Remove(path), make())
			refusesRecords(t, pool)
		})
	}
	testkit.Must(t, os.Remove(path), os.WriteFile(path, whole, 0o600))
	if all, err := open(t, config(pool)).List(t.Context(), "", 0); err != nil || len(all) != 30 {
		t.Errorf("with the file back: %d volumes, %v", len(all), err)
	}
}

func refusesRecords(t *testing.T, pool string) {
	t.Helper()
	e, err := Open(t.Context(), config(pool))
	if err == nil {
		closeEngine(t, e)
	}
	wantKind(t, err, "a start with damaged records", errs.Precondition)
	for _, word := range []string{filepath.Join(pool, storeName), "damaged", "from a backup"} {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("%v, want %q in it", err, word)
		}
	}
}

func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		var writes atomic.Int64
		answer, hang := error(nil), make(chan struct{})
		close(hang)
		h := &heartbeat{write: func() error { writes.Add(1); <-hang; return answer }}
		beat := func(wantSilent bool, want error) {
			t.Helper()
			if silent, err := h.beat(t.Context(), &running); silent > 0 != wantSilent || !errors.Is(err, want) {
				t.Errorf("beat = %v, %v; want it silent: %v, error %v", silent, err, wantSilent, want)
			}
		}
		for range 10 {
			beat(false, nil)
		}
		if n := writes.Load(); n != 1 {
			t.Errorf("10 concurrent callers cause %d writes, want 1", n)
		}
		time.Sleep(heartbeatInterval)
		answer = unix.EIO
		beat(false, unix.EIO)
		time.Sleep(heartbeatInterval)
		answer = nil
		beat(false, nil)

		time.Sleep(heartbeatInterval)
		hang = make(chan struct{})
		beat(false, nil) // busy
		time.Sleep(heartbeatTimeout)
		beat(true, nil)
		gone := testkit.Canceled(t)
		if silent, _ := h.beat(gone, &running); silent == 0 {
			t.Error("a caller without time to wait gets no result for a silent disk")
		}
		if n := writes.Load(); n != 4 {
			t.Errorf("%d writes, want 4: none beside one that hangs", n)
		}
		close(hang)
		running.Wait()
		beat(false, nil)
	})
}

// Independent of mount flags.
func TestFailureOfThePool(t *testing.T) {
	e := open(t, Config{Pool: t.TempDir()})
	for _, c := range []struct {
		answer   error
		reason   string
		severity volume.Severity
	}{
		{nil, "", ""}, {unix.EIO, volume.ReasonPoolFailed, volume.Inaccessible}, {unix.EROFS, volume.ReasonPoolFailed, volume.Inaccessible},
		{unix.ENOSPC, volume.ReasonPoolNearlyFull, volume.Degraded},
	} {
		e.heart = heartbeat{write: func() error { return c.answer }}
		all := testkit.Value(e.StorageHealth(t.Context()))(t)
		switch {
		case c.reason == "" && len(all) > 0:
			t.Errorf("%v: %v", c.answer, all)
		case c.reason != "" && (len(all) != 1 || all[0].Reason != c.reason || all[0].Severity != c.severity):
			t.Errorf("%v: %v, want %s %s", c.answer, all, c.severity, c.reason)
		}
	}
}
