package request

import (
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// The file systems that can be made, the default first.
var fsTypes = []string{"ext4", "xfs", "btrfs"}

// FSTypes returns the file systems that a volume can have.
func FSTypes() []string { return slices.Clone(fsTypes) }

// Capability is one way in which a volume is to be used.
type Capability struct {
	Block bool
	// FSType is the file system wished for; empty is no wish, and always so
	// for a block volume.
	FSType string
	// MountFlags may hold secrets: they belong into no message and no log.
	MountFlags []string
	// MountGroup is a decimal group id, or empty.
	MountGroup string
	Mode       csi.VolumeCapability_AccessMode_Mode
}

// ReadOnly reports whether the access mode forbids writing.
func (c Capability) ReadOnly() bool {
	return c.Mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
}

// MultiPublish reports whether a staged volume may be published at several
// targets at a time.
func (c Capability) MultiPublish() bool {
	return c.Mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
}

// GroupID returns MountGroup as a number.
func (c Capability) GroupID() (gid int, ok bool) {
	n, err := strconv.ParseUint(c.MountGroup, 10, 32)
	return int(n), err == nil
}

// Equal reports whether two capabilities ask for the same.
func (c Capability) Equal(o Capability) bool {
	return c.Block == o.Block && c.FSType == o.FSType && c.MountGroup == o.MountGroup && c.Mode == o.Mode &&
		slices.Equal(c.MountFlags, o.MountFlags)
}

// parseCapability checks and translates a capability that must be there.
func parseCapability(field string, c *csi.VolumeCapability) (Capability, error) {
	if c == nil {
		return Capability{}, invalidf("%s is missing", field)
	}
	mode := c.GetAccessMode().GetMode()
	if err := checkMode(field, mode); err != nil {
		return Capability{}, err
	}
	switch t := c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		return Capability{Block: true, Mode: mode}, nil
	case *csi.VolumeCapability_Mount:
		return parseMount(field, t.Mount, mode)
	default:
		return Capability{}, invalidf("%s has no access type; one of block and mount is needed", field)
	}
}

func checkMode(field string, mode csi.VolumeCapability_AccessMode_Mode) error {
	switch mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return nil
	case csi.VolumeCapability_AccessMode_UNKNOWN:
		return invalidf("%s has no access mode", field)
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return invalidf("%s: access mode %s is not possible: a local volume is on one node; use a SINGLE_NODE mode", field, mode)
	default:
		return invalidf("%s: access mode %d is not known to CSI 1.13", field, int32(mode))
	}
}

func parseMount(field string, m *csi.VolumeCapability_MountVolume, mode csi.VolumeCapability_AccessMode_Mode) (Capability, error) {
	c := Capability{
		FSType: m.GetFsType(), MountFlags: slices.Clone(m.GetMountFlags()), MountGroup: m.GetVolumeMountGroup(), Mode: mode,
	}
	return c, firstError(
		checkFSType(field+".fs_type", c.FSType),
		checkMountFlags(field+".mount_flags", c.MountFlags),
		checkMountGroup(field+".volume_mount_group", c.MountGroup),
	)
}

func checkFSType(field, t string) error {
	if t == "" || slices.Contains(fsTypes, t) {
		return nil
	}
	return invalidf("%s %s is not a file system that can be made here; those are %s", field, quote(t), strings.Join(fsTypes, ", "))
}

// checkMountFlags counts flags in its messages and never quotes one: they may
// hold secrets.
func checkMountFlags(field string, flags []string) error {
	size := 0
	for i, f := range flags {
		size += len(f)
		switch {
		case f == "":
			return invalidf("%s[%d] is empty", field, i)
		case strings.ContainsFunc(f, func(r rune) bool { return r < 0x20 || r == 0x7f }):
			return invalidf("%s[%d] holds a control character", field, i)
		}
	}
	if size > MaxMap {
		return invalidf("%s hold %d bytes, at most %d are allowed", field, size, MaxMap)
	}
	return nil
}

func checkMountGroup(field, group string) error {
	if group == "" {
		return nil
	}
	// The largest number stands for "no group" in the kernel.
	n, err := strconv.ParseUint(group, 10, 32)
	if err != nil || n == 1<<32-1 || group != strconv.FormatUint(n, 10) {
		return invalidf("%s %s is not a numeric group id", field, quote(group))
	}
	return nil
}
