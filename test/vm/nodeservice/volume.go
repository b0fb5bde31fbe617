package nodeservice

import (
	"path"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
)

// Volume is a volume with the paths that an orchestrator would use for it.
type Volume struct {
	ID             string
	Locator, Grant map[string]string // volume_context and publish_context
	Capability     *csi.VolumeCapability
	ReadOnly       bool // when published
	Staging        string
	Target         string
}

// NewVolume returns a volume of a file system, or a block volume (""). Its paths
// have its name.
func NewVolume(id, name, fsType string, locator map[string]string) *Volume {
	return &Volume{
		ID: id, Locator: locator, Capability: Capability(fsType),
		Staging: path.Join(Volumes, name, "staging"), Target: path.Join(Volumes, name, "target"),
	}
}

// Capability is that of a writer on one node; an empty fsType is a block volume.
func Capability(fsType string) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if fsType == "" {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}}
	}
	return c
}

// Stage creates the directory first, as the kubelet does: a power loss removes
// one that was not synced.
func (n *Node) Stage(v *Volume) error {
	n.Helper()
	n.Run("mkdir", "-p", v.Staging)
	ctx, cancel := n.Call()
	defer cancel()
	_, err := n.Client().NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: v.ID, VolumeContext: v.Locator, PublishContext: v.Grant, StagingTargetPath: v.Staging, VolumeCapability: v.Capability,
	})
	return err
}

// Publish publishes a staged volume, or one without a staging path.
func (n *Node) Publish(v *Volume) error {
	n.Helper()
	n.Run("mkdir", "-p", path.Dir(v.Target))
	ctx, cancel := n.Call()
	defer cancel()
	_, err := n.Client().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: v.ID, VolumeContext: v.Locator, PublishContext: v.Grant, StagingTargetPath: v.Staging, TargetPath: v.Target,
		VolumeCapability: v.Capability, Readonly: v.ReadOnly,
	})
	return err
}

// Unpublish undoes Publish.
func (n *Node) Unpublish(v *Volume) error {
	ctx, cancel := n.Call()
	defer cancel()
	_, err := n.Client().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.ID, TargetPath: v.Target})
	return err
}

// Unstage undoes Stage.
func (n *Node) Unstage(v *Volume) error {
	ctx, cancel := n.Call()
	defer cancel()
	_, err := n.Client().NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.ID, StagingTargetPath: v.Staging})
	return err
}

// Expand grows a published volume to the size of its device, or to at least a
// size.
func (n *Node) Expand(v *Volume, size int64) error {
	ctx, cancel := n.Call()
	defer cancel()
	r := &csi.NodeExpandVolumeRequest{VolumeId: v.ID, VolumePath: v.Target, StagingTargetPath: v.Staging, VolumeCapability: v.Capability}
	if size > 0 {
		r.CapacityRange = &csi.CapacityRange{RequiredBytes: size}
	}
	_, err := n.Client().NodeExpandVolume(ctx, r)
	return err
}
