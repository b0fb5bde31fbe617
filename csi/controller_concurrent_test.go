package csi_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

const clients = 64

// gate blocks creations of one name until the test opens it.
type gate struct {
	volume.Engine
	name    string
	open    chan struct{}
	entered chan struct{}
	calls   atomic.Int64
}

func newGate(name string) *gate {
	return &gate{name: name, open: make(chan struct{}), entered: make(chan struct{}, clients)}
}

func (g *gate) wrap(b *volume.Backend) { g.Engine, b.Engine = b.Engine, g }

func (g *gate) Create(ctx context.Context, req volume.CreateRequest) (volume.Volume, error) {
	if req.Name != g.name {
		return g.Engine.Create(ctx, req)
	}
	g.calls.Add(1)
	g.entered <- struct{}{}
	select {
	case <-g.open:
		return g.Engine.Create(ctx, req)
	case <-ctx.Done():
		return volume.Volume{}, ctx.Err()
	}
}

// joined waits until want callers wait for the operations in flight.
func joined(t *testing.T, rig *plugin, want int) {
	t.Helper()
	for bound := time.Now().Add(time.Minute); time.Now().Before(bound); {
		n := 0
		for _, r := range rig.Operations.Running() {
			n += r.Joined
		}
		if n == want {
			return
		}
		runtime.Gosched()
	}
	t.Fatalf("never %d callers at once", want)
}

func TestSameRequestIsOneOperation(t *testing.T) {
	g := newGate("one")
	rig := newPlugin(t, options{Backend: g.wrap})
	ids := make([]string, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			req := createRequest("one", mountCap())
			req.Secrets = map[string]string{"token": fmt.Sprint(i)} // still the same request
			r, err := rig.Controller.CreateVolume(t.Context(), req)
			wantCode(t, err, codes.OK)
			ids[i] = r.GetVolume().GetVolumeId()
		})
	}
	joined(t, rig, clients)
	close(g.open)
	wg.Wait()
	if slices.Sort(ids); g.calls.Load() != 1 || ids[0] == "" || ids[0] != ids[clients-1] {
		t.Errorf("%d creations, ids %q to %q", g.calls.Load(), ids[0], ids[clients-1])
	}
}

func TestOtherRequestIsBusyAndOtherObjectIsNot(t *testing.T) {
	g := newGate("slow")
	rig := newPlugin(t, options{Backend: g.wrap, Wait: 20 * time.Millisecond})
	done := make(chan error, 1)
	go func() {
		_, err := rig.Controller.CreateVolume(t.Context(), createRequest("slow", mountCap()))
		done <- err
	}()
	<-g.entered
	_, err := rig.Controller.CreateVolume(t.Context(), createRequest("slow", blockCap()))
	wantCode(t, err, codes.Aborted)
	rig.MustCreate(t, "other", mountCap())
	rig.MustSnapshot(t, "slow", rig.MustCreate(t, "source", mountCap()).GetVolumeId())
	close(g.open)
	wantCode(t, <-done, codes.OK)
}

// A deadline ends the wait, not the work.
func TestWorkOutlivesTheDeadline(t *testing.T) {
	g := newGate("late")
	rig := newPlugin(t, options{Backend: g.wrap})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := rig.Controller.CreateVolume(ctx, createRequest("late", mountCap()))
	wantCode(t, err, codes.DeadlineExceeded)
	joined(t, rig, 0)
	done := make(chan error, 1)
	go func() {
		_, err := rig.Controller.CreateVolume(t.Context(), createRequest("late", mountCap()))
		done <- err
	}()
	joined(t, rig, 1)
	close(g.open)
	wantCode(t, <-done, codes.OK)
	if n := g.calls.Load(); n != 1 {
		t.Errorf("the work was begun %d times", n)
	}
}

// repeatGate lets the first creation of a name pass and holds the repeats.
type repeatGate struct {
	*gate
	first atomic.Bool
}

func (g *repeatGate) Create(ctx context.Context, req volume.CreateRequest) (volume.Volume, error) {
	if g.first.CompareAndSwap(false, true) {
		return g.Engine.Create(ctx, req)
	}
	return g.gate.Create(ctx, req)
}

func TestDeleteCancelsAPendingCreate(t *testing.T) {
	g := &repeatGate{gate: newGate("gone")}
	rig := newPlugin(t, options{Backend: func(b *volume.Backend) { g.Engine, b.Engine = b.Engine, g }})
	v := rig.MustCreate(t, "gone", mountCap())
	done := make(chan error, 1)
	go func() {
		_, err := rig.Controller.CreateVolume(t.Context(), createRequest("gone", mountCap()))
		done <- err
	}()
	<-g.entered
	_, err := rig.Controller.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, err, codes.OK)
	wantCode(t, <-done, codes.Aborted)
}

// watched detects concurrent creations, or creation and deletion, of one name.
type watched struct {
	volume.Engine
	t    testing.TB
	mu   sync.Mutex
	busy map[string]bool
}

func (w *watched) alone(name string) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy[name] {
		w.t.Errorf("two operations work on %q at once", name)
	}
	w.busy[name] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.busy, name)
	}
}

func (w *watched) Create(ctx context.Context, req volume.CreateRequest) (volume.Volume, error) {
	defer w.alone(req.Name)()
	runtime.Gosched()
	return w.Engine.Create(ctx, req)
}

