package spdk

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// killsEnvironment names the variable with the number of kills of a real target.
const killsEnvironment = "CLEAT_SPDK_KILLS"

// killed repeats calls at a target that is killed meanwhile.
type killed struct {
	*rig
	engine *Engine
	stop   atomic.Bool // no further objects

	mu    sync.Mutex
	calls map[string]int // by name and kind of the answer
	done  chan struct{}  // an element for each answer
}

// until repeats a call until it succeeds. Its errors must let the caller repeat it:
// sidecars give up after others, and two of them forget what they have created.
func (k *killed) until(what string, call func(context.Context) error) bool {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := call(testkit.Context(k.t))
		k.mu.Lock()
		k.calls[what+" "+kindOf(err)]++
		k.mu.Unlock()
		select {
		case k.done <- struct{}{}:
		default:
		}
		if err == nil {
			return true
		}
		if kind := errs.KindOf(err); kind != errs.Unavailable && kind != errs.Busy {
			k.t.Errorf("%s: %v (%s)", what, err, kind)
			return false
		}
		time.Sleep(pause)
	}
}

// finish waits for the calls in flight. A target that crashes meanwhile is started
// again.
func (k *killed) finish(workers *sync.WaitGroup) {
	k.t.Helper()
	finished := make(chan struct{})
	go func() {
		workers.Wait()
		close(finished)
	}()
	for {
		var crashed <-chan struct{}
		if k.process != nil {
			crashed = k.process.Done()
		}
		select {
		case <-finished:
			return
		case <-crashed:
			k.t.Log("the target has crashed")
			k.kill()
		}
	}
}

func kindOf(err error) string {
	if err == nil {
		return "ok"
	}
	return fmt.Sprint(errs.KindOf(err))
}

// live creates, copies, grows and deletes a volume.
func (k *killed) live(name string) {
	var v, copied, restored volume.Volume
	var s volume.Snapshot
	created := func(v *volume.Volume, req volume.CreateRequest) func(context.Context) error {
		return func(ctx context.Context) (err error) {
			*v, err = k.engine.Create(ctx, req)
			return err
		}
	}
	first := request(name, volume.Source{})
	first.Size.Required = 4 * mib
	if k.noUnmap || rand.IntN(2) == 0 {
		first.Parameters = map[string]string{keyThin: "false"}
	}
	_ = k.until("create", created(&v, first)) &&
		k.until("enforce", func(ctx context.Context) error { return k.engine.Enforce(ctx, v.ID) }) &&
		k.until("snapshot", func(ctx context.Context) (err error) {
			s, err = k.engine.CreateSnapshot(ctx, volume.SnapshotRequest{Name: name + "-snapshot", Source: v.ID})
			return err
		}) &&
		k.until("copy", func(ctx context.Context) error {
			req := request(name+"-copy", volume.Source{Volume: v.ID})
			req.Size.Required = 4 * mib
			return created(&copied, req)(ctx)
		}) &&
		k.until("restore", func(ctx context.Context) error {
			req := request(name+"-restored", volume.Source{Snapshot: s.ID})
			req.Size.Required = 4 * mib
			return created(&restored, req)(ctx)
		}) &&
		(k.noUnmap || k.until("expand", func(ctx context.Context) error {
			return testkit.Err(k.engine.Expand(ctx, v.ID, volume.SizeRange{Required: 8 * mib}))
		})) &&
		k.until("delete snapshot", func(ctx context.Context) error { return k.engine.DeleteSnapshot(ctx, s.ID) }) &&
		k.until("delete", func(ctx context.Context) error { return k.engine.Delete(ctx, v.ID) }) &&
		k.until("delete", func(ctx context.Context) error { return k.engine.Delete(ctx, copied.ID) }) &&
		k.until("delete", func(ctx context.Context) error { return k.engine.Delete(ctx, restored.ID) })
}

// testTargetKilled kills a target under calls. No answer is final for an object
// that a record has, nothing is lost, and nothing is left.
func testTargetKilled(t *testing.T, r *rig) {
	r.needsProgram()
	e := r.engine()
	if isReal() {
		e.config.Interval = time.Second
	}
	e.enforceTime = 10 * time.Second
	k := &killed{rig: r, engine: e, calls: map[string]int{}, done: make(chan struct{})}
	kills, present := 5, 10
	if text := os.Getenv(killsEnvironment); text != "" {
		kills, present = testkit.Value(strconv.Atoi(text))(t), 60
	}
	var kept []volume.Volume
	for i := range present {
		name := fmt.Sprintf("kept-%d", i)
		req := withParameters(name, volume.Source{}, keyThin, strconv.FormatBool(!r.noUnmap))
		req.Size.Required = 2 * mib
		v := testkit.Value(e.Create(testkit.Context(t), req))(t)
		s := takeSnap(t, e, name+"-snapshot", v.ID)
		req = request(name+"-restored", volume.Source{Snapshot: s.ID})
		req.Size.Required = 2 * mib
		kept = append(kept, v, testkit.Value(e.Create(testkit.Context(t), req))(t))
	}
	stop := r.run(e)
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for i := 0; !k.stop.Load() && !t.Failed(); i++ {
				k.live(fmt.Sprintf("v-%d-%d", w, i))
			}
		})
	}
	for n := range kills {
		for range 1 + rand.IntN(12) {
			testkit.Receive(t, "an answer", k.done)
		}
		if t.Failed() {
			break
		}
		time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond) // anywhere in a call
		r.kill()
		if n%20 == 19 {
			k.mu.Lock()
			t.Logf("%d kills, answers: %v", n+1, k.calls)
			k.mu.Unlock()
		}
	}
	k.stop.Store(true)
	k.finish(&workers)
	stop()
	t.Logf("%d kills, answers:", kills)
	for _, what := range slices.Sorted(maps.Keys(k.calls)) {
		t.Logf("%6d %s", k.calls[what], what)
	}
	compared := e.compare(testkit.Context(t), e.order[0])
	e.order[0].note(testkit.Context(t), e, compared)
	testkit.Must(t, e.sweep(testkit.Context(t), e.order[0]), compared)
	known := map[string]bool{}
	for _, v := range testkit.Value(e.records(testkit.Context(t)))(t) {
		known[lvolName(v.Name)] = true
		if !strings.HasPrefix(v.Name, "kept-") {
			t.Errorf("left is %+v", v)
		}
	}
	for _, s := range testkit.Value(e.snapshotRecords(testkit.Context(t), snapshots()))(t) {
		known[s.lvol()] = true
		if !strings.HasPrefix(s.Name, "kept-") {
			t.Errorf("left is %+v", s)
		}
	}
	names := r.lvols(0)
	if unknown := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return known[name] }); len(unknown) > 0 || len(names) != len(kept)*3/2 {
		t.Errorf("the target has %d lvols, want %d; no record has %q", len(names), len(kept)*3/2, unknown)
		for _, name := range unknown {
			bdev, err := r.client(0).Bdev(testkit.Context(t), alias(r.endpoints[0].store, name))
			t.Logf("%s: %+v, %v", name, bdev.Driver.Lvol, err)
		}
	}
	for _, v := range kept {
		if conditions := testkit.Value(e.VolumeHealth(testkit.Context(t), v.ID))(t); len(conditions) > 0 {
			t.Errorf("volume %s: %+v", v.ID, conditions)
		}
	}
	if conditions := testkit.Value(e.StorageHealth(testkit.Context(t)))(t); len(conditions) > 0 && !r.noUnmap {
		t.Errorf("the storage: %+v", conditions)
	}
	r.removeAll(e)
}
