//go:build ceph

package ceph

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

const workers = 4

// rounds returns the point of each kill: every third one in CI, as engine/ceph
// TestKilled kills at all of them, and all of them many times in make soak.
func rounds(points []string) (all []string) {
	if soak.Enabled {
		return slices.Repeat(points, 15)
	}
	for i := 0; i < len(points); i += 3 {
		all = append(all, points[i])
	}
	return all
}

// TestCrash kills the controller at crash points under concurrent calls, each
// time starts the next one without any file of the last, and repeats the calls
// that were not answered. At the end the pool has exactly the acknowledged
// volumes, and nothing when these are deleted.
func TestCrash(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	points := slices.DeleteFunc(testkit.CrashPoints(t, "engine", "ceph"), notReached)
	var all []*worker
	for i := range workers {
		all = append(all, newWorker(i))
	}
	hits := map[string]bool{}
	for round, point := range rounds(points) {
		if r.round(ctx, all, round, point, 10*time.Second) {
			hits[point] = true
		}
		if t.Failed() {
			return
		}
	}
	fmt.Printf("REPORT: ceph crash test: %d of %d points hit, %d calls acknowledged\n", len(hits), len(points), acknowledged(all))
	if len(hits) == 0 {
		t.Error("no crash point was hit")
	}
	r.audit(all)
}

// notReached: engine ceph has no such point, or the workers create no groups,
// which not every librbd offers.
func notReached(point string) bool {
	return strings.HasPrefix(point, "group.") || strings.HasPrefix(point, "delete-group.") ||
		slices.Contains([]string{"copy.completed", "copy.grown", "create.made", "create.removed", "delete.removed"}, point)
}

// round runs the workers against an armed controller until it dies. It reports
// whether it died at the point.
func (r *rig) round(ctx context.Context, all []*worker, round int, point string, limit time.Duration) bool {
	r.Helper()
	machine := fmt.Sprintf("m%d", round)
	log := filepath.Join(r.dir, machine+"-hits")
	p, err := driver.Launch(ctx, shared.cleat, r.dir, machine, []string{"CLEAT_CRASHPOINT=" + point + "=1", "CLEAT_CRASHPOINT_LOG=" + log}, r.controllerFlags(machine)...)
	_, missing := os.Stat(log)
	if err != nil {
		if missing != nil {
			r.Errorf("start: %v", err)
		}
		return missing == nil // reached during the start
	}
	work, stop := context.WithTimeout(ctx, limit)
	defer stop()
	var running sync.WaitGroup
	for _, w := range all {
		running.Go(func() {
			if err := w.work(work, spec.NewControllerClient(p.Conn), p.Done()); err != nil {
				r.Errorf("worker %d, armed with %s: %v\n%s", w.number, point, err, p.Log.String())
			}
		})
	}
	running.Wait()
	_ = p.Kill() // its connection can be closed already
	_, missing = os.Stat(log)
	return missing == nil
}

// audit compares the pool, as the rbd program sees it, with the acknowledged
// volumes, and deletes everything.
func (r *rig) audit(all []*worker) {
	r.Helper()
	ctx := testkit.Context(r)
	last := r.controller("last")
	r.Cleanup(func() {
		if r.Failed() {
			r.Log(last.Log.String())
		}
	})
	c := spec.NewControllerClient(last.Conn)
	want := map[string]int64{}
	for _, w := range all {
		testkit.Must(r, w.settle(ctx, c))
		for _, v := range w.volumes {
			want[v.GetVolumeId()] = v.GetCapacityBytes()
		}
	}
	list := testkit.Value(c.ListVolumes(ctx, &spec.ListVolumesRequest{}))(r)
	for _, e := range list.GetEntries() {
		v := e.GetVolume()
		if size, known := want[v.GetVolumeId()]; !known || size != v.GetCapacityBytes() {
			r.Errorf("the list has %v, which has %d bytes (acknowledged: %t)", v, size, known)
		}
	}
	named := 0
	for _, image := range r.images() {
		if strings.HasPrefix(image, "cleat-vol-") {
			named++
		}
	}
	if len(list.GetEntries()) != len(want) || named != len(want) {
		r.Errorf("%d volumes were acknowledged, %d are listed, the pool has %d of their images", len(want), len(list.GetEntries()), named)
	}
	for _, w := range all {
		testkit.Must(r, w.clear(ctx, c))
	}
	// An OSD that was down forgets clients that it believes connected.
	testkit.Value(shared.Command("osd", "down", "0"))(r)
	r.becomesEmpty()
}

func acknowledged(all []*worker) (n int) {
	for _, w := range all {
		n += w.calls
	}
	return n
}

// worker makes calls for objects that no other worker uses, one at a time, and
// remembers which are acknowledged.
type worker struct {
	number    int
	rand      *rand.Rand
	calls     int
	volumes   map[string]*spec.Volume // by name
	snapshots map[string]string       // id by name
	pending   call                    // made, and not answered
}

// call makes one request, and updates the worker when it is answered.
type call func(ctx context.Context, c spec.ControllerClient) error

func newWorker(number int) *worker {
	return &worker{
		number: number, rand: rand.New(rand.NewPCG(22, uint64(number))),
		volumes: map[string]*spec.Volume{}, snapshots: map[string]string{},
	}
}

