package csi_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/testkit"
)

// TestNoReflink: on a file system without reflinks only unused volumes can be
// copied, and changed blocks are unknown.
func TestNoReflink(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.create("plain", block()).attach()
	d.writeBlock(4096, 1, 4096)
	_, err := r.controller().CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: d.id})
	r.refused(err, codes.FailedPrecondition, "cannot share blocks", "detach it, or use", "--pool-image")
	_, err = r.groups().CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{d.id}})
	r.refused(err, codes.FailedPrecondition)
	d.detach()
	one := d.snapshot("one")
	r.untilReady(one.GetSnapshotId())
	two := d.snapshot("two")
	r.untilReady(two.GetSnapshotId())
	_, err = gather(r.metadata().GetMetadataDelta(t.Context(), &csi.GetMetadataDeltaRequest{BaseSnapshotId: one.GetSnapshotId(), TargetSnapshotId: two.GetSnapshotId()}))
	r.refused(err, codes.FailedPrecondition, "take a full backup")
	held := r.allocated(two)
	if len(held) != 1 || held[0].GetByteOffset() > 4096 || held[0].GetByteOffset()+held[0].GetSizeBytes() < 8192 {
		t.Errorf("allocated: %v", held)
	}
	back := r.create("back", block(), sourced(fromSnapshot(one.GetSnapshotId()), d.size)).attach()
	back.holdsBlock(4096, 1, 4096)
	back.drop()
	r.dropSnapshots(one.GetSnapshotId(), two.GetSnapshotId())
	testkit.Must(r, d.remove())
}

// TestMissingVolumeFile: the file of a volume is deleted, in use or not.
func TestMissingVolumeFile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range []*csi.VolumeCapability{mounted("ext4"), block()} {
		d := r.create("vanished", c).attach()
		testkit.Must(t, writeAt(d.somewhere(), os.O_CREATE, 0, noise(1, 4096)))
		testkit.Must(r, os.Remove(filepath.Join(r.pool, "volumes", d.id)))
		got := d.conditions()
		for _, want := range []string{"controller DATA_LOSS BackingFileMissing", "node DATA_LOSS BackingFileDeleted"} {
			if !slices.Contains(got, want) {
				t.Errorf("no %s among %q", want, got)
			}
		}
		testkit.Must(t, writeAt(d.somewhere(), 0, 0, noise(2, 4096))) // the file exists until the volume is unstaged
		r.refused(d.remove(), codes.FailedPrecondition, "in use", d.id)
		if c.GetBlock() == nil {
			d.hasStats(true)
		}
		r.restart()
		d.detach()
		if left := r.left(); len(left) > 0 {
			t.Errorf("left over of a volume without its file: %q", left)
		}
		r.refused(d.stage(), codes.NotFound, d.id)
		if got := d.conditions(); !slices.Contains(got, "controller DATA_LOSS BackingFileMissing") {
			t.Errorf("conditions of a volume without its file: %q", got)
		}
		_, err := r.controller().CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: d.id})
		r.refused(err, codes.FailedPrecondition, d.id, "no such file")
		testkit.Must(r, errors.Join(d.remove(), d.remove()))
	}
}

// TestTruncatedFile: a volume with a truncated file is never staged as a
// smaller device, whichever process serves the node, and can be deleted.
func TestTruncatedFile(t *testing.T) {
	t.Parallel()
	all := newRig(t)
	c, n := split(t)
	for _, s := range []struct{ controller, node *rig }{{all, all}, {c, n}} {
		for name, capability := range map[string]*csi.VolumeCapability{"mount": mounted("ext4"), "block": block()} {
			d := s.controller.create(name, capability).onNode(s.node)
			path := filepath.Join(s.controller.pool, "volumes", d.id)
			testkit.Must(s.controller, os.Truncate(path, d.size-mib))
			s.node.refused(d.stage(), codes.FailedPrecondition, "truncated", d.id)
			testkit.Must(s.controller, os.Truncate(path, d.size)) // as if it was restored
			testkit.Must(s.node, d.stage())
			testkit.Must(s.controller, os.Truncate(path, d.size-mib))
			health := testkit.Value(s.node.node().NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: d.id, StagingTargetPath: d.staging}))(s.node)
			if got := fmt.Sprint(health.GetVolumeHealth().GetHealthStatuses()); !strings.Contains(got, "BackingFileTruncated") {
				t.Errorf("health of a volume truncated while staged: %s", got)
			}
			testkit.Must(s.controller, os.Truncate(path, d.size))
			testkit.Must(s.node, d.unstage())
			testkit.Value(s.controller.controller().ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: d.id, CapacityRange: sizes(d.size+mib, 0)}))(s.controller)
			testkit.Must(s.controller, os.Truncate(path, d.size)) // its size at creation
			s.node.refused(d.stage(), codes.FailedPrecondition, "truncated", d.id)
			s.controller.stop() // a record of an older cleat has no size
			testkit.Must(s.controller, unix.Removexattr(path, "user.cleat.size"))
			s.controller.start()
			d.rig = s.node
			s.node.refused(d.stage(), codes.FailedPrecondition, "truncated", d.id)
			if left := s.node.left(); len(left) > 0 {
				t.Errorf("left over of refused stages: %q", left)
			}
			testkit.Must(s.controller, d.onNode(s.controller).remove())
		}
	}
}

