// Package request validates requests of a node driver and converts them to
// cleat's types. It is pure. Errors have a kind of package errs, and contain no
// value that could be a key.
//
// A CreateDevice is parsed in two steps: ParseCreate checks what every call
// needs, including a retry; Locate finds the storage if a device has to be
// created. Parsed requests can be recorded: they hold no secrets, their size is
// bounded, and the volume is valid as the name of a directory.
package request

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume/access"
)

// Mode is the volume_mode of the contract.
type Mode string

// The volume modes.
const (
	Block      Mode = "Block"
	Filesystem Mode = "Filesystem"
)

// Contexts are the three maps of a CreateDevice, unchanged.
type Contexts struct {
	Publish map[string]string `json:"publish,omitempty"`
	Volume  map[string]string `json:"volume,omitempty"`
	Storage map[string]string `json:"storage,omitempty"`
}

// Create is a validated CreateDevice.
type Create struct {
	Volume   string
	Mode     Mode
	Modes    []storagev1.AccessMode // sorted, each once
	Access   access.Access          // nil before Locate
	Contexts Contexts               // without secrets
}

// ReadOnly reports whether no access mode allows writing.
func (c Create) ReadOnly() bool {
	return len(c.Modes) > 0 && !slices.ContainsFunc(c.Modes, func(m storagev1.AccessMode) bool {
		return m != storagev1.AccessMode_ACCESS_MODE_ROX
	})
}

// Device names a device. An empty Name matches any device of the volume.
type Device struct{ Volume, Name string }

// Page is a validated ListDevices: at most Max volumes that sort after After.
type Page struct {
	After string
	Max   int
}

// ParseCreate checks a CreateDeviceRequest; Locate sets Access. Errors:
// errs.Invalid.
func ParseCreate(r *storagev1.CreateDeviceRequest) (Create, error) {
	c := Create{
		Volume:   r.GetVolumeId(),
		Contexts: Contexts{Publish: maps.Clone(r.GetPublishContext()), Volume: maps.Clone(r.GetVolumeContext()), Storage: maps.Clone(r.GetStorageParameters())},
	}
	if err := CheckVolume(c.Volume); err != nil {
		return Create{}, err
	}
	var err error
	if c.Mode, err = ParseMode(r.GetVolumeMode()); err != nil {
		return Create{}, err
	}
	if c.Modes, err = ParseModes(r.GetAccessModes()); err != nil {
		return Create{}, err
	}
	if err := c.Contexts.check(); err != nil {
		return Create{}, err
	}
	return c, nil
}

// Locate reads the locator. A retry for an existing device needs none. Errors:
// errs.Invalid; also access.ErrNone if the contexts have no locator.
func (c *Create) Locate() error {
	// storage_parameters cannot hold a locator: the driver copies them to SNAP.
	a, err := access.Decode(c.Contexts.Volume, c.Contexts.Publish)
	if errors.Is(err, access.ErrNone) {
		return errs.Errorf(errs.Invalid, "volume %s: %w, and no other key locates the volume: %s%s", c.Volume, err, fitting(c.Mode), c.hint())
	}
	if err != nil {
		return errs.Errorf(errs.Invalid, "volume %s: %w%s", c.Volume, err, c.hint())
	}
	if !fits(c.Mode, a) {
		return errs.Errorf(errs.Invalid, "volume %s: volume_mode %s does not support a locator for %s: %s", c.Volume, c.Mode, a.Protocol(), fitting(c.Mode))
	}
	c.Access = a
	return nil
}

// Misspelt returns the ignored keys that resemble a key of a locator.
func (c *Create) Misspelt() []string { return access.Misspelt(c.Contexts.Volume, c.Contexts.Publish) }

func (c *Create) hint() string {
	if keys := c.Misspelt(); len(keys) > 0 {
		return "; ignored keys: " + strings.Join(keys, ", ")
	}
	return ""
}

func fits(m Mode, a access.Access) bool {
	switch a.(type) {
	case access.NVMe, access.RBD:
		return m == Block
	case access.NFS, access.CephFS:
		return m == Filesystem
	case access.File: // Pools checks whether it is a file or a directory
		return true
	}
	return false
}

func fitting(m Mode) string {
	if m == Block {
		return "a block device needs an NVMe-oF namespace (targetType tcp or rdma, targetAddr, nqn), an RBD image (rbd), or a file in a pool (file)"
	}
	return "a file system needs an NFS export (targetType nfs, or server and share), a CephFS directory (cephfs), or a directory in a pool (file)"
}

var volumePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

const maxVolume = 253

// CheckVolume validates a volume ID, which becomes part of paths.
func CheckVolume(id string) error {
	switch {
	case id == "":
		return errs.Errorf(errs.Invalid, "volume_id is missing")
	case len(id) > maxVolume:
		return errs.Errorf(errs.Invalid, "volume_id has %d bytes, at most %d are allowed", len(id), maxVolume)
	case !volumePattern.MatchString(id) || strings.Contains(id, ".."):
		return errs.Errorf(errs.Invalid, "invalid volume_id %s: only letters, digits, dots, dashes and underscores are allowed, a letter or digit first and last, and no two dots in a row, such as pvc-1f0e", access.Quote(id))
	}
	return nil
}

// ParseMode reads a volume_mode; the default is Filesystem.
func ParseMode(word string) (Mode, error) {
	switch m := Mode(word); m {
	case "":
		return Filesystem, nil
	case Block, Filesystem:
		return m, nil
	}
	return "", errs.Errorf(errs.Invalid, "unknown volume_mode %s: use Block or Filesystem (the default)", access.Quote(word))
}

// ParseModes sorts access modes and removes duplicates. An empty list restricts
// nothing.
func ParseModes(modes []storagev1.AccessMode) ([]storagev1.AccessMode, error) {
	var each []storagev1.AccessMode // a request can repeat them a million times
	for _, m := range modes {
		if _, known := storagev1.AccessMode_name[int32(m)]; !known || m == storagev1.AccessMode_ACCESS_MODE_UNSPECIFIED {
			return nil, errs.Errorf(errs.Invalid, "unknown access mode %d: use ACCESS_MODE_RWO (1), ROX (2), RWX (3) or RWOP (4)", m)
		}
		if !slices.Contains(each, m) {
			each = append(each, m)
		}
	}
	slices.Sort(each)
	return each, nil
}