func (w *watched) Delete(ctx context.Context, id volume.ID) error {
	defer w.alone(string(id))()
	if v, err := w.Engine.Get(ctx, id); err == nil {
		defer w.alone(v.Name)()
	}
	runtime.Gosched()
	return w.Engine.Delete(ctx, id)
}

// pick is an object that all clients use.
type pick struct {
	mu  sync.Mutex
	ids []string
}

func (p *pick) add(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id != "" && !slices.Contains(p.ids, id) {
		p.ids = append(p.ids, id)
	}
}

func (p *pick) any() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ids) == 0 {
		return "vol-none"
	}
	return p.ids[rand.IntN(len(p.ids))]
}

// storm is 64 concurrent clients on a few names and ids. Each action returns
// its error; allowed are the codes that races can cause.
type storm struct {
	*plugin
	volumes, snapshots pick
}

type action struct {
	name    string
	allowed []codes.Code
	do      func(context.Context) error
}

func (s *storm) actions() []action {
	c := s.Controller
	name := func() string { return fmt.Sprint("n", rand.IntN(6)) }
	return []action{
		{"CreateVolume", []codes.Code{codes.AlreadyExists, codes.Aborted}, func(ctx context.Context) error {
			req := createRequest(name(), mountCap())
			if rand.IntN(4) == 0 {
				req.VolumeCapabilities[0] = blockCap()
			}
			r, err := c.CreateVolume(ctx, req)
			s.volumes.add(r.GetVolume().GetVolumeId())
			return err
		}},
		{"DeleteVolume", []codes.Code{codes.FailedPrecondition}, func(ctx context.Context) error {
			_, err := c.DeleteVolume(ctx, &spec.DeleteVolumeRequest{VolumeId: s.volumes.any()})
			return err
		}},
		{"CreateSnapshot", []codes.Code{codes.NotFound, codes.AlreadyExists, codes.Aborted}, func(ctx context.Context) error {
			r, err := c.CreateSnapshot(ctx, &spec.CreateSnapshotRequest{Name: name(), SourceVolumeId: s.volumes.any()})
			s.snapshots.add(r.GetSnapshot().GetSnapshotId())
			return err
		}},
		{"DeleteSnapshot", nil, func(ctx context.Context) error {
			_, err := c.DeleteSnapshot(ctx, &spec.DeleteSnapshotRequest{SnapshotId: s.snapshots.any()})
			return err
		}},
		{"Expand", []codes.Code{codes.NotFound, codes.Aborted}, func(ctx context.Context) error {
			_, err := c.ControllerExpandVolume(ctx, &spec.ControllerExpandVolumeRequest{
				VolumeId: s.volumes.any(), CapacityRange: &spec.CapacityRange{RequiredBytes: int64(8+rand.IntN(8)) << 20},
			})
			return err
		}},
		{"Publish", []codes.Code{codes.NotFound, codes.FailedPrecondition, codes.AlreadyExists, codes.Aborted}, func(ctx context.Context) error {
			_, err := c.ControllerPublishVolume(ctx, &spec.ControllerPublishVolumeRequest{
				VolumeId: s.volumes.any(), NodeId: fmt.Sprint("node-", 1+rand.IntN(2)), VolumeCapability: blockCap(), Readonly: rand.IntN(2) == 0,
			})
			return err
		}},
		{"Unpublish", nil, func(ctx context.Context) error {
			_, err := c.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{VolumeId: s.volumes.any()})
			return err
		}},
		{"ListVolumes", nil, func(ctx context.Context) error {
			_, err := c.ListVolumes(ctx, &spec.ListVolumesRequest{MaxEntries: 2})
			return err
		}},
	}
}

func TestStorm(t *testing.T) {
	// With a long wait no call is refused as busy, even on a loaded machine.
	rig := newPlugin(t, options{Wait: time.Minute, Backend: func(b *volume.Backend) {
		b.Engine = &watched{Engine: b.Engine, t: t, busy: map[string]bool{}}
	}})
	s := &storm{plugin: rig}
	actions := s.actions()
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range 40 {
				a := actions[rand.IntN(len(actions))]
				if code := status.Code(a.do(t.Context())); code != codes.OK && !slices.Contains(a.allowed, code) {
					t.Errorf("%s answers %v", a.name, code)
				}
			}
		})
	}
	wg.Wait()
	if left := rig.Operations.Running(); len(left) != 0 {
		t.Errorf("still running: %v", left)
	}
	checkNoDoubles(t, rig)
}

func checkNoDoubles(t *testing.T, rig *plugin) {
	t.Helper()
	volumes := testkit.Value(rig.Reference.List(context.Background(), "", 0))(t)
	names, ids := map[string]bool{}, map[volume.ID]bool{}
	for _, v := range volumes {
		if names[v.Name] {
			t.Errorf("two volumes are named %q", v.Name)
		}
		names[v.Name], ids[v.ID] = true, true
	}
	grants := testkit.Value(rig.Ledger.All(context.Background(), "", 0))(t)
	for i, g := range grants {
		if !ids[g.Volume] {
			t.Errorf("a grant of the deleted volume %s is left", g.Volume)
		}
		if i > 0 && grants[i-1].Volume == g.Volume {
			t.Errorf("volume %s is granted to %s and %s", g.Volume, grants[i-1].Client.Node, g.Client.Node)
		}
	}
}
