package node

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
)

func requestsReadOnly(c volume.Capability) bool { return c.ReadOnly() || hasReadOnlyFlag(c.MountFlags) }

type storedCapability struct {
	Block      bool              `json:"block,omitempty"`
	FSType     string            `json:"fsType,omitempty"`
	MountGroup *int              `json:"mountGroup,omitempty"`
	Mode       volume.AccessMode `json:"mode"`
	// Flags is a digest of all mount flags, Superblock of those for the whole
	// file system.
	Flags      string `json:"flags,omitempty"`
	Superblock string `json:"superblock,omitempty"`
}

// Invalid: a mount flag.
func newStoredCapability(c volume.Capability) (storedCapability, error) {
	_, superblock, err := mount.SplitOptions(c.MountFlags)
	if err != nil {
		return storedCapability{}, err
	}
	return storedCapability{
		Block: c.Block, FSType: c.FSType, MountGroup: c.MountGroup, Mode: c.Mode,
		Flags: digest(c.MountFlags), Superblock: digest(superblock),
	}, nil
}

func digest(flags []string) string {
	if len(flags) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(flags, "\x00")))
	return hex.EncodeToString(sum[:])
}

func (u storedCapability) equal(o storedCapability) bool {
	sameGroup := (u.MountGroup == nil) == (o.MountGroup == nil) && (u.MountGroup == nil || *u.MountGroup == *o.MountGroup)
	u.MountGroup, o.MountGroup = nil, nil
	return sameGroup && u == o
}

func (u storedCapability) readOnly() bool { return volume.Capability{Mode: u.Mode}.ReadOnly() }

// use makes the device of a file system that several nodes mount read-only, as
// a read-only mount alone replays a journal.
func (u storedCapability) use() Use {
	return Use{Block: u.Block, ReadOnly: u.Block && u.readOnly() || u.Mode == volume.MultiNodeReaderOnly}
}

func (u storedCapability) differs(o storedCapability) string {
	var words []string
	add := func(differ bool, word string) {
		if differ {
			words = append(words, word)
		}
	}
	add(u.Block != o.Block, "access type")
	add(u.FSType != o.FSType, "file system type")
	add(u.Mode != o.Mode, "access mode")
	add(u.Flags != o.Flags, "set of mount flags (an SELinux label is one of them)")
	u.Flags, o.Flags, u.Superblock, o.Superblock = "", "", "", ""
	u.Mode, u.FSType, u.Block = o.Mode, o.FSType, o.Block
	add(!u.equal(o), "mount group")
	return strings.Join(words, ", ")
}

// admits rejects a publish that the stage does not allow.
func (u storedCapability) admits(publish storedCapability, readOnly bool) error {
	switch {
	case u.Block != publish.Block:
		return errs.Errorf(errs.Precondition, "the volume is staged as %s and cannot be published as %s", kind(u.Block), kind(publish.Block))
	case publish.FSType != "" && u.FSType != "" && u.FSType != publish.FSType:
		return errs.Errorf(errs.Precondition, "the volume is staged with fs_type %s and cannot be published with fs_type %s", u.FSType, publish.FSType)
	case u.readOnly() && !readOnly:
		return errs.Errorf(errs.Precondition, "the volume is staged read-only; publish it read-only")
	case publish.Superblock != "" && publish.Superblock != u.Superblock:
		return errs.Errorf(errs.Precondition, "the mount flags differ from those of the stage; publish the volume with the same file system mount flags, an SELinux label included")
	case publish.MountGroup != nil && (u.MountGroup == nil || *u.MountGroup != *publish.MountGroup):
		return errs.Errorf(errs.Precondition, "volume_mount_group %d differs from that of the stage; publish the volume with the same one", *publish.MountGroup)
	}
	return nil
}

func kind(block bool) string {
	if block {
		return "a block device"
	}
	return "a mounted file system"
}

// multi: every publish must allow others.
func multi(modes ...volume.AccessMode) bool {
	return !slices.ContainsFunc(modes, func(m volume.AccessMode) bool { return m != volume.SingleNodeMultiWriter && !m.IsMultiNode() })
}
