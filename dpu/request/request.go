// Package request checks what a node driver asks of the plugin, and turns it
// into the words of this house. It is pure. Every error is of a kind of package
// volume and says which value was wrong and what would be right; none holds a
// value that may be a key.
//
// A CreateDevice is read in two steps: ParseCreate checks what every call must
// have, also a retry; Locate finds the storage, when a device is to be made.
// What was parsed may be kept: it holds no secret, has an end, and its volume is
// the name of a directory.
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

// Mode is how a volume is shown to the host, as the contract words it.
type Mode string

// The volume modes.
const (
	Block      Mode = "Block"
	Filesystem Mode = "Filesystem"
)

// Contexts are the three maps of a CreateDevice, as they came.
type Contexts struct {
	Publish map[string]string `json:"publish,omitempty"`
	Volume  map[string]string `json:"volume,omitempty"`
	Storage map[string]string `json:"storage,omitempty"`
}

// Create is a checked CreateDevice.
type Create struct {
	Volume   string
	Mode     Mode
	Modes    []storagev1.AccessMode // sorted, each once
	Access   access.Access          // fits Mode; nil before Locate
	Contexts Contexts               // without secrets
}

// ReadOnly tells whether nobody may write.
func (c Create) ReadOnly() bool {
	return len(c.Modes) > 0 && !slices.ContainsFunc(c.Modes, func(m storagev1.AccessMode) bool {
		return m != storagev1.AccessMode_ACCESS_MODE_ROX
	})
}

// Device names a device in DeleteDevice and GetDevice. An empty Name is that of
// whatever device the volume has.
type Device struct{ Volume, Name string }

// Page is a checked ListDevices: what sorts behind After, at most Max.
type Page struct {
	After string
	Max   int
}

// ParseCreate checks a CreateDevice; Access is for Locate to set. Errors:
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

// Locate reads the locator out of the contexts, once it is known that a device
// has to be made: a retry for one that is there needs none. Errors:
// errs.Invalid; access.ErrNone as well when the contexts hold no locator.
func (c *Create) Locate() error {
	// The driver copies storage_parameters to SNAP as they are, so nothing of
	// ours can stand there.
	a, err := access.Decode(c.Contexts.Volume, c.Contexts.Publish)
	if errors.Is(err, access.ErrNone) {
		return errs.Errorf(errs.Invalid, "volume %s: %w, and no other key says where the volume is: %s%s", c.Volume, err, fitting(c.Mode), c.hint())
	}
	if err != nil {
		return errs.Errorf(errs.Invalid, "volume %s: %w%s", c.Volume, err, c.hint())
	}
	if !fits(c.Mode, a) {
		return errs.Errorf(errs.Invalid, "volume %s: volume_mode %s and a locator of %s do not go together: %s", c.Volume, c.Mode, a.Protocol(), fitting(c.Mode))
	}
	c.Access = a
	return nil
}

// Misspelt names the keys that are not read and resemble one of a locator.
func (c *Create) Misspelt() []string { return access.Misspelt(c.Contexts.Volume, c.Contexts.Publish) }

// hint is what Misspelt adds to an error.
func (c *Create) hint() string {
	if keys := c.Misspelt(); len(keys) > 0 {
		return "; not read are " + strings.Join(keys, ", ")
	}
	return ""
}

func fits(m Mode, a access.Access) bool {
	switch a.(type) {
	case access.NVMe, access.RBD:
		return m == Block
	case access.NFS, access.CephFS:
		return m == Filesystem
	case access.File: // a file or a directory, as shows when it is looked at
		return true
	}
	return false
}

func fitting(m Mode) string {
	if m == Block {
		return "a block device is a namespace of NVMe-oF (targetType tcp or rdma, targetAddr, nqn), an RBD image (rbd), or a file in a pool (file)"
	}
	return "a file system is an NFS export (targetType nfs, or server and share), a directory of CephFS (cephfs), or a directory in a pool (file)"
}

var volumePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// maxVolume is how long a name of Kubernetes may be.
const maxVolume = 253

// CheckVolume refuses what is no name of a volume. It stands in paths.
func CheckVolume(id string) error {
	switch {
	case id == "":
		return errs.Errorf(errs.Invalid, "volume_id is missing")
	case len(id) > maxVolume:
		return errs.Errorf(errs.Invalid, "volume_id has %d bytes, %d are possible", len(id), maxVolume)
	case !volumePattern.MatchString(id) || strings.Contains(id, ".."):
		return errs.Errorf(errs.Invalid, "volume_id %s is not a name as pvc-1f0e: letters, digits, dots, dashes and underscores, without two dots in a row, a letter or digit first and last", access.Quote(id))
	}
	return nil
}

// ParseMode reads a volume_mode; the contract's default is Filesystem.
func ParseMode(word string) (Mode, error) {
	switch m := Mode(word); m {
	case "":
		return Filesystem, nil
	case Block, Filesystem:
		return m, nil
	}
	return "", errs.Errorf(errs.Invalid, "volume_mode %s is not known: it is Block or Filesystem (which is also meant when it is empty)", access.Quote(word))
}

// ParseModes sorts access modes. None at all is taken: a caller that names none
// forbids nothing.
func ParseModes(modes []storagev1.AccessMode) ([]storagev1.AccessMode, error) {
	var each []storagev1.AccessMode // a request can repeat them a million times
	for _, m := range modes {
		if _, known := storagev1.AccessMode_name[int32(m)]; !known || m == storagev1.AccessMode_ACCESS_MODE_UNSPECIFIED {
			return nil, errs.Errorf(errs.Invalid, "access mode %d is not known: there are ACCESS_MODE_RWO (1), ROX (2), RWX (3) and RWOP (4)", m)
		}
		if !slices.Contains(each, m) {
			each = append(each, m)
		}
	}
	slices.Sort(each)
	return each, nil
}
