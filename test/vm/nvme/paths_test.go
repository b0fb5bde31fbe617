package nvme

import (
	"fmt"
	"slices"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// testPaths: a port of the target is removed and returns. The volume works, its
// health reports the path, and the driver or the kernel connects it again.
func (r *rig) testPaths() {
	c := r.volume("paths", "ext4", 32*mib)
	c.attach()
	c.wantHealth("")
	r.resetController(c)
	r.target.Close(paths[1])
	c.wantHealth(volume.ReasonPathDown)
	c.write("one path")
	r.target.Listen(paths[1])
	begun := time.Now()
	c.wantHealth("")
	fmt.Printf("REPORT: nvme %s: a returned path was connected after %.1f s\n", r.source, time.Since(begun).Seconds())
	r.target.Close(paths[0])
	c.wantHealth(volume.ReasonPathDown)
	c.write("the other path")
	c.wantText("the other path")
	r.target.Listen(paths[0])
	c.wantHealth("")
	r.inaccessiblePaths(c)
	r.removedDisk(c)
	c.detach()
	c.delete()
}

// resetController: a flush in flight can be lost, if the target has a volatile
// cache, and the kernel logs only that queues are created.
func (r *rig) resetController(c *claim) {
	has := func() bool {
		return slices.ContainsFunc(c.health(), func(e *csi.VolumeHealth_VolumeHealthEntry) bool { return e.GetReason() == volume.ReasonFlushUncertain })
	}
	if has() {
		r.Error("a new volume has an uncertain flush")
	}
	r.Write("/sys/class/nvme/"+r.controllers()[0]+"/reset_controller", "1")
	c.Await("the condition "+volume.ReasonFlushUncertain, has)
}

// inaccessiblePaths: the target stays connected, and executes no I/O (ANA).
func (r *rig) inaccessiblePaths(c *claim) {
	leaving := r.volume("leaving", "ext4", 32*mib)
	leaving.attach()
	r.target.SetANA(paths[0], "inaccessible")
	c.wantHealth(volume.ReasonPathDown)
	c.write("the accessible path")
	r.target.SetANA(paths[1], "inaccessible")
	c.wantHealth(volume.ReasonStorageUnreachable)
	other := r.volume("inaccessible", "", 32*mib)
	r.wantRefused(other, codes.Unavailable, "reports the namespace as inaccessible (ANA)")
	leaving.Run("sh", "-c", `echo unwritten > "$0"/file`, leaving.Target)
	testkit.Must(r, leaving.unpublish())
	var err error
	for range 5 { // the answer 2 s before the deadline is late if the machine is busy
		if err = leaving.unstageWithin(20 * time.Second); status.Code(err) != codes.DeadlineExceeded {
			break
		}
	}
	if status.Code(err) != codes.Unavailable {
		r.Errorf("unstage over inaccessible paths: %v, want code %v before the deadline", err, codes.Unavailable)
	}
	r.wantError(err, "NodeUnstageVolume is still in progress", "umount in process", "reports the namespace as inaccessible (ANA)")
	for _, at := range paths {
		r.target.SetANA(at, "optimized")
	}
	testkit.Must(r, leaving.unstage())
	leaving.delete()
	c.wantHealth("")
	c.wantText("the accessible path")
	other.attach()
	other.detach()
	other.delete()
}

// removedDisk: the kernel removes the disk under a mounted file system, as after
// ctrl_loss_tmo.
func (r *rig) removedDisk(c *claim) {
	for _, name := range r.controllers() {
		r.Write("/sys/class/nvme/"+name+"/delete_controller", "1")
	}
	c.wantHealth(volume.ReasonDeviceLost)
}

// wantHealth waits until the volume's only adverse condition has the reason;
// empty: none. FlushUncertain stays after a lost path.
func (c *claim) wantHealth(reason string) {
	c.Helper()
	c.Await("the health of the volume: "+reason, func() bool {
		found := ""
		for _, s := range c.health() {
			if s.GetReason() != volume.ReasonFlushUncertain {
				found += s.GetReason()
			}
		}
		return found == reason
	})
}

// testModes: static volumes are used on several nodes: block volumes by all, file
// systems read-only.
func (r *rig) testModes() {
	block := r.volume("modes-block", "", 32*mib)
	block.Capability.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	block.attach()
	block.writer("-count", "5")
	block.detach()

	mounted := r.volume("modes-mount", "ext4", 32*mib)
	mounted.attach()
	mounted.write("shared")
	mounted.detach()
	mounted.Capability.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	mounted.attach()
	mounted.wantText("shared")
	if _, err := mounted.Try("touch", mounted.Target+"/new"); err == nil {
		r.Error("a volume of MULTI_NODE_READER_ONLY was written")
	}
	mounted.detach()
	mounted.Capability.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	r.wantError(mounted.stage(), "MULTI_NODE_MULTI_WRITER")
	block.delete()
	mounted.delete()
}
