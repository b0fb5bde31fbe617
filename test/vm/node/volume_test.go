package node

import (
	"fmt"
	"path"
	"slices"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/testkit"
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

func capability(fsType string) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if fsType == "" {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}}
	}
	return c
}

// claim is a volume with the kubelet's paths; an empty fsType is a block
// volume.
type claim struct {
	*rig
	id, name, fsType string
	context          map[string]string
	size             int64
	staging, target  string
	ephemeral        bool
}

func (r *rig) create(name, fsType string) *claim {
	r.Helper()
	answer := testkit.Value(r.controller().CreateVolume(r.Context(), &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{capability(fsType)},
		CapacityRange: &csi.CapacityRange{RequiredBytes: leastSize(fsType)},
	}))(r)
	v := answer.GetVolume()
	c := r.claim(name, fsType)
	c.id, c.context, c.size = v.GetVolumeId(), v.GetVolumeContext(), v.GetCapacityBytes()
	return c
}

func (r *rig) claim(name, fsType string) *claim {
	home := volumes + "/" + name
	return &claim{rig: r, id: "csi-" + name, name: name, fsType: fsType, staging: home + "/staging", target: home + "/target"}
}

// stage creates the directory first, like the kubelet: a power loss removes an
// unsynced one.
func (c *claim) stage() error {
	c.Helper()
	c.run("mkdir", "-p", c.staging)
	_, err := c.node().NodeStageVolume(c.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: c.id, StagingTargetPath: c.staging, VolumeCapability: capability(c.fsType), VolumeContext: c.context})
	return err
}

func (c *claim) publish() error {
	c.Helper()
	c.run("mkdir", "-p", path.Dir(c.target))
	q := &csi.NodePublishVolumeRequest{VolumeId: c.id, TargetPath: c.target, VolumeCapability: capability(c.fsType), VolumeContext: c.context}
	if c.ephemeral {
		q.VolumeContext = map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": fmt.Sprint(leastSize(c.fsType))}
	} else {
		q.StagingTargetPath = c.staging
	}
	_, err := c.node().NodePublishVolume(c.Context(), q)
	return err
}

func (c *claim) unpublish() error {
	_, err := c.node().NodeUnpublishVolume(c.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: c.id, TargetPath: c.target})
	return err
}

func (c *claim) unstage() error {
	_, err := c.node().NodeUnstageVolume(c.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: c.id, StagingTargetPath: c.staging})
	return err
}

func (c *claim) remove() error {
	_, err := c.controller().DeleteVolume(c.Context(), &csi.DeleteVolumeRequest{VolumeId: c.id})
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
		return c.target
	}
	return c.target + "/file"
}

// write writes count MiB of random data, syncs it and returns its checksum.
func (c *claim) write(count int) (sum string) {
	c.Helper()
	c.run("dd", "if=/dev/urandom", "of="+c.file(), "bs=1M", fmt.Sprint("count=", count), "conv=fsync,notrunc")
	if c.fsType != "" {
		c.run("sync", c.target) // syncs the directory entry
	}
	return c.sum(count)
}

func (c *claim) sum(count int) string {
	c.Helper()
	return c.run("sh", "-c", fmt.Sprintf("dd if=%s bs=1M count=%d | sha256sum", c.file(), count))
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
	for line := range strings.Lines(r.run("cat", "/proc/self/mountinfo")) {
		if target := strings.Fields(line)[4]; strings.HasPrefix(target, volumes+"/") {
			all = append(all, target)
		}
	}
	slices.Sort(all)
	return all
}

// loops lists the backing files of loop devices.
func (r *rig) loops() (all []string) {
	r.Helper()
	for line := range strings.Lines(r.run("sh", "-c", "cat /sys/block/loop*/loop/backing_file 2>/dev/null || true")) {
		all = append(all, strings.TrimSpace(line))
	}
	slices.Sort(all)
	return all
}

// files lists the files in the pool's directories.
func (r *rig) files() (all []string) {
	r.Helper()
	for line := range strings.Lines(r.run("sh", "-c", "cd "+pool+" && find volumes snapshots incoming -type f")) {
		all = append(all, strings.TrimSpace(line))
	}
	slices.Sort(all)
	return all
}

// conditions lists the health conditions that controller and node report for a
// volume.
func (c *claim) conditions() (all []string) {
	c.Helper()
	one := testkit.Value(c.controller().ControllerGetVolumeHealth(c.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: c.id}))(c)
	for _, e := range one.GetVolumeHealth().GetHealthStatuses() {
		all = append(all, fmt.Sprint("controller ", e.GetStatus(), " ", e.GetReason()))
	}
	here := testkit.Value(c.node().NodeGetVolumeHealth(c.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: c.id, VolumePublishPath: c.target, StagingTargetPath: c.staging}))(c)
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
	answer := testkit.Value(r.node().NodeGetStorageHealth(r.Context(), &csi.NodeGetStorageHealthRequest{}))(r)
	for _, e := range answer.GetBackendHealth() {
		all = append(all, fmt.Sprint(e.GetStatus(), " ", e.GetReason(), ": ", e.GetMessage()))
	}
	return all
}
