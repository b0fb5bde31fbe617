package csi

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

var fsTypes = []string{"ext4", "xfs", "btrfs"}

// Kubernetes' keys of parameters and volume contexts
const (
	reservedPrefix = "csi.storage.k8s.io/"
	keyFSType      = reservedPrefix + "fstype"
	keyEphemeral   = reservedPrefix + "ephemeral"
	// older, still common spelling
	keyShortFSType = "fsType"
	keySize        = "size"
)

func checkCapabilities(list []*spec.VolumeCapability) error {
	if len(list) == 0 {
		return invalidf("volume_capabilities is empty; at least one is needed")
	}
	for i, c := range list {
		if err := checkCapability(fmt.Sprintf("volume_capabilities[%d]", i), c); err != nil {
			return err
		}
	}
	return nil
}

func checkCapability(field string, c *spec.VolumeCapability) error {
	switch {
	case c == nil:
		return invalidf("%s is missing", field)
	case c.GetAccessMode().GetMode() == spec.VolumeCapability_AccessMode_UNKNOWN:
		return invalidf("%s has no access mode", field)
	case c.GetAccessType() == nil:
		return invalidf("%s has no access type; one of block and mount is needed", field)
	}
	m := c.GetMount()
	if err := checkString(field+".fs_type", m.GetFsType(), maxString); err != nil {
		return err
	}
	if err := checkMountFlags(field+".mount_flags", m.GetMountFlags()); err != nil {
		return err
	}
	_, err := parseMountGroup(field+".volume_mount_group", m.GetVolumeMountGroup())
	return err
}

// checkMountFlags never quotes a flag: it can hold secrets.
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
	if size > maxMap {
		return invalidf("%s hold %d bytes, at most %d are allowed", field, size, maxMap)
	}
	return nil
}

// parseMountGroup returns nil for an empty group.
func parseMountGroup(field, group string) (*int, error) {
	if group == "" {
		return nil, nil
	}
	// The largest number is the kernel's "no group".
	n, err := strconv.ParseUint(group, 10, 32)
	if err != nil || n == 1<<32-1 || group != strconv.FormatUint(n, 10) {
		return nil, invalidf("%s %s is not a numeric group id", field, errs.Quote(group))
	}
	gid := int(n)
	return &gid, nil
}

func (d Deployment) parseCapability(field string, c *spec.VolumeCapability) (parsed volume.Capability, err error) {
	if err := checkCapability(field, c); err != nil {
		return parsed, err
	}
	if _, parsed.Block = c.GetAccessType().(*spec.VolumeCapability_Block); parsed.Block && d.SharedFS != "" {
		return parsed, invalidf("%s: access type block is not possible: a volume is a directory of a %s file system and has no device; use access type mount (volumeMode: Filesystem)", field, d.SharedFS)
	}
	if parsed.Mode, err = d.parseMode(field, c.GetAccessMode().GetMode(), parsed.Block); err != nil {
		return parsed, err
	}
	m := c.GetMount()
	parsed.MountFlags = slices.Clone(m.GetMountFlags())
	if parsed.MountGroup, err = parseMountGroup(field, m.GetVolumeMountGroup()); err != nil {
		return parsed, err
	}
	parsed.FSType, err = d.parseFSType(field+".fs_type", m.GetFsType())
	return parsed, err
}

// parseOptionalCapability returns nil for an absent capability.
func (d Deployment) parseOptionalCapability(field string, c *spec.VolumeCapability) (*volume.Capability, error) {
	if c == nil {
		return nil, nil
	}
	parsed, err := d.parseCapability(field, c)
	return &parsed, err
}

// parseMode refuses the access modes of several nodes for volumes that are on
// one node, and for file systems that are not shared: ext4, xfs and btrfs work on
// one node at a time. Several nodes can read one that was filled before, if a node
// cannot change it then: a static volume, or one of a storage that admits single
// nodes.
func (d Deployment) parseMode(field string, mode spec.VolumeCapability_AccessMode_Mode, block bool) (volume.AccessMode, error) {
	switch mode {
	case spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:
		return volume.SingleNodeWriter, nil
	case spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
		return volume.SingleNodeReaderOnly, nil
	case spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		return volume.SingleNodeSingleWriter, nil
	case spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return volume.SingleNodeMultiWriter, nil
	case spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		spec.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return d.parseMultiNodeMode(field, mode, block)
	}
	return "", invalidf("%s: access mode %d is not known to CSI 1.13", field, int32(mode))
}

