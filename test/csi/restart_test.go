package csi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/test/testkit"
)

// workload writes durably in a loop, and records the duration of the longest
// write.
type workload struct {
	path    string
	writes  atomic.Int64
	longest atomic.Int64 // nanoseconds
	stop    context.CancelFunc
	ended   chan error
}

// workloadBlocks is how many blocks of 4096 bytes a workload writes in turn.
const workloadBlocks = 64

// work starts a workload on a published volume, until the test ends at the
// latest.
func (d *disk) work() *workload {
	d.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(d.Context()))
	w := &workload{path: d.somewhere(), stop: stop, ended: make(chan error, 1)}
	go func() {
		for i := uint64(0); ctx.Err() == nil; i++ {
			began := time.Now()
			if err := writeAt(w.path, os.O_CREATE, int64(i%workloadBlocks)*4096, noise(i, 4096)); err != nil {
				w.ended <- err
				return
			}
			w.longest.Store(max(w.longest.Load(), int64(time.Since(began))))
			w.writes.Add(1)
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Millisecond): // speed is not tested
			}
		}
		w.ended <- nil
	}()
	d.Cleanup(stop)
	return w
}

// end checks that no write of a workload failed and that its last writes are
// present.
func (w *workload) end(r *rig) {
	r.Helper()
	w.stop()
	if err := <-w.ended; err != nil {
		r.Errorf("the workload failed: %v", err)
	}
	if w.writes.Load() == 0 {
		r.Error("the workload wrote nothing")
	}
	f := testkit.Value(os.Open(w.path))(r)
	defer f.Close()
	block := make([]byte, 4096)
	for i := max(0, w.writes.Load()-workloadBlocks); i < w.writes.Load(); i++ {
		testkit.Value(f.ReadAt(block, i%workloadBlocks*4096))(r)
		if !bytes.Equal(block, noise(uint64(i), len(block))) {
			r.Errorf("%s does not hold what was written in write %d", w.path, i)
		}
	}
}

// TestRestart: a workload does not notice that the driver is stopped, killed
// and restarted, and the new driver knows all volumes.
func TestRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var disks []*disk
	var workloads []*workload
	for i, c := range []*csi.VolumeCapability{mounted("ext4"), mounted("btrfs"), withMode(block(), multiWriter)} {
		d := r.create(fmt.Sprint("kept-", i), c).attach()
		disks, workloads = append(disks, d), append(workloads, d.work())
	}
	inline := r.disk(&csi.Volume{VolumeId: "csi-kept", VolumeContext: map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "size": "16Mi"}}, "inline", mounted("ext4"))
	inline.staging = ""
	testkit.Must(r, inline.publish())
	inline.writeFile("x", 1, 4096)
	for _, end := range []func(){r.stop, r.kill} {
		end()
		r.start()
		for _, d := range disks {
			testkit.Must(r, errors.Join(d.stage(), d.publish())) // both exist
			d.healthy()
		}
		testkit.Must(r, inline.publish())
		inline.holdsFile("x", 1, 4096)
	}
	for i, w := range workloads {
		w.end(r)
		disks[i].drop()
	}
	inline.released(inline.unpublish)
}

// TestDrain: a call in progress when the driver is stopped gets its answer,
// later ones are refused, and the exit is clean.
func TestDrain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.create("slow", mounted("ext4"))
	// The holder of this lock is about to copy the file, and a stage waits.
	f := testkit.Value(os.Open(filepath.Join(r.pool, "volumes", d.id)))(r)
	defer f.Close()
	for !r.drains(d, f) {
		r.process = nil
		r.start()
	}
	r.process = nil
	r.start()
	testkit.Must(r, d.publish()) // the volume was staged
	d.drop()
}

