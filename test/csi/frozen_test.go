package csi_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
)

// atFrozen makes the driver kill itself when all file systems of a group
// snapshot are frozen.
const atFrozen = "CLEAT_CRASHPOINT=clone.frozen=1"

// thawed is below the 10 s after which a guard thaws that did not notice the
// death of its driver.
const thawed = 9 * time.Second

// frozenDisks returns mounted volumes that are thawed when the test ends.
func (r *rig) frozenDisks() (disks []*disk, q *csi.CreateVolumeGroupSnapshotRequest) {
	r.Helper()
	q = &csi.CreateVolumeGroupSnapshotRequest{Name: "frozen"}
	for _, fsType := range []string{"ext4", "btrfs"} {
		d := r.create("frozen-"+fsType, mounted(fsType)).attach()
		r.Cleanup(func() {
			if err := freeze.ThawPath(d.staging); err != nil {
				r.Error(err)
			}
		})
		disks, q.SourceVolumeIds = append(disks, d), append(q.SourceVolumeIds, d.id)
	}
	return disks, q
}

// writesSoon waits until a workload continues.
func (w *workload) writesSoon(r *rig, what string) {
	r.Helper()
	begun, deadline := w.writes.Load(), time.After(time.Minute)
	for w.writes.Load() < begun+3 {
		select {
		case <-deadline:
			r.Fatalf("%s: the writer is still blocked", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestKilledWhileFrozen: the guard thaws when the driver dies, and the next
// driver takes the same group snapshot.
func TestKilledWhileFrozen(t *testing.T) {
	t.Parallel()
	r := newRig(t, reflinkPool...)
	disks, q := r.frozenDisks()
	for n := 1; r.killedWhileFrozen(disks, q) > thawed; n++ {
		if n == 3 { // once can be due to load
			t.Fatalf("a write took more than %v", thawed)
		}
	}
	r.snapshotAndDrop(q, disks)
}

// killedWhileFrozen kills the driver during a group snapshot, restarts it, and
// returns the longest duration of a write.
func (r *rig) killedWhileFrozen(disks []*disk, q *csi.CreateVolumeGroupSnapshotRequest) (longest time.Duration) {
	r.Helper()
	r.restart(atFrozen)
	var workloads []*workload
	for _, d := range disks {
		d.rig = r
		workloads = append(workloads, d.work())
	}
	testkit.EventuallyNil(r, "the driver reaches the crash point", func() error { // a busy machine can take too long to freeze all
		_, err := r.groups().CreateVolumeGroupSnapshot(r.Context(), q)
		select {
		case <-r.process.Done():
			return nil
		default:
			return fmt.Errorf("the driver runs, and its answer is: %w", err)
		}
	})
	for _, w := range workloads {
		w.writesSoon(r, "driver killed while frozen")
	}
	r.kill()
	r.start()
	for i, w := range workloads {
		w.writesSoon(r, "driver restarted")
		w.end(r)
		r.Logf("longest write to %s: %v", disks[i].name, time.Duration(w.longest.Load()))
		longest = max(longest, time.Duration(w.longest.Load()))
	}
	return longest
}

// snapshotAndDrop repeats the group snapshot that a crash interrupted, and
// deletes everything.
func (r *rig) snapshotAndDrop(q *csi.CreateVolumeGroupSnapshotRequest, disks []*disk) {
	r.Helper()
	if files, err := os.ReadDir(r.pool + "/incoming"); err != nil || len(files) > 0 {
		r.Errorf("left over of the interrupted snapshot: %v, %v", files, err)
	}
	answer := testkit.Value(r.groups().CreateVolumeGroupSnapshot(r.Context(), q))(r)
	r.dropGroup(answer.GetGroupSnapshot())
	for _, d := range disks {
		d.drop()
	}
}

// TestThawAfterDriverAndGuardKilled: when driver and guard die together, the file systems stay
// frozen, and the next start thaws them first.
func TestThawAfterDriverAndGuardKilled(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, mkfs.Btrfs, "--overprovision-ratio", "20")
	disks, q := r.frozenDisks()
	r.stop()
	hits := r.dir + "/hits"
	// The first process of a PID namespace cannot kill itself: it stops at the
	// crash point for good, with its guard.
	wrapper := r.dir + "/cleat"
	testkit.Must(r, os.WriteFile(wrapper, fmt.Appendf(nil, "#!/bin/sh\nexec unshare --pid --fork --kill-child %s \"$@\"\n", cleat), 0o700))
	p := testkit.Value(driver.Launch(t.Context(), wrapper, r.dir, r.name, []string{atFrozen, "CLEAT_CRASHPOINT_LOG=" + hits}, r.flags...))(r)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	snapshotDone, began := make(chan error, 1), time.Now()
	go func() {
		_, err := csi.NewGroupControllerClient(p.Conn).CreateVolumeGroupSnapshot(ctx, q)
		snapshotDone <- err
	}()
	testkit.Eventually(r, "the driver is stopped at the crash point", func() bool {
		text, _ := os.ReadFile(hits)
		return strings.Contains(string(text), "clone.frozen")
	})
	workloads := []*workload{disks[0].work(), disks[1].work()}
	r.killBoth(p)
	late := time.Since(began) > thawed
	if late {
		t.Log("on this busy machine the guard might have thawed before it was killed")
	}
	if err := <-snapshotDone; err == nil {
		t.Error("the snapshot call succeeded")
	}
	select {
	case <-time.After(300 * time.Millisecond):
	case <-t.Context().Done():
	}
	for i, w := range workloads {
		if w.writes.Load() > 0 && !late {
			t.Errorf("%s was not left frozen: the test is not valid", disks[i].name)
		}
	}
	r.start()
	for _, w := range workloads {
		w.writesSoon(r, "driver restarted")
		w.end(r)
	}
	if !late && !strings.Contains(r.process.Log.String(), "file system of an interrupted snapshot thawed") {
		t.Error("the log does not mention the left-over freeze")
	}
	for _, d := range disks {
		d.rig = r
	}
	r.snapshotAndDrop(q, disks)
}

// killBoth kills a driver and its guard at the same time, so that neither
// thaws.
func (r *rig) killBoth(p *driver.Process) {
	r.Helper()
	inner := children(p.PID())
	if len(inner) != 1 {
		r.Fatalf("unshare has the children %v, want one driver", inner)
	}
	guards := slices.DeleteFunc(children(inner[0]), func(pid int) bool {
		arguments, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return !strings.Contains(string(arguments), "freeze-guard")
	})
	if len(guards) != 1 {
		r.Fatalf("the driver has the guards %v, want one", guards)
	}
	// A stopped guard does not notice the death of its parent; the kernel kills
	// it with the namespace.
	testkit.Must(r, unix.Kill(guards[0], unix.SIGSTOP))
	testkit.Must(r, unix.Kill(inner[0], unix.SIGKILL))
	testkit.Must(r, p.Kill())
}
