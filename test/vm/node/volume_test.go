package node

import (
	"fmt"
	"slices"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
)

// leastSize is a small size that fits the file system.
func leastSize(fsType string) int64 {
	switch fsType {
	case "xfs":
		return 320 * mib
	case "btrfs":
		return 256 * mib
	}
	return 32 * mib
}

// claim is a volume of the driver.
type claim struct {
	*rig
	*nodeservice.Volume
	name, fsType string
	size         int64
}

func (r *rig) create(name, fsType string) *claim {
	r.Helper()
	return r.claim(name, fsType, testkit.Value(r.controller().CreateVolume(r.Context(), &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{nodeservice.Capability(fsType)},
		CapacityRange: &csi.CapacityRange{RequiredBytes: leastSize(fsType)},
	}))(r).GetVolume())
}

func (r *rig) claim(name, fsType string, v *csi.Volume) *claim {
	return &claim{r, nodeservice.NewVolume(v.GetVolumeId(), name, fsType, v.GetVolumeContext()), name, fsType, v.GetCapacityBytes()}
}

func (c *claim) stage() error     { return c.Stage(c.Volume) }
func (c *claim) publish() error   { return c.Publish(c.Volume) }
func (c *claim) unpublish() error { return c.Unpublish(c.Volume) }
func (c *claim) unstage() error   { return c.Unstage(c.Volume) }

func (c *claim) remove() error {
	_, err := c.controller().DeleteVolume(c.Context(), &csi.DeleteVolumeRequest{VolumeId: c.ID})
	return err
}

func (c *claim) attach() *claim {
	c.Helper()
	testkit.Must(c, c.stage())
	testkit.Must(c, c.publish())
	return c
}

func (c *claim) drop() {
	c.Helper()
	testkit.Must(c, c.unpublish())
	testkit.Must(c, c.unstage())
	testkit.Must(c, c.remove())
}

// file is the path for write and sum.
func (c *claim) file() string {
	if c.fsType == "" {
		return c.Target
	}
	return c.Target + "/file"
}

// write writes count MiB of random data, syncs it and returns its checksum.
func (c *claim) write(count int) (sum string) {
	c.Helper()
	c.Run("dd", "if=/dev/urandom", "of="+c.file(), "bs=1M", fmt.Sprint("count=", count), "conv=fsync,notrunc")
	if c.fsType != "" {
		c.Run("sync", c.Target) // syncs the directory entry
	}
	return c.sum(count)
}

func (c *claim) sum(count int) string {
	c.Helper()
	return c.Run("sh", "-c", fmt.Sprintf("dd if=%s bs=1M count=%d | sha256sum", c.file(), count))
}

func (c *claim) holds(sum string, count int) {
	c.Helper()
	if got := c.sum(count); got != sum {
		c.Errorf("%s: got checksum %s, want %s", c.name, got, sum)
	}
}

// mounts lists the mount points below the volumes directory.
func (r *rig) mounts() (all []string) {
	r.Helper()
	for line := range strings.Lines(r.Run("cat", "/proc/self/mountinfo")) {
		if target := strings.Fields(line)[4]; strings.HasPrefix(target, nodeservice.Volumes+"/") {
			all = append(all, target)
		}
	}
	slices.Sort(all)
	return all
}

// loops lists the backing files of loop devices.
func (r *rig) loops() (all []string) {
	r.Helper()
	for line := range strings.Lines(r.Run("sh", "-c", "cat /sys/block/loop*/loop/backing_file 2>/dev/null || true")) {
		all = append(all, strings.TrimSpace(line))
	}
	slices.Sort(all)
	return all
}

// files lists the files in the pool's directories.
func (r *rig) files() (all []string) {
	r.Helper()
	for line := range strings.Lines(r.Run("sh", "-c", "cd "+pool+" && find volumes snapshots incoming -type f")) {
		all = append(all, strings.TrimSpace(line))
	}
	slices.Sort(all)
	return all
}

// conditions lists the health conditions that controller and node report for a
// volume.
func (c *claim) conditions() (all []string) {
	c.Helper()
	one := testkit.Value(c.controller().ControllerGetVolumeHealth(c.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: c.ID}))(c)
	for _, e := range one.GetVolumeHealth().GetHealthStatuses() {
		all = append(all, fmt.Sprint("controller ", e.GetStatus(), " ", e.GetReason()))
	}
	here := testkit.Value(c.Client().NodeGetVolumeHealth(c.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: c.ID, VolumePublishPath: c.Target, StagingTargetPath: c.Staging}))(c)
	for _, e := range here.GetVolumeHealth().GetHealthStatuses() {
		all = append(all, fmt.Sprint("node ", e.GetStatus(), " ", e.GetReason()))
		if e.GetMessage() == "" {
			c.Errorf("condition %v has no message", e)
		}
	}
	return all
}

// storage lists the pool problems that the node reports.
func (r *rig) storage() (all []string) {
	r.Helper()
	answer := testkit.Value(r.Client().NodeGetStorageHealth(r.Context(), &csi.NodeGetStorageHealthRequest{}))(r)
	for _, e := range answer.GetBackendHealth() {
		all = append(all, fmt.Sprint(e.GetStatus(), " ", e.GetReason(), ": ", e.GetMessage()))
	}
	return all
}
