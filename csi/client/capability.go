package client

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Capability is a VolumeCapability in the words of the CLI and its JSON output.
type Capability struct {
	Block      bool     `json:"block,omitempty"`
	FSType     string   `json:"fsType,omitempty"`
	MountFlags []string `json:"mountFlags,omitempty"`
	MountGroup string   `json:"mountGroup,omitempty"`
	// AccessMode is one of AccessModes; empty: single-node-writer.
	AccessMode string `json:"accessMode,omitempty"`
}

// String describes the capability for a message, without mount flags, which can
// hold secrets.
func (c Capability) String() string {
	kind := "mount " + cmp.Or(c.FSType, "of any file system")
	if c.Block {
		kind = "block"
	}
	return kind + ", " + cmp.Or(c.AccessMode, "single-node-writer")
}

// AccessModes returns the names of access modes: those of the specification in
// small letters, with hyphens.
func AccessModes() []string {
	var words []string
	for n, name := range csi.VolumeCapability_AccessMode_Mode_name {
		if n != 0 {
			words = append(words, strings.ReplaceAll(strings.ToLower(name), "_", "-"))
		}
	}
	slices.Sort(words)
	return words
}

// check refuses combinations that the specification lacks.
func (c Capability) check() error {
	if _, err := c.mode(); err != nil {
		return err
	}
	if c.Block && (c.FSType != "" || len(c.MountFlags) > 0 || c.MountGroup != "") {
		return errs.Errorf(errs.Invalid, "a block volume has no file system, mount flags or group; leave them out")
	}
	return nil
}

func (c Capability) mode() (csi.VolumeCapability_AccessMode_Mode, error) {
	word := cmp.Or(c.AccessMode, "single-node-writer")
	n, ok := csi.VolumeCapability_AccessMode_Mode_value[strings.ReplaceAll(strings.ToUpper(word), "-", "_")]
	if !ok || n == 0 {
		return 0, errs.Errorf(errs.Invalid, "access mode %q is not known; known are %s", c.AccessMode, strings.Join(AccessModes(), ", "))
	}
	return csi.VolumeCapability_AccessMode_Mode(n), nil
}

func (c Capability) message() *csi.VolumeCapability {
	mode, _ := c.mode()
	out := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
	if c.Block {
		out.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return out
	}
	out.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
		FsType: c.FSType, MountFlags: slices.Clone(c.MountFlags), VolumeMountGroup: c.MountGroup,
	}}
	return out
}

func (c Capability) equal(o Capability) bool {
	return proto.Equal(c.message(), o.message())
}

// needCapability refuses unannounced access modes and groups.
func (d *Driver) needCapability(c Capability) error {
	if err := c.check(); err != nil {
		return err
	}
	switch mode, _ := c.mode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		if !d.announced[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER] {
			if err := d.need("use access mode "+c.AccessMode, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER); err != nil {
				return err
			}
		}
	}
	if c.MountGroup == "" {
		return nil
	}
	return d.need("give a volume to a group", csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
}

// Source is the origin of a copy: at most one id.
type Source struct {
	Volume   string `json:"volume,omitempty"`
	Snapshot string `json:"snapshot,omitempty"`
}

func (s Source) message() *csi.VolumeContentSource {
	switch {
	case s.Volume != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: s.Volume}}}
	case s.Snapshot != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.Snapshot}}}
	}
	return nil
}

func sourceOf(m *csi.VolumeContentSource) Source {
	return Source{Volume: m.GetVolume().GetVolumeId(), Snapshot: m.GetSnapshot().GetSnapshotId()}
}

// capacityRange is nil for a range that allows any size.
func capacityRange(size volume.SizeRange) *csi.CapacityRange {
	if size == (volume.SizeRange{}) {
		return nil
	}
	return &csi.CapacityRange{RequiredBytes: size.Required, LimitBytes: size.Limit}
}

func segments(topologies []*csi.Topology) []map[string]string {
	var out []map[string]string
	for _, t := range topologies {
		out = append(out, maps.Clone(t.GetSegments()))
	}
	return out
}
