package nvme

import (
	"context"
	"fmt"
	"path"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
	"github.com/cleatproject/cleat/test/vm/nvmetcp"
	"github.com/cleatproject/cleat/volume/access"
)

// keys is the directory of key files.
const keys = nodeservice.System + "/keys"

// claim is a static volume.
type claim struct {
	*rig
	*nodeservice.Volume
}

// claim returns the claim of a volume, for its file system, or as a block
// device ("").
func (r *rig) claim(id, fsType string, l access.NVMe) *claim {
	c := &claim{r, nodeservice.NewVolume(id, id, fsType, access.Encode(l))}
	if fsType != "" {
		c.Locator[access.KeyFormat] = fsType
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
	c.Locator["hostNQN"] = nqn
	c.target.Admit(subsystemNQN(c.ID), nqn)
}

// delete removes the subsystem and the medium of a volume.
func (r *rig) delete(id string) {
	r.target.Delete(subsystemNQN(id))
	r.Run("rm", path.Join(media, id))
}

func (c *claim) delete() { c.rig.delete(c.ID) }

// medium is the volume's file at the target.
func (c *claim) medium() string { return path.Join(media, c.ID) }

func (c *claim) stage() error     { return c.Stage(c.Volume) }
func (c *claim) publish() error   { return c.Publish(c.Volume) }
func (c *claim) unpublish() error { return c.Unpublish(c.Volume) }
func (c *claim) unstage() error   { return c.Unstage(c.Volume) }
func (c *claim) expand() error    { return c.Expand(c.Volume, 0) }

func (c *claim) unstageWithin(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(c.Context(), limit)
	defer cancel()
	_, err := c.Client().NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: c.ID, StagingTargetPath: c.Staging})
	return err
}

// grow expands the namespace at the target by some bytes.
func (c *claim) grow(by int64) error {
	_, err := c.Try("sh", "-c", `truncate -s $(($(stat -c %s "$0") + $1)) "$0"`, c.medium(), fmt.Sprint(by))
	if err == nil {
		c.target.Resized(subsystemNQN(c.ID), 1)
	}
	return err
}

// health returns the adverse conditions of the volume.
func (c *claim) health() []*csi.VolumeHealth_VolumeHealthEntry {
	ctx, cancel := c.Call()
	defer cancel()
	answer := testkit.Value(c.Client().NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: c.ID}))(c)
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
	c.Run("sh", "-c", `echo "$1" > "$0"/file && sync "$0"/file`, c.Target, text)
}

func (c *claim) wantText(text string) {
	c.Helper()
	if got := c.Read(c.Target + "/file"); got != text {
		c.Errorf("the file of %s has %q, want %q", c.ID, got, text)
	}
}

// wantGone: nothing is left of the volume on the host.
func (c *claim) wantGone(when string) {
	c.Helper()
	left := c.Run("sh", "-c", `
		grep -l -x -F "$0" /sys/class/nvme/*/subsysnqn 2>/dev/null
		grep -F "$1/" /proc/mounts
		grep -l -F "\"$0\"" "$2"/nvme/* 2>/dev/null
		true`, subsystemNQN(c.ID), path.Join(nodeservice.Volumes, c.ID), nodeservice.State)
	if left != "" {
		c.Errorf("%s left over of %s:\n%s", when, c.ID, left)
	}
}

// writer writes blocks to a block volume, or verifies them.
func (c *claim) writer(args ...string) {
	c.Helper()
	c.Run(append(append([]string{"writer"}, args...), c.Target)...)
}
