package csi_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/testkit"
)

const (
	writer       = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	readerOnly   = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
	singleWriter = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	multiWriter  = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
)

func withMode(c *csi.VolumeCapability, mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	c.AccessMode = &csi.VolumeCapability_AccessMode{Mode: mode}
	return c
}

func block() *csi.VolumeCapability {
	return withMode(&csi.VolumeCapability{AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}, writer)
}

func mounted(fsType string, flags ...string) *csi.VolumeCapability {
	return withMode(&csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{
		Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags}}}, writer)
}

// leastSize returns a size that suffices for a file system and is fast to
// format.
func leastSize(fsType string) int64 {
	switch fsType {
	case "xfs":
		return 320 * mib
	case "btrfs":
		return 256 * mib
	}
	return 16 * mib
}

// disk is a volume with the paths that an orchestrator would use for it.
type disk struct {
	*rig
	id, name   string
	capability *csi.VolumeCapability
	context    map[string]string
	grant      map[string]string // publish_context
	size       int64
	staging    string
	target     string
	readOnly   bool // of the publish
}

// ask returns a request for a typical volume.
func ask(name string, c *csi.VolumeCapability) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{c},
		CapacityRange: &csi.CapacityRange{RequiredBytes: leastSize(c.GetMount().GetFsType())},
	}
}

func fromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

func fromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

// create makes a volume; edits change the request.
func (r *rig) create(name string, c *csi.VolumeCapability, edits ...func(*csi.CreateVolumeRequest)) *disk {
	r.Helper()
	q := ask(name, c)
	for _, edit := range edits {
		edit(q)
	}
	answer := testkit.Value(r.controller().CreateVolume(r.Context(), q))(r)
	return r.disk(answer.GetVolume(), name, c)
}

// disk gives a volume its paths, and creates the directories that a CSI caller
// creates.
func (r *rig) disk(v *csi.Volume, name string, c *csi.VolumeCapability) *disk {
	r.Helper()
	home := filepath.Join(r.dir, "volumes", name)
	d := &disk{
		rig: r, id: v.GetVolumeId(), name: name, capability: c, context: v.GetVolumeContext(), size: v.GetCapacityBytes(),
		staging: filepath.Join(home, "staging"), target: filepath.Join(home, "target"),
	}
	testkit.Must(r, os.MkdirAll(d.staging, 0o750))
	return d
}

func (d *disk) stageRequest() *csi.NodeStageVolumeRequest {
	return &csi.NodeStageVolumeRequest{
		VolumeId: d.id, StagingTargetPath: d.staging, VolumeCapability: d.capability, VolumeContext: d.context, PublishContext: d.grant,
	}
}

func (d *disk) publishRequest() *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId: d.id, StagingTargetPath: d.staging, TargetPath: d.target, VolumeCapability: d.capability,
		VolumeContext: d.context, PublishContext: d.grant, Readonly: d.readOnly,
	}
}

func (d *disk) stage() error {
	_, err := d.node().NodeStageVolume(d.Context(), d.stageRequest())
	return err
}

func (d *disk) publish() error {
	_, err := d.node().NodePublishVolume(d.Context(), d.publishRequest())
	return err
}

func (d *disk) unpublish() error {
	_, err := d.node().NodeUnpublishVolume(d.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: d.id, TargetPath: d.target})
	return err
}

func (d *disk) unstage() error {
	_, err := d.node().NodeUnstageVolume(d.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: d.id, StagingTargetPath: d.staging})
	return err
}

func (d *disk) remove() error {
	_, err := d.controller().DeleteVolume(d.Context(), &csi.DeleteVolumeRequest{VolumeId: d.id})
	return err
}

// attach stages and publishes.
func (d *disk) attach() *disk {
	d.Helper()
	testkit.Must(d, d.stage())
	testkit.Must(d, d.publish())
	return d
}

// detach undoes attach.
func (d *disk) detach() {
	d.Helper()
	d.released(d.unpublish)
	d.released(d.unstage)
	if _, err := os.Lstat(d.target); !os.IsNotExist(err) {
		d.Errorf("the target is still there: %v", err)
	}
}

// released repeats a call while a child of this process uses the volume, or no process
// that is found: a child that another test is starting has copies of this process's
// files until it executes its program.
func (d *disk) released(undo func() error) {
	d.Helper()
	users := []string{"(" + filepath.Base(os.Args[0]) + ")", "no users visible in /proc", "not found in time"}
	testkit.EventuallyNil(d, "the volume is released", func() error {
		err := undo()
		if err != nil && !slices.ContainsFunc(users, func(user string) bool { return strings.Contains(err.Error(), user) }) {
			d.Fatal(err)
		}
		return err
	})
}

// drop detaches and deletes a volume.
func (d *disk) drop() {
	d.Helper()
	d.detach()
	testkit.Must(d, d.remove())
}

// snapshot creates a snapshot of the volume.
func (d *disk) snapshot(name string) *csi.Snapshot {
	d.Helper()
	answer := testkit.Value(d.controller().CreateSnapshot(d.Context(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: d.id}))(d)
	return answer.GetSnapshot()
}

func (r *rig) dropSnapshots(ids ...string) {
	r.Helper()
	for _, id := range ids {
		testkit.Value(r.controller().DeleteSnapshot(r.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id}))(r)
	}
}