// drains stops the driver while a stage waits for a file's lock, and reports
// whether the stage ended before its 3 s timeout.
func (r *rig) drains(d *disk, f *os.File) bool {
	r.Helper()
	testkit.Must(r, flock.Try(f))
	began := time.Now()
	staged := make(chan error, 1)
	go func() { staged <- d.stage() }()
	testkit.Eventually(r, "the stage is in progress, or was", func() bool {
		return len(staged) > 0 || strings.Contains(r.scrape(r.dir+"/csi-state/status.sock", "/status", http.StatusOK), "node-volume:"+d.id)
	})
	p := r.process
	stopped := make(chan error, 1)
	go func() { stopped <- p.Stop() }()
	testkit.Eventually(r, "the socket is gone", func() bool {
		_, err := os.Stat(p.Socket)
		return os.IsNotExist(err)
	})
	early := len(staged) + len(stopped)
	testkit.Must(r, flock.Unlock(f))
	stageErr, stopErr := <-staged, <-stopped
	if status.Code(stageErr) == codes.Aborted && stopErr == nil && time.Since(began) > 2500*time.Millisecond {
		return false
	}
	if early > 0 {
		r.Error("driver or call ended early")
	}
	if err := errors.Join(stageErr, stopErr); err != nil {
		r.Errorf("drained: %v\n%s", err, p.Log.String())
	}
	return true
}

// TestDrainCopy: a background copy does not delay the driver's exit, and the
// next driver continues it.
func TestDrainCopy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const blocks, apart = 2000, 64 << 10
	d := r.create("sparse", block(), func(q *csi.CreateVolumeRequest) { q.CapacityRange = sizes(blocks*apart, 0) })
	f := testkit.Value(os.OpenFile(filepath.Join(r.pool, "volumes", d.id), os.O_WRONLY, 0))(r)
	for i := range blocks {
		testkit.Value(f.WriteAt(noise(uint64(i+1), 4096), int64(i)*apart))(r)
	}
	testkit.Must(r, f.Close())
	snap := d.snapshot("copied")
	for n := 1; snap.GetReadyToUse(); n++ { // the copy ended before the answer: possible on a busy machine
		if n == 10 {
			t.Fatal("the copy ended at once: the test is not valid")
		}
		r.dropSnapshots(snap.GetSnapshotId())
		snap = d.snapshot(fmt.Sprint("copied-", n))
	}
	r.stop() // fails when the driver exceeds its own bound
	r.start()
	r.untilReady(snap.GetSnapshotId())
	back := r.create("back", block(), sourced(fromSnapshot(snap.GetSnapshotId()), d.size)).attach()
	d.attach()
	if back.sum() != d.sum() {
		t.Error("the interrupted copy differs from its source")
	}
	back.drop()
	d.drop()
	r.dropSnapshots(snap.GetSnapshotId())
}

// TestCallDuringCopy: a call that waits for a copy ends with its deadline, and
// the copy continues for the next call.
func TestCallDuringCopy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.create("source", block(), func(q *csi.CreateVolumeRequest) { q.CapacityRange = sizes(96*mib, 0) }).attach()
	for at := int64(0); at < d.size; at += 64 << 10 {
		testkit.Must(d, writeAt(d.target, 0, at, noise(uint64(at), 4096)))
	}
	q := ask("clone", block())
	q.VolumeContentSource, q.CapacityRange = fromVolume(d.id), sizes(d.size, 0)
	_, err := r.controller().CreateVolume(t.Context(), q)
	r.refused(err, codes.FailedPrecondition, "detach it, or use", "--pool-image")
	d.detach()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	_, err = r.controller().CreateVolume(ctx, q)
	cancel()
	if c := status.Code(err); c != codes.DeadlineExceeded && c != codes.OK {
		t.Errorf("a call past its deadline returned %v", err)
	}
	answer := testkit.Value(r.controller().CreateVolume(t.Context(), q))(r)
	clone := r.disk(answer.GetVolume(), "clone", block()).attach()
	d.attach()
	if clone.sum() != d.sum() {
		t.Error("the clone differs from its source")
	}
	clone.drop()
	d.drop()
}
