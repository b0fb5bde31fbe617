// Package newvolume has the rules for new volumes that are the same for several
// engines. It does no I/O.
package newvolume

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/volume"
)

const defaultSize = 1 << 30

// Check validates a request but for its parameters.
func Check(req volume.CreateRequest) error {
	if err := CheckName(req.Name); err != nil {
		return err
	}
	if err := CheckSize(req.Size); err != nil {
		return err
	}
	if req.Source.Volume != "" && req.Source.Snapshot != "" {
		return errs.Errorf(errs.Invalid, "a volume has one source, not both volume %s and snapshot %s", req.Source.Volume, req.Source.Snapshot)
	}
	switch req.Content {
	case volume.Raw:
		if req.FSType != "" {
			return errs.Errorf(errs.Invalid, "a raw volume has no file system, but the request has %s", errs.Quote(req.FSType))
		}
	case volume.Filesystem:
		if req.FSType != "" {
			if _, err := mkfs.ParseType(req.FSType); err != nil {
				return err
			}
		}
	default:
		return errs.Errorf(errs.Invalid, "content %q is not valid in a request; valid are %q and %q", req.Content, volume.Raw, volume.Filesystem)
	}
	return nil
}

// CheckName validates the name of a volume or snapshot.
func CheckName(name string) error {
	if name == "" {
		return errs.Errorf(errs.Invalid, "the name is empty")
	}
	if len(name) > volume.MaxIDLength {
		return errs.Errorf(errs.Invalid, "the name is %d bytes long, at most %d are allowed", len(name), volume.MaxIDLength)
	}
	return nil
}

// CheckSize validates a requested size.
func CheckSize(r volume.SizeRange) error {
	switch {
	case r.Required < 0 || r.Limit < 0:
		return errs.Errorf(errs.OutOfRange, "a size of %s is not possible: sizes are not negative", r)
	case r.Limit != 0 && r.Limit < r.Required:
		return errs.Errorf(errs.OutOfRange, "the limit of %d bytes is below the required size of %d bytes", r.Limit, r.Required)
	}
	return nil
}

// Matches returns Exists with the difference unless the request would have
// created this volume, with these parameters.
func Matches(req volume.CreateRequest, v volume.Volume, parameters map[string]string) error {
	differs := func(format string, args ...any) error {
		return errs.Errorf(errs.Exists, "volume %s already has the name %s, "+format, append([]any{v.ID, errs.Quote(req.Name)}, args...)...)
	}
	switch {
	case !req.Size.Admits(v.Size):
		return differs("with %d bytes; the request is for %s", v.Size, req.Size)
	case req.Content != v.Content:
		return differs("with content %s; the request is for %s", v.Content, req.Content)
	case req.FSType != "" && req.FSType != v.FSType:
		return differs("with file system %s; the request is for %s", v.FSType, req.FSType)
	case req.Source != v.Source:
		return differs("%s; the request is for one %s", describeSource(v.Source), describeSource(req.Source))
	case !maps.Equal(req.Parameters, parameters):
		return differs("with %s; the request has %s", describeParameters(parameters), describeParameters(req.Parameters))
	case req.Ephemeral != v.Ephemeral:
		return differs("and only one of the two is ephemeral")
	}
	return nil
}

func describeSource(s volume.Source) string {
	switch {
	case s.Volume != "":
		return "cloned from volume " + string(s.Volume)
	case s.Snapshot != "":
		return "restored from snapshot " + string(s.Snapshot)
	}
	return "created without a source"
}

func describeParameters(m map[string]string) string {
	if len(m) == 0 {
		return "no parameters"
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, fmt.Sprintf("%s=%q", key, m[key]))
	}
	return "parameters " + strings.Join(all, ", ")
}

// Origin is the source of a new volume, which the engine has at At.
type Origin[T any] struct {
	Size    int64
	Content volume.Content
	FSType  string
	// NewUUID: the engine gives copies of btrfs a UUID of their own.
	NewUUID bool
	At      T

	description string // set by OriginOf
}

func (o *Origin[T]) String() string { return o.description }

// OriginOf finds the source of a new volume; nil: it has none.
func OriginOf[T any](s volume.Source, ofVolume func(volume.ID) (Origin[T], error), ofSnapshot func(volume.SnapshotID) (Origin[T], error)) (*Origin[T], error) {
	var o Origin[T]
	var err error
	switch {
	case s.Volume != "":
		o, err = ofVolume(s.Volume)
		o.description = "volume " + string(s.Volume)
	case s.Snapshot != "":
		o, err = ofSnapshot(s.Snapshot)
		o.description = "snapshot " + string(s.Snapshot)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("source of the new volume: %w", err)
	}
	return &o, nil
}

// FSType returns the file system of the new volume: that of the source (nil:
// none), or the requested one. Any source can be used raw, but a file system
// cannot be created over a source.
func FSType[T any](req volume.CreateRequest, from *Origin[T]) (string, error) {
	switch {
	case req.Content == volume.Raw:
	case from == nil:
		if req.FSType == "" {
			return string(mkfs.Ext4), nil
		}
	case from.Content != volume.Filesystem:
		return "", errs.Errorf(errs.Invalid, "%s has no file system, so only a block volume can be created from it", from)
	case from.FSType == string(mkfs.Btrfs) && !from.NewUUID:
		return "", errs.Errorf(errs.Invalid, "%s has file system btrfs, of which a copy keeps the UUID, and two of one UUID can damage each other on a node; create a block volume from it, or use ext4 or xfs", from)
	case req.FSType == "":
		return from.FSType, nil
	case req.FSType != from.FSType:
		return "", errs.Errorf(errs.Invalid, "%s has file system %s, so a volume created from it cannot have %s; request %s, or no file system", from, from.FSType, req.FSType, from.FSType)
	}
	return req.FSType, nil
}

// Size chooses the size of a new volume, a multiple of granule. A copy is never
// smaller than its source (nil: none), and has the size of its source if the
// request allows.
func Size[T any](r volume.SizeRange, fsType string, from *Origin[T], granule int64) (int64, error) {
	minimum := MinimumSize(fsType, granule)
	fallback := max(defaultSize, minimum)
	if from != nil {
		fallback, minimum = from.Size, from.Size
		if r.Limit != 0 && r.Limit < from.Size {
			return 0, errs.Errorf(errs.OutOfRange, "a size of %s is too small: the source, %s, has %d bytes", r, from, from.Size)
		}
	}
	return r.Choose(fallback, minimum, granule)
}

// MinimumSize returns the size of the smallest volume with a file system
// (empty: without).
func MinimumSize(fsType string, granule int64) int64 {
	least := max(mkfs.MinSize(mkfs.Type(fsType)), granule)
	return (least + granule - 1) / granule * granule
}
