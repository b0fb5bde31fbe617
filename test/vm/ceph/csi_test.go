package ceph

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/cephnet"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
)

func (r *rig) nodeID(n int) string { return fmt.Sprintf("node%d@%s", n, cephnet.GuestAddress(n)) }

// config returns the driver's config.json.
func (r *rig) config() []byte {
	return testkit.Value(json.Marshal([]map[string]any{{"clusterID": "test", "monitors": cluster.LegacyMonitors()}}))(r)
}

// startController starts the controller on the host, as client.admin.
func (r *rig) startController() {
	dir := testkit.Dir(r)
	r.addons = "unix://" + filepath.Join(dir, "addons", "a.sock")
	testkit.Must(r,
		os.WriteFile(filepath.Join(dir, "config.json"), r.config(), 0o600),
		os.WriteFile(filepath.Join(dir, "userID"), []byte("admin"), 0o600),
		os.WriteFile(filepath.Join(dir, "userKey"), []byte(cluster.AdminKey()), 0o600),
	)
	r.controller = driver.Start(r, cephnet.Program("controller"), dir, "c", "--engine", "ceph", "--services", "controller", "--node-id", "controller",
		"--ceph-cluster", "test", "--ceph-pool", volumes, "--ceph-config", filepath.Join(dir, "config.json"), "--ceph-secret", dir,
		"--addons-endpoint", r.addons)
}

// startNode starts a guest's node service after a boot.
func (r *rig) startNode(n int) {
	k := r.nodes[n]
	k.Run("mkdir", "-p", nodeservice.System, "/etc/ceph-secret")
	if n == 0 {
		k.Run("mount", "-t", "ext4", "/dev/vda", nodeservice.System)
	}
	k.Run("mkdir", "-p", nodeservice.Volumes)
	for file, data := range map[string][]byte{
		"/etc/ceph.json": r.config(), "/etc/ceph-secret/userID": []byte(r.site.User), "/etc/ceph-secret/userKey": []byte(r.site.Key),
	} {
		testkit.Must(r, k.Guest.WriteFile(r.Context(), file, data, 0o600))
	}
	r.nodes[n].Start()
}

func (r *rig) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), 2*time.Minute)
}

// fence calls the controller's CSI-Addons service; verb is add or rm.
func (r *rig) fence(verb, block string) {
	ctx, cancel := r.call()
	defer cancel()
	out, err := exec.CommandContext(ctx, cephnet.Program("controller"), "fence", verb, block, "--endpoint", r.addons).CombinedOutput()
	if err != nil {
		r.Fatalf("cleat fence %s %s: %v\n%s", verb, block, err, out)
	}
}

// devices counts a node's mapped images.
func (r *rig) devices(n int) int { return len(r.nodes[n].Names("/sys/bus/rbd/devices")) }

// wantNothing: a node has no device, no mount and no path of a volume.
func (r *rig) wantNothing(n int) {
	if held := r.devices(n); held != 0 {
		r.Errorf("node %d has %d devices left", n, held)
	}
	if out := r.nodes[n].Run("sh", "-c", "grep -e "+nodeservice.Volumes+" -e /dev/rbd /proc/mounts || true"); out != "" {
		r.Errorf("node %d has mounts left:\n%s", n, out)
	}
	if out := r.nodes[n].Run("sh", "-c", "ls -d "+nodeservice.Volumes+"/*/target 2>/dev/null || true"); out != "" {
		r.Errorf("node %d has targets left: %s", n, out)
	}
}

// claim is a volume of the controller.
type claim struct {
	*rig
	*nodeservice.Volume
	size   int64
	grants [2]map[string]string
}

// claim creates a volume for a file system, or a block volume ("").
func (r *rig) claim(name, fsType string, size int64) *claim {
	ctx, cancel := r.call()
	defer cancel()
	answer := testkit.Value(csi.NewControllerClient(r.controller.Conn).CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{nodeservice.Capability(fsType)},
	}))(r)
	v := answer.GetVolume()
	return &claim{rig: r, size: v.GetCapacityBytes(), Volume: nodeservice.NewVolume(v.GetVolumeId(), name, fsType, v.GetVolumeContext())}
}

func (c *claim) grant(n int) error {
	ctx, cancel := c.call()
	defer cancel()
	answer, err := csi.NewControllerClient(c.controller.Conn).ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: c.ID, NodeId: c.nodeID(n), VolumeCapability: c.Capability, VolumeContext: c.Locator,
	})
	c.grants[n] = answer.GetPublishContext()
	return err
}

func (c *claim) revoke(n int) error {
	ctx, cancel := c.call()
	defer cancel()
	_, err := csi.NewControllerClient(c.controller.Conn).ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{
		VolumeId: c.ID, NodeId: c.nodeID(n),
	})
	return err
}

func (c *claim) stage(n int) error {
	c.Grant = c.grants[n]
	return c.nodes[n].Stage(c.Volume)
}

func (c *claim) publish(n int) error {
	c.Grant = c.grants[n]
	return c.nodes[n].Publish(c.Volume)
}

func (c *claim) unpublish(n int) error { return c.nodes[n].Unpublish(c.Volume) }
func (c *claim) unstage(n int) error   { return c.nodes[n].Unstage(c.Volume) }
func (c *claim) expand(n int) error    { return c.nodes[n].Expand(c.Volume, 0) }

// grow expands the image.
func (c *claim) grow(by int64) error {
	ctx, cancel := c.call()
	defer cancel()
	answer, err := csi.NewControllerClient(c.controller.Conn).ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: c.ID, CapacityRange: &csi.CapacityRange{RequiredBytes: c.size + by}, VolumeCapability: c.Capability,
	})
	if err == nil {
		c.size = answer.GetCapacityBytes()
	}
	return err
}

// attach brings the volume to its target on a node, detach back.
func (c *claim) attach(n int) { testkit.Must(c, c.grant(n), c.stage(n), c.publish(n)) }

func (c *claim) detach(n int) { testkit.Must(c, c.unpublish(n), c.unstage(n), c.revoke(n)) }

func (c *claim) delete() {
	ctx, cancel := c.call()
	defer cancel()
	testkit.Value(csi.NewControllerClient(c.controller.Conn).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: c.ID}))(c)
}