// TestBusyUnmount: a busy mount is not force-unmounted; the error names the
// process that holds it, and a retry loses nothing.
func TestBusyUnmount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	me := fmt.Sprint(os.Getpid())
	for _, c := range []*csi.VolumeCapability{mounted("ext4"), block()} {
		d := r.create("busy", c).attach()
		testkit.Must(t, writeAt(d.somewhere(), os.O_CREATE, 0, noise(1, 4096)))
		f, err := os.OpenFile(d.somewhere(), os.O_RDWR, 0)
		testkit.Must(t, err)
		r.heldBy(d.unpublish(), d.target, me)
		testkit.Must(r, d.publish()) // a publish after the failed unpublish finds the volume unchanged
		r.heldBy(d.unpublish(), d.target, me)
		_, err = f.WriteAt(noise(2, 4096), 0)
		testkit.Must(t, errors.Join(err, f.Sync()))
		d.healthy()
		testkit.Must(t, f.Close())
		testkit.Must(r, d.unpublish())
		hold := d.staging
		if c.GetBlock() != nil {
			hold = r.deviceOf(d)
		}
		f = testkit.Value(os.Open(hold))(t)
		r.heldBy(d.unstage(), "", me)
		testkit.Must(r, d.stage())
		r.heldBy(d.unstage(), "", me)
		r.refused(d.remove(), codes.FailedPrecondition, d.id)
		testkit.Must(t, f.Close())
		testkit.Must(r, errors.Join(d.unstage(), d.remove()))
	}
}

// heldBy wants an error that names the path and the process that holds it, or
// says that the search for the process timed out, as on a loaded machine.
func (r *rig) heldBy(err error, path, pid string) {
	r.Helper()
	r.refused(err, codes.FailedPrecondition, path)
	if text := fmt.Sprint(err); !strings.Contains(text, "process "+pid) && !strings.Contains(text, "not found in time") {
		r.Errorf("the message does not name the holding process %s: %s", pid, text)
	}
}

// deviceOf is the loop device of a volume.
func (r *rig) deviceOf(d *disk) string {
	r.Helper()
	for _, line := range r.left() {
		if device, file, ok := strings.Cut(line, " on "); ok && strings.HasSuffix(file, d.id) {
			return device
		}
	}
	r.Fatalf("%s has no device", d.name)
	return ""
}

// TestExternalMountChanges: another program mounts, unmounts and remounts under the driver.
func TestExternalMountChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.create("meddled", mounted("ext4")).attach()
	r.sub(t, "made read-only", func(r *rig) {
		testkit.Must(r, mkfstest.Remount(r.Context(), d.staging, true))
		if got := d.conditions(); !slices.Contains(got, "node DEGRADED RemountedReadOnly") {
			r.Errorf("conditions: %q", got)
		}
		testkit.Must(r, mkfstest.Remount(r.Context(), d.staging, false))
		d.healthy()
	})
	r.sub(t, "unmounted", func(r *rig) {
		testkit.Must(r, unix.Unmount(d.target, 0))
		if got := d.conditions(); !slices.Contains(got, "node INACCESSIBLE Unmounted") {
			r.Errorf("conditions: %q", got)
		}
		testkit.Must(r, d.publish())
		d.writeFile("x", 1, 4096)
		testkit.Must(r, errors.Join(unix.Unmount(d.target, 0), unix.Unmount(d.staging, 0)))
		r.refused(d.publish(), codes.FailedPrecondition, "stage it again")
		d.attach()
		d.holdsFile("x", 1, 4096)
		testkit.Must(r, unix.Unmount(d.target, 0))
		testkit.Must(r, os.WriteFile(filepath.Join(d.target, "precious"), nil, 0o600))
		r.refused(d.unpublish(), codes.FailedPrecondition, "the directory contains files")
		testkit.Must(r, os.Remove(filepath.Join(d.target, "precious")))
		testkit.Must(r, d.unpublish())
	})
	r.sub(t, "covered", func(r *rig) {
		testkit.Must(r, d.publish())
		for _, s := range []struct {
			path string
			undo func() error
		}{{d.target, d.unpublish}, {d.staging, d.unstage}} {
			testkit.Must(r, unix.Mount("tmpfs", s.path, "tmpfs", 0, "size=64k"))
			r.refused(s.undo(), codes.FailedPrecondition, s.path)
			testkit.Must(r, unix.Unmount(s.path, 0))
			testkit.Must(r, s.undo())
		}
	})
	testkit.Must(r, d.remove())
}

