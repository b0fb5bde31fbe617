package node

import (
	"fmt"
	"path"
	"slices"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/testkit"
)

// leastSize is a size that does for a file system and is quick to make.
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

// claim is a volume with the paths that a kubelet would use for it. Without a
// file system it is a block volume.
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

// stage makes the directory first, as a kubelet does each time: a power cut
// takes one that was not synced.
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

// file is where write puts what check reads.
func (c *claim) file() string {
	if c.fsType == "" {
		return c.target
	}
	return c.target + "/file"
}

// write makes MiB of random bytes durable and returns their sum.
func (c *claim) write(count int) (sum string) {
	c.Helper()
	c.run("dd", "if=/dev/urandom", "of="+c.file(), "bs=1M", fmt.Sprint("count=", count), "conv=fsync,notrunc")
	if c.fsType != "" {
		c.run("sync", c.target) // the name of the file
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
		c.Errorf("%s: the bytes changed: %s, want %s", c.name, got, sum)
	}
}

// mounts are the places below the volumes' directory at which something is
// mounted.
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

// loops are the files of the pool that loop devices are bound to.
func (r *rig) loops() (all []string) {
	r.Helper()
	for line := range strings.Lines(r.run("sh", "-c", "cat /sys/block/loop*/loop/backing_file 2>/dev/null || true")) {
		all = append(all, strings.TrimSpace(line))
	}
	slices.Sort(all)
	return all
}

// files are those of the pool's folders.
func (r *rig) files() (all []string) {
	r.Helper()
	for line := range strings.Lines(r.run("sh", "-c", "cd "+pool+" && find volumes snapshots incoming -type f")) {
		all = append(all, strings.TrimSpace(line))
	}
	slices.Sort(all)
	return all
}

// conditions are what controller and node know to be wrong with a volume.
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

// storage is what the node knows to be wrong with the pool.
func (r *rig) storage() (all []string) {
	r.Helper()
	answer := testkit.Value(r.node().NodeGetStorageHealth(r.Context(), &csi.NodeGetStorageHealthRequest{}))(r)
	for _, e := range answer.GetBackendHealth() {
		all = append(all, fmt.Sprint(e.GetStatus(), " ", e.GetReason(), ": ", e.GetMessage()))
	}
	return all
}
