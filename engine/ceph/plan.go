package ceph

import (
	"maps"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

const (
	granule     = 1 << 20
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
	if err := newvolume.Check(req); err != nil {
		return plan{}, err
	}
	s, err := parseSettings(req.Parameters, cluster, pools)
	if err != nil {
		return plan{}, err
	}
	req.Parameters = maps.Clone(req.Parameters)
	return plan{CreateRequest: req, settings: s}, nil
}

// record is the metadata of the volume of the plan.
func (p plan) record(image, uuid string) volumeRecord {
	return volumeRecord{
		Image: image, UUID: uuid, Name: p.Name, Content: p.Content, FSType: p.FSType,
		FromVolume: p.Source.Volume, FromSnap: p.Source.Snapshot, Parameters: p.Parameters, Ephemeral: p.Ephemeral,
	}
}

// possible refuses sizes beyond those of images.
func possible(size int64, err error) (int64, error) {
	if err == nil && size > maxSize {
		return 0, errs.Errorf(errs.OutOfRange, "a volume of %d bytes is not possible: images have at most %d bytes", size, int64(maxSize))
	}
	return size, err
}

// origin is the source of a new volume.
type origin = newvolume.Origin[originImage]

// originImage is an image, and a snapshot of it unless it is a volume.
type originImage struct {
	pool    int64
	hash    string // of the name of the volume that the image is or was
	image   string // internal id
	deleted string // name of the image once its volume is deleted
	snap    string // name of the snapshot; empty: to be created
	member  uint64 // id of the snapshot, if it is a group's member, which has no name
}