func (d Deployment) parseMultiNodeMode(field string, mode spec.VolumeCapability_AccessMode_Mode, block bool) (volume.AccessMode, error) {
	switch {
	case !d.MultiNode:
		return "", invalidf("%s: access mode %s is not possible: a local volume is on one node; use a SINGLE_NODE mode (in Kubernetes ReadWriteOnce or ReadWriteOncePod)", field, mode)
	case mode == spec.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:
		return "", invalidf("%s: access mode %s is not possible: nothing keeps a volume on several nodes to a single writer; use MULTI_NODE_MULTI_WRITER, MULTI_NODE_READER_ONLY or a SINGLE_NODE mode", field, mode)
	case block, d.SharedFS != "":
	case (d.Static || d.StorageGrants) && mode != spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		return "", invalidf("%s: access mode %s is not possible with a file system, which several nodes can only read; use MULTI_NODE_READER_ONLY (in Kubernetes ReadOnlyMany), a SINGLE_NODE mode (ReadWriteOnce or ReadWriteOncePod), or access type block (volumeMode: Block)", field, mode)
	case !d.Static && !d.StorageGrants:
		return "", invalidf("%s: access mode %s is not possible with a file system, which only one node can mount at a time; use a SINGLE_NODE mode (in Kubernetes ReadWriteOnce or ReadWriteOncePod), or access type block (volumeMode: Block)", field, mode)
	}
	if mode == spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY {
		return volume.MultiNodeReaderOnly, nil
	}
	return volume.MultiNodeMultiWriter, nil
}

// parseFSType returns "" with SharedFS: there is no choice.
func (d Deployment) parseFSType(field, t string) (string, error) {
	switch {
	case t == "", t == d.SharedFS:
		return "", nil
	case d.SharedFS != "":
		return "", invalidf("%s is %s, but volumes are directories of one %s file system; remove %s from the StorageClass, and fsType from a PersistentVolume", field, errs.Quote(t), d.SharedFS, keyFSType)
	case slices.Contains(fsTypes, t):
		return t, nil
	}
	return "", invalidf("%s %s is not a file system that this driver supports; supported are %s", field, errs.Quote(t), strings.Join(fsTypes, ", "))
}

// contentOf returns what one volume must be to have all capabilities. A volume
// with a file system can also be used as a block device, and has one type of
// file system; "" if no capability names one.
func (d Deployment) contentOf(list []*spec.VolumeCapability) (content volume.Content, fsType string, err error) {
	content = volume.Raw
	for i, one := range list {
		field := fmt.Sprintf("volume_capabilities[%d]", i)
		c, err := d.parseCapability(field, one)
		if err != nil {
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

// readsOnly reports whether no capability writes.
func readsOnly(list []*spec.VolumeCapability) bool {
	return !slices.ContainsFunc(list, func(c *spec.VolumeCapability) bool {
		mode := c.GetAccessMode().GetMode()
		return mode != spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY && mode != spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	})
}

// ownKeys omits keys that Kubernetes reserves.
func ownKeys(m map[string]string) map[string]string {
	own := maps.Clone(m)
	maps.DeleteFunc(own, func(k, _ string) bool { return strings.HasPrefix(k, reservedPrefix) })
	return own
}

// parseParameters returns the engine's parameters, never nil, and the file
// system of these and the capabilities.
func (d Deployment) parseParameters(field string, parameters map[string]string, content volume.Content, fsType string) (map[string]string, string, error) {
	for _, key := range []string{keyFSType, keyShortFSType} {
		t, err := d.parseFSType(field+"["+key+"]", parameters[key])
		if err != nil {
			return nil, "", err
		}
		switch {
		case t == "" || t == fsType:
		case fsType == "":
			fsType = t
		default:
			return nil, "", invalidf("%s[%s] is %s, but the request has file system %s elsewhere", field, key, t, fsType)
		}
	}
	own := ownKeys(parameters)
	if own == nil {
		own = map[string]string{}
	}
	delete(own, keyShortFSType)
	if content == volume.Raw {
		fsType = "" // a StorageClass sets it for block volumes too
	}
	return own, fsType, nil
}

// parseLocator returns nil for contexts without a locator.
func parseLocator(volumeContext, publishContext map[string]string) (access.Access, error) {
	a, err := access.Decode(volumeContext, publishContext)
	switch {
	case errors.Is(err, access.ErrNone):
		return nil, nil
	case err != nil:
		return nil, errs.Errorf(errs.Invalid, "volume_context: %w", err)
	}
	return a, nil
}
