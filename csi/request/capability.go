package request

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
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

// parseCapability translates a capability that must be there, and that a
// volume of ours can have.
func parseCapability(field string, c *csi.VolumeCapability) (Capability, error) {
	parsed, err := readCapability(field, c)
	if err != nil {
		return Capability{}, err
	}
	return parsed, parsed.checkSupported(field)
}

// readCapability translates a capability that is complete and well-formed,
// whether or not a volume of ours can have it.
func readCapability(field string, c *csi.VolumeCapability) (Capability, error) {
	if c == nil {
		return Capability{}, invalidf("%s is missing", field)
	}
	mode := c.GetAccessMode().GetMode()
	if mode == csi.VolumeCapability_AccessMode_UNKNOWN {
		return Capability{}, invalidf("%s has no access mode", field)
	}
	switch t := c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		return Capability{Block: true, Mode: mode}, nil
	case *csi.VolumeCapability_Mount:
		return readMount(field, t.Mount, mode)
	default:
		return Capability{}, invalidf("%s has no access type; one of block and mount is needed", field)
	}
}

// checkSupported refuses a capability that no volume of ours can have.
func (c Capability) checkSupported(field string) error {
	return firstError(checkMode(field, c.Mode), checkFSType(field+".fs_type", c.FSType))
}

func checkMode(field string, mode csi.VolumeCapability_AccessMode_Mode) error {
	switch mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return nil
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return invalidf("%s: access mode %s is not possible: a local volume is on one node; use a SINGLE_NODE mode (in Kubernetes ReadWriteOnce or ReadWriteOncePod)", field, mode)
	default:
		return invalidf("%s: access mode %d is not known to CSI 1.13", field, int32(mode))
	}
}

func readMount(field string, m *csi.VolumeCapability_MountVolume, mode csi.VolumeCapability_AccessMode_Mode) (Capability, error) {
	c := Capability{
		FSType: m.GetFsType(), MountFlags: slices.Clone(m.GetMountFlags()), MountGroup: m.GetVolumeMountGroup(), Mode: mode,
	}
	return c, firstError(
		checkString(field+".fs_type", c.FSType, MaxString),
		checkMountFlags(field+".mount_flags", c.MountFlags),
		checkMountGroup(field+".volume_mount_group", c.MountGroup),
	)
}

func checkFSType(field, t string) error {
	if t == "" || slices.Contains(fsTypes, t) {
		return nil
	}
	return invalidf("%s %s is not a file system that this driver supports; supported are %s", field, errs.Quote(t), strings.Join(fsTypes, ", "))
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
		return invalidf("%s %s is not a numeric group id", field, errs.Quote(group))
	}
	return nil
}

// parseOptionalCapability is parseCapability for a field that may be absent.
func parseOptionalCapability(field string, c *csi.VolumeCapability) (*Capability, error) {
	if c == nil {
		return nil, nil
	}
	parsed, err := parseCapability(field, c)
	if err != nil {
		return nil, err
	}
	return &parsed, nil
}

// readCapabilities reads a list that must not be empty.
func readCapabilities(list []*csi.VolumeCapability) ([]Capability, error) {
	if len(list) == 0 {
		return nil, invalidf("volume_capabilities is empty; at least one is needed")
	}
	all := make([]Capability, len(list))
	for i, c := range list {
		var err error
		if all[i], err = readCapability(fmt.Sprintf("volume_capabilities[%d]", i), c); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// contentOf says what one volume must be to have all capabilities: any mount
// makes it a file system, since that can still be reached as a block device.
// Two capabilities that want different file systems cannot be satisfied.
func contentOf(all []Capability) (content volume.Content, fsType string, err error) {
	content = volume.Raw
	for i, c := range all {
		field := fmt.Sprintf("volume_capabilities[%d]", i)
		if err := c.checkSupported(field); err != nil {
			return "", "", err
		}
		if !c.Block {
			content = volume.Filesystem
		}
		switch {
		case c.FSType == "" || c.FSType == fsType:
		case fsType == "":
			fsType = c.FSType
		default:
			return "", "", invalidf("%s.fs_type is %s, but another capability asks for %s; one volume has one file system", field, c.FSType, fsType)
		}
	}
	return content, fsType, nil
}