// work makes calls until the controller is dead or the context ends. An error
// of a controller that lives is one of the test.
func (w *worker) work(ctx context.Context, c spec.ControllerClient, dead <-chan struct{}) error {
	for ctx.Err() == nil {
		if w.pending == nil {
			w.pending = w.choose()
		}
		err := w.settle(ctx, c)
		select {
		case <-dead:
			return nil
		default:
		}
		if err != nil && ctx.Err() == nil {
			// A dying controller refuses calls before its end is known.
			select {
			case <-dead:
				return nil
			case <-ctx.Done():
				return nil
			case <-time.After(5 * time.Second):
				return err
			}
		}
	}
	return nil
}

// settle repeats the pending call.
func (w *worker) settle(ctx context.Context, c spec.ControllerClient) error {
	if w.pending == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, testkit.Timeout)
	defer cancel()
	err := w.pending(ctx, c)
	if err == nil {
		w.calls++
		w.pending = nil
	}
	return err
}

func pick[V any](r *rand.Rand, m map[string]V) (name string) {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	if len(names) == 0 {
		return ""
	}
	return names[r.IntN(len(names))]
}

func (w *worker) choose() call {
	name := fmt.Sprintf("w%d-%d", w.number, w.rand.IntN(4))
	volume, snapshot := pick(w.rand, w.volumes), pick(w.rand, w.snapshots)
	switch n := w.rand.IntN(10); {
	case n < 3 || volume == "":
		return w.create(name, volume, snapshot)
	case n < 5:
		return w.delete(volume)
	case n < 7:
		return w.snapshot(name, volume)
	case n < 9 && snapshot != "":
		return w.deleteSnapshot(snapshot)
	}
	return w.expand(volume)
}

// create creates a volume, from nothing, a snapshot or a volume; a name that
// is in use is deleted instead.
func (w *worker) create(name, volume, snapshot string) call {
	if _, used := w.volumes[name]; used {
		return w.delete(name)
	}
	r := create(name, 16*mib)
	switch w.rand.IntN(3) {
	case 0:
		if v := w.volumes[volume]; v != nil {
			r = create(name, v.GetCapacityBytes(), &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Volume{
				Volume: &spec.VolumeContentSource_VolumeSource{VolumeId: v.GetVolumeId()},
			}})
		}
	case 1:
		if id := w.snapshots[snapshot]; id != "" {
			r = create(name, 64*mib, &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Snapshot{
				Snapshot: &spec.VolumeContentSource_SnapshotSource{SnapshotId: id},
			}})
		}
	}
	return func(ctx context.Context, c spec.ControllerClient) error {
		answer, err := c.CreateVolume(ctx, r)
		if err != nil {
			return fmt.Errorf("create %s: %w", name, err)
		}
		if got := answer.GetVolume().GetVolumeContext()[access.KeyName]; got != name {
			return fmt.Errorf("create %s: the answer is volume %s", name, got)
		}
		w.volumes[name] = answer.GetVolume()
		return nil
	}
}

func (w *worker) delete(name string) call {
	id := w.volumes[name].GetVolumeId()
	return func(ctx context.Context, c spec.ControllerClient) error {
		if _, err := c.DeleteVolume(ctx, &spec.DeleteVolumeRequest{VolumeId: id}); err != nil {
			return fmt.Errorf("delete %s: %w", name, err)
		}
		delete(w.volumes, name)
		return nil
	}
}

func (w *worker) snapshot(name, volume string) call {
	if _, used := w.snapshots[name]; used {
		return w.deleteSnapshot(name)
	}
	r := &spec.CreateSnapshotRequest{Name: name, SourceVolumeId: w.volumes[volume].GetVolumeId()}
	return func(ctx context.Context, c spec.ControllerClient) error {
		answer, err := c.CreateSnapshot(ctx, r)
		if err != nil {
			return fmt.Errorf("snapshot %s of %s: %w", name, volume, err)
		}
		w.snapshots[name] = answer.GetSnapshot().GetSnapshotId()
		return nil
	}
}

func (w *worker) deleteSnapshot(name string) call {
	id := w.snapshots[name]
	return func(ctx context.Context, c spec.ControllerClient) error {
		if _, err := c.DeleteSnapshot(ctx, &spec.DeleteSnapshotRequest{SnapshotId: id}); err != nil {
			return fmt.Errorf("delete snapshot %s: %w", name, err)
		}
		delete(w.snapshots, name)
		return nil
	}
}

func (w *worker) expand(name string) call {
	v := w.volumes[name]
	size := min(v.GetCapacityBytes()+4*mib, 64*mib)
	return func(ctx context.Context, c spec.ControllerClient) error {
		answer, err := c.ControllerExpandVolume(ctx, &spec.ControllerExpandVolumeRequest{
			VolumeId: v.GetVolumeId(), CapacityRange: &spec.CapacityRange{RequiredBytes: size},
		})
		if err != nil {
			return fmt.Errorf("expand %s: %w", name, err)
		}
		v.CapacityBytes = answer.GetCapacityBytes()
		return nil
	}
}

// clear deletes what the worker has.
func (w *worker) clear(ctx context.Context, c spec.ControllerClient) error {
	for _, names := range []func() (string, call){
		func() (string, call) { n := pick(w.rand, w.volumes); return n, w.delete(n) },
		func() (string, call) { n := pick(w.rand, w.snapshots); return n, w.deleteSnapshot(n) },
	} {
		for name, next := names(); name != ""; name, next = names() {
			w.pending = next
			if err := w.settle(ctx, c); err != nil {
				return err
			}
		}
	}
	return nil
}
