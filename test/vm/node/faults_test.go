package node

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
)

// testFailedPoolDisk fails all I/O of the pool's disk: health reports show the
// failure, no call reports success or hangs. After the disk is repaired and the
// machine rebooted, all acknowledged data is present and refused calls succeed.
func testFailedPoolDisk(r *rig) {
	files, raw, idle := r.create("files", "ext4").attach(), r.create("raw", "").attach(), r.create("idle", "ext4")
	filesSum, rawSum := files.write(2), raw.write(2)
	r.Run("sync")
	if got := r.storage(); len(got) > 0 {
		r.Fatalf("before the disk fails: %q", got)
	}

	restore := r.disk.Fail(disk.Fault{Reads: true, Writes: true, Flushes: true})
	if out, err := r.Guest.Run(r.Context(), "dd", "if=/dev/zero", "of="+files.Target+"/other", "bs=1M", "count=1", "conv=fsync"); err == nil {
		r.Errorf("a write to the failed disk was synced: %s", out)
	}
	r.refusesAll(idle, raw)
	r.reportsFailure(files)
	r.drains(files, raw)

	// A reboot resets the file systems that the kernel shut down.
	restore()
	r.LosePower()
	r.boot()
	r.mount()
	r.Start()
	if got := r.storage(); len(got) > 0 {
		r.Errorf("pool health after the repair: %q", got)
	}
	files.attach().holds(filesSum, 2)
	raw.attach().holds(rawSum, 2)
	again := r.create("refused", "ext4")
	if listed := r.listed(); !slices.Equal(listed, sorted(files.ID, raw.ID, idle.ID, again.ID)) {
		r.Errorf("listed volumes: got %v, want files, raw, idle and the repeated one", listed)
	}
	testkit.Must(r, again.remove())
	files.drop()
	raw.drop()
	testkit.Must(r, idle.remove())
	if left := slices.Concat(r.files(), r.mounts(), r.loops()); len(left) > 0 {
		r.Errorf("left over at the end: %v", left)
	}
}

// refusesAll makes calls that need the disk. Each must fail in time, with a
// message that names the pool or I/O error and a retryable code.
func (r *rig) refusesAll(idle, busy *claim) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Minute)
	defer cancel()
	_, created := r.controller().CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: "refused", VolumeCapabilities: []*csi.VolumeCapability{nodeservice.Capability("ext4")}, CapacityRange: &csi.CapacityRange{RequiredBytes: leastSize("ext4")}})
	_, expanded := r.controller().ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: busy.ID, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * busy.size}, VolumeCapability: nodeservice.Capability("")})
	_, snapshotted := r.controller().CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "refused", SourceVolumeId: busy.ID})
	_, modified := r.controller().ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{
		VolumeId: idle.ID, MutableParameters: map[string]string{"readAheadKiB": "256"}})
	for what, err := range map[string]error{
		"CreateVolume": created, "ControllerExpandVolume": expanded, "CreateSnapshot": snapshotted, "ControllerModifyVolume": modified,
		"DeleteVolume": idle.remove(), "NodeStageVolume": idle.stage(),
	} {
		switch code := status.Code(err); {
		case code == codes.OK || code == codes.DeadlineExceeded || code == codes.InvalidArgument || code == codes.NotFound:
			r.Errorf("%s on a failed disk: %v", what, err)
		case !strings.Contains(err.Error(), "pool") && !strings.Contains(err.Error(), "input/output error"):
			r.Errorf("%s on a failed disk: the message names neither pool nor I/O error: %v", what, err)
		}
	}
}

// drains verifies that a node with a failed pool can be drained. If data could
// not be written, the first unstage reports that.
func (r *rig) drains(all ...*claim) {
	r.Helper()
	for _, c := range all {
		testkit.Must(r, c.unpublish())
		if err := c.unstage(); err != nil {
			r.refused(err, codes.Internal, "is lost", "the next call")
			err = c.unstage()
			if err != nil {
				r.Errorf("%s cannot be unstaged from a failed pool: %v", c.name, err)
			}
		}
	}
	if left := slices.Concat(r.mounts(), r.loops()); len(left) > 0 {
		r.Errorf("left over on a drained node: %v", left)
	}
}

// reportsFailure verifies that pool health, volume health and readiness show
// the failure.
func (r *rig) reportsFailure(c *claim) {
	r.Helper()
	r.Await("the node reports failed storage", func() bool { return len(r.storage()) > 0 }) // health is cached for a second
	all := c.conditions()
	for _, who := range []string{"controller ", "node "} {
		if !slices.ContainsFunc(all, func(s string) bool { return strings.HasPrefix(s, who) }) {
			r.Errorf("no %scondition on a failed pool disk: %q", who, all)
		}
	}
	if code, text := r.readyz(); code != http.StatusServiceUnavailable || !strings.Contains(text, "pool") {
		r.Errorf("/readyz: got %d: %s", code, text)
	}
}

func (r *rig) readyz() (code int, text string) {
	r.Helper()
	code, text, err := testkit.Page(r.Context(), func(ctx context.Context) (net.Conn, error) { return r.Guest.Dial(ctx, "unix", metrics) }, http.MethodGet, "/readyz")
	testkit.Must(r, err)
	return code, text
}

func (r *rig) listed() (ids []string) {
	r.Helper()
	answer := testkit.Value(r.controller().ListVolumes(r.Context(), &csi.ListVolumesRequest{}))(r)
	for _, e := range answer.GetEntries() {
		ids = append(ids, e.GetVolume().GetVolumeId())
	}
	return sorted(ids...)
}

func sorted(all ...string) []string {
	slices.Sort(all)
	return all
}
