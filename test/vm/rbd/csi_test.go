package rbd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/cephnet"
)

// Paths of the node service in guests.
const (
	system = "/var/lib/node" // on node 0 a disk, which survives a reboot
	state  = system + "/driver"
	paths  = system + "/volumes"
	socket = "/run/cleat/csi/csi.sock"

	callTimeout = 2 * time.Minute
)

// plugin is the process of a node service.
type plugin struct {
	process *vm.Process
	conn    *grpc.ClientConn
}

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
	k.Run("mkdir", "-p", paths, "/etc/ceph-secret")
	if n == 0 {
		k.Run("mount", "-t", "ext4", "/dev/vda", system)
		k.Run("mkdir", "-p", paths)
	}
	for file, data := range map[string][]byte{
		"/etc/ceph.json": r.config(), "/etc/ceph-secret/userID": []byte(r.site.User), "/etc/ceph-secret/userKey": []byte(r.site.Key),
	} {
		testkit.Must(r, k.Guest.WriteFile(r.Context(), file, data, 0o600))
	}
	r.startPlugin(n)
}

// startPlugin starts the process, and waits until it is ready.
func (r *rig) startPlugin(n int, env ...string) {
	p, k := r.plugins[n], r.nodes[n]
	if p.conn != nil {
		testkit.Must(r, p.conn.Close())
	}
	name, address, _ := strings.Cut(r.nodeID(n), "@")
	p.process = testkit.Value(k.Guest.Start(r.Context(), vm.Command{Env: env, Argv: []string{
		"cleat", "csi", "--engine", "ceph", "--services", "node", "--node-id", name, "--node-address", address, "--endpoint", "unix://" + socket,
		"--state-dir", state, "--ceph-config", "/etc/ceph.json", "--ceph-secret", "/etc/ceph-secret", "--log-format", "text",
	}}))(r)
	p.conn = testkit.Value(k.Guest.Connect(socket))(r)
	k.Await("the node service is ready", func() bool {
		select {
		case <-p.process.Done():
			r.Fatalf("the node service exited: %v", p.process.Err())
		default:
		}
		answer, err := csi.NewIdentityClient(p.conn).Probe(r.Context(), &csi.ProbeRequest{})
		return err == nil && answer.GetReady().GetValue()
	})
}

// stopPlugin stops the process with SIGTERM.
func (r *rig) stopPlugin(n int) {
	p := r.plugins[n].process
	testkit.Must(r, p.Signal(syscall.SIGTERM))
	r.awaitEnd(n)
	testkit.Must(r, p.Err())
}

// awaitEnd waits for the end of the process.
func (r *rig) awaitEnd(n int) {
	select {
	case <-r.plugins[n].process.Done():
	case <-time.After(callTimeout):
		r.Fatalf("the node service did not end:\n%s", r.plugins[n].process.Log())
	}
}

func (r *rig) node(n int) csi.NodeClient { return csi.NewNodeClient(r.plugins[n].conn) }

func (r *rig) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), callTimeout)
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
	if out := r.nodes[n].Run("sh", "-c", "grep -e "+paths+" -e /dev/rbd /proc/mounts || true"); out != "" {
		r.Errorf("node %d has mounts left:\n%s", n, out)
	}
	if out := r.nodes[n].Run("sh", "-c", "ls -d "+paths+"/*/target 2>/dev/null || true"); out != "" {
		r.Errorf("node %d has targets left: %s", n, out)
	}
}

// claim is a volume as an orchestrator uses it.
type claim struct {
	*rig
	name       string
	volume     *csi.Volume
	capability *csi.VolumeCapability
	readOnly   bool // when published
	grants     [2]map[string]string
}

// claim creates a volume for a file system, or a block volume ("").
func (r *rig) claim(name, fsType string, size int64) *claim {
	c := &claim{rig: r, name: name, capability: &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}}
	if fsType != "" {
		c.capability.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}}
	}
	ctx, cancel := r.call()
	defer cancel()
	answer := testkit.Value(csi.NewControllerClient(r.controller.Conn).CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{c.capability},
	}))(r)
	c.volume = answer.GetVolume()
	return c
}

func (c *claim) staging() string { return path.Join(paths, c.name, "staging") }
func (c *claim) target() string  { return path.Join(paths, c.name, "target") }

func (c *claim) grant(n int) error {
	ctx, cancel := c.call()
	defer cancel()
	answer, err := csi.NewControllerClient(c.controller.Conn).ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: c.volume.GetVolumeId(), NodeId: c.nodeID(n), VolumeCapability: c.capability, VolumeContext: c.volume.GetVolumeContext(),
	})
	c.grants[n] = answer.GetPublishContext()
	return err
}

func (c *claim) revoke(n int) error {
	ctx, cancel := c.call()
	defer cancel()
	_, err := csi.NewControllerClient(c.controller.Conn).ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{
		VolumeId: c.volume.GetVolumeId(), NodeId: c.nodeID(n),
	})
	return err
}

func (c *claim) stage(n int) error {
	c.nodes[n].Run("mkdir", "-p", c.staging())
	ctx, cancel := c.call()
	defer cancel()
	_, err := c.node(n).NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: c.volume.GetVolumeId(), VolumeContext: c.volume.GetVolumeContext(), PublishContext: c.grants[n],
		StagingTargetPath: c.staging(), VolumeCapability: c.capability,
	})
	return err
}

func (c *claim) publish(n int) error {
	ctx, cancel := c.call()
	defer cancel()
	_, err := c.node(n).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: c.volume.GetVolumeId(), VolumeContext: c.volume.GetVolumeContext(), PublishContext: c.grants[n],
		StagingTargetPath: c.staging(), TargetPath: c.target(), VolumeCapability: c.capability, Readonly: c.readOnly,
	})
	return err
}

func (c *claim) unpublish(n int) error {
	ctx, cancel := c.call()
	defer cancel()
	_, err := c.node(n).NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: c.volume.GetVolumeId(), TargetPath: c.target()})
	return err
}

func (c *claim) unstage(n int) error {
	ctx, cancel := c.call()
	defer cancel()
	_, err := c.node(n).NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: c.volume.GetVolumeId(), StagingTargetPath: c.staging()})
	return err
}

// grow expands the image.
func (c *claim) grow(by int64) error {
	ctx, cancel := c.call()
	defer cancel()
	answer, err := csi.NewControllerClient(c.controller.Conn).ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: c.volume.GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: c.volume.GetCapacityBytes() + by}, VolumeCapability: c.capability,
	})
	if err == nil {
		c.volume.CapacityBytes = answer.GetCapacityBytes()
	}
	return err
}

func (c *claim) expand(n int) error {
	ctx, cancel := c.call()
	defer cancel()
	_, err := c.node(n).NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId: c.volume.GetVolumeId(), VolumePath: c.target(), StagingTargetPath: c.staging(), VolumeCapability: c.capability,
	})
	return err
}

// attach brings the volume to its target on a node, detach back.
func (c *claim) attach(n int) { testkit.Must(c, c.grant(n), c.stage(n), c.publish(n)) }

func (c *claim) detach(n int) { testkit.Must(c, c.unpublish(n), c.unstage(n), c.revoke(n)) }

func (c *claim) delete() {
	ctx, cancel := c.call()
	defer cancel()
	testkit.Value(csi.NewControllerClient(c.controller.Conn).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: c.volume.GetVolumeId()}))(c)
}
