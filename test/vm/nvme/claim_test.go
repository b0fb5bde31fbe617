package nvme

import (
	"context"
	"fmt"
	"path"
	"syscall"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/nvmetcp"
	"github.com/cleatproject/cleat/volume/access"
)

// Paths of the node service in the guest.
const (
	system  = "/var/lib/node"
	state   = system + "/driver"
	keys    = system + "/keys"
	volumes = system + "/volumes"
	socket  = "/run/cleat/csi/csi.sock"

	callTimeout = 2 * time.Minute
)

// plugin is the process of the node service.
type plugin struct {
	program string
	process *vm.Process
	conn    *grpc.ClientConn
}

// startPlugin starts the process, and waits until it is ready.
func (r *rig) startPlugin(env ...string) {
	r.Helper()
	p := r.plugin
	if p.conn != nil {
		testkit.Must(r, p.conn.Close())
	}
	p.process = testkit.Value(r.Guest.Start(r.Context(), vm.Command{Env: env, Argv: []string{
		p.program, "csi", "--engine", "none", "--services", "node", "--node-id", "guest", "--endpoint", "unix://" + socket,
		"--state-dir", state, "--nvme-host-nqn", hostNQN, "--nvme-key-dir", keys, "--log-format", "text",
	}}))(r)
	p.conn = testkit.Value(r.Guest.Connect(socket))(r)
	r.Await("the node service is ready", func() bool {
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
func (r *rig) stopPlugin() {
	r.Helper()
	testkit.Must(r, r.plugin.process.Signal(syscall.SIGTERM))
	r.awaitEnd()
	testkit.Must(r, r.plugin.process.Err())
}

// awaitEnd waits for the end of the process.
func (r *rig) awaitEnd() {
	r.Helper()
	select {
	case <-r.plugin.process.Done():
	case <-time.After(callTimeout):
		r.Fatalf("the node service did not end:\n%s", r.plugin.process.Log())
	}
}

func (r *rig) node() csi.NodeClient { return csi.NewNodeClient(r.plugin.conn) }

func (r *rig) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), callTimeout)
}

// claim is a static volume as an orchestrator uses it.
type claim struct {
	*rig
	id         string
	context    map[string]string
	capability *csi.VolumeCapability
	readOnly   bool // when published
}

// claim returns the claim of a volume, for its file system, or as a block
// device ("").
func (r *rig) claim(id, fsType string, l access.NVMe) *claim {
	c := &claim{rig: r, id: id, context: access.Encode(l), capability: &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}}
	if fsType != "" {
		c.capability.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}}
		c.context[access.KeyFormat] = fsType
	}
	return c
}

// locator of a namespace, over both ports.
func locator(s nvmetcp.Subsystem, namespaceUUID string) access.NVMe {
	return access.NVMe{Transport: "tcp", Paths: paths, NQN: s.NQN, UUID: namespaceUUID}
}

// volume creates a subsystem with one namespace, and returns its claim. Delete
// it.
func (r *rig) volume(name, fsType string, size int64) *claim {
	s := r.subsystem(name, []string{hostNQN}, r.medium(name, size))
	return r.claim(name, fsType, locator(s, s.UUID))
}

// connectAs has the volume's connections use another host NQN than the driver's.
func (c *claim) connectAs(nqn string) {
	c.context["hostNQN"] = nqn
	c.target.Admit(subsystemNQN(c.id), nqn)
}

// delete removes the subsystem and the medium of a volume.
func (r *rig) delete(id string) {
	r.target.Delete(subsystemNQN(id))
	r.Run("rm", path.Join(media, id))
}

func (c *claim) delete() { c.rig.delete(c.id) }

// medium is the volume's file at the target.
func (c *claim) medium() string    { return path.Join(media, c.id) }
func (c *claim) staging() string   { return path.Join(volumes, c.id, "staging") }
func (c *claim) published() string { return path.Join(volumes, c.id, "target") }

func (c *claim) stage() error {
	c.Run("mkdir", "-p", c.staging())
	ctx, cancel := c.call()
	defer cancel()
	_, err := c.node().NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: c.id, VolumeContext: c.context, StagingTargetPath: c.staging(), VolumeCapability: c.capability,
	})
	return err
}

func (c *claim) publish() error {
	ctx, cancel := c.call()
	defer cancel()
	_, err := c.node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: c.id, VolumeContext: c.context, StagingTargetPath: c.staging(), TargetPath: c.published(),
		VolumeCapability: c.capability, Readonly: c.readOnly,
	})
	return err
}

func (c *claim) unpublish() error {
	ctx, cancel := c.call()
	defer cancel()
	_, err := c.node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: c.id, TargetPath: c.published()})
	return err
}

func (c *claim) unstage() error {
	ctx, cancel := c.call()
	defer cancel()
	_, err := c.node().NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: c.id, StagingTargetPath: c.staging()})
	return err
}

// grow expands the namespace at the target by some bytes.
func (c *claim) grow(by int64) error {
	_, err := c.Try("sh", "-c", `truncate -s $(($(stat -c %s "$0") + $1)) "$0"`, c.medium(), fmt.Sprint(by))
	if err == nil {
		c.target.Resized(subsystemNQN(c.id), 1)
	}
	return err
}

func (c *claim) expand() error {
	ctx, cancel := c.call()
	defer cancel()
	_, err := c.node().NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId: c.id, VolumePath: c.published(), StagingTargetPath: c.staging(), VolumeCapability: c.capability,
	})
	return err
}

// health returns the adverse conditions of the volume.
func (c *claim) health() []*csi.VolumeHealth_VolumeHealthEntry {
	ctx, cancel := c.call()
	defer cancel()
	answer := testkit.Value(c.node().NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: c.id}))(c)
	return answer.GetVolumeHealth().GetHealthStatuses()
}

// attach brings the volume to its target path, detach back.
func (c *claim) attach() {
	c.Helper()
	testkit.Must(c, c.stage(), c.publish())
}

func (c *claim) detach() {
	c.Helper()
	testkit.Must(c, c.unpublish(), c.unstage())
}

// write writes a file, read verifies it.
func (c *claim) write(text string) {
	c.Helper()
	c.Run("sh", "-c", `echo "$1" > "$0"/file && sync "$0"/file`, c.published(), text)
}

func (c *claim) wantText(text string) {
	c.Helper()
	if got := c.Read(c.published() + "/file"); got != text {
		c.Errorf("the file of %s has %q, want %q", c.id, got, text)
	}
}

// wantGone: nothing is left of the volume on the host.
func (c *claim) wantGone(when string) {
	c.Helper()
	left := c.Run("sh", "-c", `
		grep -l -x -F "$0" /sys/class/nvme/*/subsysnqn 2>/dev/null
		grep -F "$1/" /proc/mounts
		grep -l -F "\"$0\"" "$2"/nvme/* 2>/dev/null
		true`, subsystemNQN(c.id), path.Join(volumes, c.id), state)
	if left != "" {
		c.Errorf("%s left over of %s:\n%s", when, c.id, left)
	}
}

// writer writes blocks to a block volume, or verifies them.
func (c *claim) writer(args ...string) {
	c.Helper()
	c.Run(append(append([]string{"writer"}, args...), c.published())...)
}
