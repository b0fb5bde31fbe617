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
		d.released(d.unpublish)
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
		d.released(d.unstage)
		testkit.Must(r, d.remove())
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
		testkit.Unmount(r, d.target)
		if got := d.conditions(); !slices.Contains(got, "node INACCESSIBLE Unmounted") {
			r.Errorf("conditions: %q", got)
		}
		testkit.Must(r, d.publish())
		d.writeFile("x", 1, 4096)
		testkit.Unmount(r, d.target)
		testkit.Unmount(r, d.staging)
		r.refused(d.publish(), codes.FailedPrecondition, "stage it again")
		d.attach()
		d.holdsFile("x", 1, 4096)
		testkit.Unmount(r, d.target)
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
			testkit.Unmount(r, s.path)
			testkit.Must(r, s.undo())
		}
	})
	testkit.Must(r, d.remove())
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
	r.refused(err, codes.ResourceExhausted, r.pool, "mount it there again")
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
	if got := r.storage(); len(got) > 0 {
		t.Errorf("a file of no volume restricts nothing, and the storage is %q", got)
	}
	if text, err := os.ReadFile(orphan); err != nil || string(text) != "precious" {
		t.Errorf("the orphan file became %q, %v", text, err)
	}
	testkit.Must(r, d.remove())
}