// TestMissingTool: without mkfs.xfs other volumes can be created; the error for
// XFS names the package to install.
func TestMissingTool(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	wrapper := filepath.Join(dir, "cleat")
	// The new mount namespace drops the other tests' mounts, which would keep
	// their devices busy.
	script := fmt.Sprintf(`#!/bin/sh
exec unshare --mount sh -c 'while read -r _ _ _ _ target _; do
	case "$target" in "%s"/*) umount -l "$(printf %%b "$target")" 2>/dev/null;; esac
done </proc/self/mountinfo
mount --bind /dev/null /usr/sbin/mkfs.xfs && exec "$0" "$@"' %s "$@"
`, os.TempDir(), cleat)
	testkit.Must(t, os.WriteFile(wrapper, []byte(script), 0o700))
	r := makeRig(t, "csi", dir)
	r.program = wrapper
	r.start()
	q := ask("xfs", mounted("xfs"))
	_, err := r.controller().CreateVolume(t.Context(), q)
	r.refused(err, codes.FailedPrecondition, "mkfs.xfs", "xfsprogs")
	if files, err := os.ReadDir(filepath.Join(r.pool, "incoming")); err != nil || len(files) > 0 {
		t.Errorf("left over of the attempt: %v, %v", files, err)
	}
	testkit.Must(r, r.create("ext4", mounted("ext4")).remove())
	r.stop()
	r.program = cleat
	r.start()
	answer := testkit.Value(r.controller().CreateVolume(t.Context(), q))(r) // succeeds once the tool is installed
	testkit.Must(r, r.disk(answer.GetVolume(), "xfs", mounted("xfs")).remove())
}

// TestLostPool: the pool disappears from a running driver, and another is in
// its place at the next start.
func TestLostPool(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address := filepath.Join(dir, "metrics", "m.sock")
	r := makeRig(t, "csi", dir, "--metrics-address", address)
	r.start()
	d := r.create("lost", block())
	orphan := filepath.Join(r.pool, "volumes", "orphan")
	testkit.Must(r, os.WriteFile(orphan, []byte("precious"), 0o600))
	testkit.Must(r, os.Rename(r.pool, r.pool+"-away"))
	if got := r.storage(); !slices.Contains(got, "STORAGE_UNREACHABLE PoolMissing") {
		t.Errorf("storage: %q", got)
	}
	if got := d.conditions(); !slices.Contains(got, "controller INACCESSIBLE PoolMissing") {
		t.Errorf("conditions: %q", got)
	}
	capacity, err := r.controller().GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	testkit.Must(r, err)
	if capacity.GetAvailableCapacity() != 0 {
		t.Errorf("capacity of a missing pool: %v", capacity)
	}
	_, err = r.controller().CreateVolume(t.Context(), ask("more", block()))
	r.refused(err, codes.FailedPrecondition, r.pool, "mount it there again")
	r.refused(d.remove(), codes.FailedPrecondition, r.pool, "mount it there again")
	testkit.Value(r.identity().Probe(t.Context(), &csi.ProbeRequest{}))(r) // a restart would not bring the disk back
	r.scrape(address, "/healthz", http.StatusOK)
	if text := r.scrape(address, "/readyz", http.StatusServiceUnavailable); !strings.Contains(text, "PoolMissing") {
		t.Errorf("/readyz: %s", text)
	}
	r.refused(d.stage(), codes.FailedPrecondition, "not on this machine")
	r.stop()
	arguments := []string{"--pool", r.pool, "--state-dir", dir + "/csi-state", "--endpoint", "unix://" + dir + "/csi/csi.sock"}
	failsToStart(t, nil, arguments, "was served from here before", "mount its disk")
	if left, err := os.Stat(r.pool); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a start without the pool created %v, %v", left, err)
	}
	testkit.Must(r, os.Rename(r.pool+"-away", r.pool))
	engine := filepath.Join(r.pool, "engine.db")
	testkit.Must(r, os.Rename(engine, engine+".away"))
	failsToStart(t, nil, arguments, "engine.db is missing")
	testkit.Must(r, os.WriteFile(engine, nil, 0o600))
	failsToStart(t, nil, arguments, engine, "store is damaged", "from a backup")
	testkit.Must(r, errors.Join(os.Remove(engine), os.Rename(engine+".away", engine)))
	r.start()
	if got := r.storage(); !slices.Contains(got, "STORAGE_DEGRADED OrphanFile") {
		t.Errorf("storage with an orphan file: %q", got)
	}
	if text, err := os.ReadFile(orphan); err != nil || string(text) != "precious" {
		t.Errorf("the orphan file became %q, %v", text, err)
	}
	testkit.Must(r, d.remove())
}
