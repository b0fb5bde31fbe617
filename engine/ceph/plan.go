package ceph

import (
	"maps"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/volume"
)

const (
	granule     = 1 << 20
	defaultSize = 1 << 30
	objectOrder = 22
	// maxSize: an object map has at most 256,000,000 objects.
	maxSize = 256_000_000 << objectOrder
)

// plan is a valid create request.
type plan struct {
	volume.CreateRequest
	settings settings
}

func planCreate(req volume.CreateRequest, cluster string, pools []string) (plan, error) {
	if err := checkName(req.Name); err != nil {
		return plan{}, err
	}
	if err := checkSize(req.Size); err != nil {
		return plan{}, err
	}
	if req.Source.Volume != "" && req.Source.Snapshot != "" {
		return plan{}, errs.Errorf(errs.Invalid, "a volume has one source, not both volume %s and snapshot %s", req.Source.Volume, req.Source.Snapshot)
	}
	switch req.Content {
	case volume.Raw:
		if req.FSType != "" {
			return plan{}, errs.Errorf(errs.Invalid, "a raw volume has no file system, but the request has %s", errs.Quote(req.FSType))
		}
	case volume.Filesystem:
		if req.FSType != "" {
			if _, err := mkfs.ParseType(req.FSType); err != nil {
				return plan{}, err
			}
		}
	default:
		return plan{}, errs.Errorf(errs.Invalid, "content %q is not valid in a request; valid are %q and %q", req.Content, volume.Raw, volume.Filesystem)
	}
	s, err := parseSettings(req.Parameters, cluster, pools)
	if err != nil {
		return plan{}, err
	}
	req.Parameters = maps.Clone(req.Parameters)
	return plan{CreateRequest: req, settings: s}, nil
}

func checkName(name string) error {
	if name == "" {
		return errs.Errorf(errs.Invalid, "the name is empty")
	}
	if len(name) > volume.MaxIDLength {
		return errs.Errorf(errs.Invalid, "the name is %d bytes long, at most %d are allowed", len(name), volume.MaxIDLength)
	}
	return nil
}

func checkSize(r volume.SizeRange) error {
	switch {
	case r.Required < 0 || r.Limit < 0:
		return errs.Errorf(errs.OutOfRange, "a size of %s is not possible: sizes are not negative", r)
	case r.Limit != 0 && r.Limit < r.Required:
		return errs.Errorf(errs.OutOfRange, "the limit of %d bytes is below the required size of %d bytes", r.Limit, r.Required)
	}
	return nil
}

// record is the metadata of the volume of the plan.
func (p plan) record(image string) volumeRecord {
	return volumeRecord{
		Image: image, Name: p.Name, Content: p.Content, FSType: p.FSType,
		FromVolume: p.Source.Volume, FromSnap: p.Source.Snapshot, Parameters: p.Parameters, Ephemeral: p.Ephemeral,
	}
}

// matches returns Exists with the difference unless the request would have
// created this volume.
func (p plan) matches(v volume.Volume, parameters map[string]string) error {
	differs := func(format string, args ...any) error {
		return errs.Errorf(errs.Exists, "volume %s already has the name %s, "+format, append([]any{v.ID, errs.Quote(p.Name)}, args...)...)
	}
	switch {
	case !p.Size.Admits(v.Size):
		return differs("with %d bytes; the request is for %s", v.Size, p.Size)
	case p.Content != v.Content:
		return differs("with content %s; the request is for %s", v.Content, p.Content)
	case p.FSType != "" && p.FSType != v.FSType:
		return differs("with file system %s; the request is for %s", v.FSType, p.FSType)
	case p.Source != v.Source:
		return differs("with another source: it has %+v; the request has %+v", v.Source, p.Source)
	case !maps.Equal(p.Parameters, parameters):
		return differs("with parameters %q; the request has %q", parameters, p.Parameters)
	case p.Ephemeral != v.Ephemeral:
		return differs("and only one of the two is ephemeral")
	}
	return nil
}

// setFilesystem sets the file system of the volume: that of the source, or the
// requested one. Any source can be used raw, but a file system cannot be
// created over a source.
func (p *plan) setFilesystem(from *origin) error {
	switch {
	case p.Content == volume.Raw:
	case from == nil:
		if p.FSType == "" {
			p.FSType = string(mkfs.Ext4)
		}
	case from.content != volume.Filesystem:
		return errs.Errorf(errs.Invalid, "%s has no file system, so only a block volume can be created from it", from)
	case from.fsType == string(mkfs.Btrfs):
		return errs.Errorf(errs.Invalid, "%s has file system btrfs, of which a copy keeps the UUID, and two of one UUID can damage each other on a node; create a block volume from it, or use ext4 or xfs", from)
	case p.FSType == "":
		p.FSType = from.fsType
	case p.FSType != from.fsType:
		return errs.Errorf(errs.Invalid, "%s has file system %s, so a volume created from it cannot have %s; request %s, or no file system", from, from.fsType, p.FSType, from.fsType)
	}
	return nil
}

// chooseSize chooses the size. A copy is never smaller than its source, and has
// the size of its source if the request allows.
func (p plan) chooseSize(from *origin) (int64, error) {
	fallback, minimum := int64(defaultSize), minimumSize(p.FSType)
	if from != nil {
		fallback, minimum = from.size, from.size
		if p.Size.Limit != 0 && p.Size.Limit < from.size {
			return 0, errs.Errorf(errs.OutOfRange, "a size of %s is too small: the source, %s, has %d bytes", p.Size, from, from.size)
		}
	}
	return chooseSize(p.Size, fallback, minimum)
}

func chooseSize(r volume.SizeRange, fallback, minimum int64) (int64, error) {
	size, err := r.Choose(fallback, minimum, granule)
	if err == nil && size > maxSize {
		return 0, errs.Errorf(errs.OutOfRange, "a volume of %d bytes is not possible: images have at most %d bytes", size, int64(maxSize))
	}
	return size, err
}

func minimumSize(fsType string) int64 {
	least := max(mkfs.MinSize(mkfs.Type(fsType)), granule)
	return (least + granule - 1) / granule * granule
}

// origin is the source of a new volume: an image, and a snapshot of it unless
// it is a volume.
type origin struct {
	description string
	pool        int64
	hash        string // of the name of the volume that the image is or was
	image       string // internal id
	snap        string // name of the snapshot; empty: to be created
	size        int64
	content     volume.Content
	fsType      string
}

func (o *origin) String() string { return o.description }
