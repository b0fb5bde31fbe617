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

// wantsReadOnly reports whether the mode or a mount flag asks for that.
func wantsReadOnly(c volume.Capability) bool { return c.ReadOnly() || asksReadOnly(c.MountFlags) }

// used is a volume.Capability as it is stored.
type used struct {
	Block      bool              `json:"block,omitempty"`
	FSType     string            `json:"fsType,omitempty"`
	MountGroup *int              `json:"mountGroup,omitempty"`
	Mode       volume.AccessMode `json:"mode"`
	// Flags is a digest of all mount flags, Superblock of those that act on
	// the whole file system; empty when there are none.
	Flags      string `json:"flags,omitempty"`
	Superblock string `json:"superblock,omitempty"`
}

// keep translates a capability for the store. Invalid: a mount flag.
func keep(c volume.Capability) (used, error) {
	_, superblock, err := mount.SplitOptions(c.MountFlags)
	if err != nil {
		return used{}, err
	}
	return used{
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

func (u used) equal(o used) bool {
	sameGroup := (u.MountGroup == nil) == (o.MountGroup == nil) && (u.MountGroup == nil || *u.MountGroup == *o.MountGroup)
	u.MountGroup, o.MountGroup = nil, nil
	return sameGroup && u == o
}

func (u used) readOnly() bool { return u.Mode == volume.SingleNodeReaderOnly }

// differs says in what two capabilities differ, for a message.
func (u used) differs(o used) string {
	var words []string
	add := func(differ bool, word string) {
		if differ {
			words = append(words, word)
		}
	}
	add(u.Block != o.Block, "access type")
	add(u.FSType != o.FSType, "file system type")
	add(u.Mode != o.Mode, "access mode")
	add(u.Flags != o.Flags, "mount flags")
	u.Flags, o.Flags, u.Superblock, o.Superblock = "", "", "", ""
	u.Mode, u.FSType, u.Block = o.Mode, o.FSType, o.Block
	add(!u.equal(o), "mount group")
	return strings.Join(words, ", ")
}

// admits refuses a publish that asks for what the stage did not make.
func (u used) admits(publish used, readOnly bool) error {
	switch {
	case u.Block != publish.Block:
		return errs.Errorf(errs.Precondition, "the volume is staged as %s and cannot be published as %s", kind(u.Block), kind(publish.Block))
	case publish.FSType != "" && u.FSType != "" && u.FSType != publish.FSType:
		return errs.Errorf(errs.Precondition, "the volume is staged with fs_type %s, the publish asks for %s", u.FSType, publish.FSType)
	case u.readOnly() && !readOnly:
		return errs.Errorf(errs.Precondition, "the volume is staged for reading only; publish it read-only")
	case publish.Superblock != "" && publish.Superblock != u.Superblock:
		return errs.Errorf(errs.Precondition, "mount flags of the file system differ from those that the volume is staged with; publish it with the same")
	case publish.MountGroup != nil && (u.MountGroup == nil || *u.MountGroup != *publish.MountGroup):
		return errs.Errorf(errs.Precondition, "volume_mount_group %d differs from the one that the volume is staged with", *publish.MountGroup)
	}
	return nil
}

func kind(block bool) string {
	if block {
		return "a block device"
	}
	return "a mounted file system"
}

// multi reports whether a volume may be published more than once at a time:
// every publish has to allow it.
func multi(modes ...volume.AccessMode) bool {
	return !slices.ContainsFunc(modes, func(m volume.AccessMode) bool { return m != volume.SingleNodeMultiWriter })
}
