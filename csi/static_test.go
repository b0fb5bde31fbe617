package csi_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

// staticDeployment serves volumes that others create.
func staticDeployment() csi.Deployment {
	return csi.Deployment{Services: csi.Services{Node: true}, MultiNode: true, Static: true}
}

func newStatic(t *testing.T) *nodeRig {
	t.Helper()
	return newNodeRig(t, nil, func(c *csi.NodeConfig) { c.Deployment = staticDeployment() })
}

func TestStaticAnnouncesNoController(t *testing.T) {
	i := csi.Identity{Deployment: staticDeployment()}
	got := testkit.Value(i.GetPluginCapabilities(t.Context(), &spec.GetPluginCapabilitiesRequest{}))(t)
	if slices.ContainsFunc(got.GetCapabilities(), func(c *spec.PluginCapability) bool { return c.GetService() != nil }) {
		t.Errorf("a service beside Node is announced: %v", got)
	}
	info := testkit.Value(newStatic(t).NodeGetInfo(t.Context(), &spec.NodeGetInfoRequest{}))(t)
	if info.GetNodeId() != nodeID {
		t.Errorf("node id %q, want %q", info.GetNodeId(), nodeID)
	}
}

func TestModesOfStaticVolumes(t *testing.T) {
	const (
		single = spec.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
		one    = spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	)
	for name, c := range map[string]struct {
		capability *spec.VolumeCapability
		code       codes.Code
		word       string
	}{
		"block, one":           {withAccess(blockCap(), one), codes.OK, ""},
		"block, writers":       {withAccess(blockCap(), writers), codes.OK, ""},
		"block, readers":       {withAccess(blockCap(), readers), codes.OK, ""},
		"block, single writer": {withAccess(blockCap(), single), codes.InvalidArgument, "MULTI_NODE_MULTI_WRITER"},
		"mount, one":           {withAccess(mountCap(), one), codes.OK, ""},
		"mount, readers":       {withAccess(mountCap(), readers), codes.OK, ""},
		"mount, writers":       {withAccess(mountCap(), writers), codes.InvalidArgument, "ReadOnlyMany"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newStatic(t)
			s := r.stage("v", c.capability)
			_, err := r.NodeStageVolume(t.Context(), s)
			r.code(err, c.code, c.word)
			r.undo(s)
		})
	}
}

// A read-only mount alone replays the journal: of several nodes none writes.
func TestReadersMountAReadOnlyDevice(t *testing.T) {
	r := newStatic(t)
	readers := withAccess(mountCap(), spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)
	s := r.stage("v", readers)
	p := r.publish(s, "target")
	testkit.Value(r.NodeStageVolume(t.Context(), s))(t)
	testkit.Value(r.NodePublishVolume(t.Context(), p))(t)
	table := testkit.Value(mount.Table(t.Context()))(t)
	for _, path := range []string{s.StagingTargetPath, p.TargetPath} {
		i := slices.IndexFunc(table, func(e mount.Entry) bool { return e.Target == path })
		if i < 0 || !table[i].ReadOnly() {
			t.Errorf("%s is not mounted read-only", path)
		}
	}
	device := r.device("v")
	if !isReadOnly(t, device) {
		t.Errorf("device %s of a volume that several nodes read can be written", device)
	}
	r.undo(s, "target")
	s.VolumeCapability = mountCap()
	testkit.Value(r.NodeStageVolume(t.Context(), s))(t)
	if isReadOnly(t, r.device("v")) {
		t.Error("the device stays read-only for a writer")
	}
	r.undo(s)
	group := withAccess(mountCap(), spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)
	group.GetMount().VolumeMountGroup = "4711"
	s.VolumeCapability = group
	_, err := r.NodeStageVolume(t.Context(), s)
	r.code(err, codes.FailedPrecondition, "fsGroup")
	r.undo(s)
}

// Without a controller, the volume_context alone allows to create a file system,
// and says where the volume is.
func TestContextOfStaticVolumes(t *testing.T) {
	r := newStatic(t)
	s := r.stage("v", blockCap())
	context := s.VolumeContext
	s.VolumeCapability, s.VolumeContext = mountCap(), nil
	_, err := r.NodeStageVolume(t.Context(), s)
	r.code(err, codes.InvalidArgument, "volumeAttributes")
	s.VolumeContext = context
	_, err = r.NodeStageVolume(t.Context(), s)
	r.code(err, codes.FailedPrecondition, "no superblock of a file system")
	readers := withAccess(mountCap(), spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)
	s.VolumeContext[access.KeyFormat], s.VolumeCapability = "ext4", readers
	_, err = r.NodeStageVolume(t.Context(), s)
	r.code(err, codes.FailedPrecondition, "no superblock of a file system")
	s.VolumeCapability = mountCap()
	for range 2 {
		testkit.Value(r.NodeStageVolume(t.Context(), s))(t)
		r.undo(s)
	}
}

// device returns the path of a staged volume's loop device.
func (r *nodeRig) device(id string) string {
	r.t.Helper()
	for _, d := range testkit.Value(loop.List(r.t.Context()))(r.t) {
		if name, _, err := loop.BackingName(d); err == nil && name == r.path("pool/volumes/"+id) {
			return d.Path
		}
	}
	r.t.Fatalf("volume %s has no device", id)
	return ""
}

func isReadOnly(t *testing.T, device string) bool {
	t.Helper()
	text := testkit.Value(os.ReadFile(filepath.Join("/sys/class/block", filepath.Base(device), "ro")))(t)
	return strings.TrimSpace(string(text)) == "1"
}
