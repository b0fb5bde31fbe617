package ceph

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cleatproject/cleat/volume"
)

// Keys of image metadata. A snapshot's is on the image of its source.
const (
	keyVolume     = "cleat.volume"
	keySnapPrefix = "cleat.snap."
)

// volumeRecord is the metadata of a volume that RBD does not have itself.
type volumeRecord struct {
	// Image is the internal id of the image. librbd copies metadata to clones;
	// a record of another image does not count.
	Image      string            `json:"image"`
	Name       string            `json:"name"`
	Content    volume.Content    `json:"content"`
	FSType     string            `json:"fsType,omitempty"`
	FromVolume volume.ID         `json:"fromVolume,omitempty"`
	FromSnap   volume.SnapshotID `json:"fromSnapshot,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Ephemeral  bool              `json:"ephemeral,omitempty"`
}

func (r volumeRecord) source() volume.Source {
	return volume.Source{Volume: r.FromVolume, Snapshot: r.FromSnap}
}

// snapRecord is the metadata of a snapshot, written before the snapshot is
// created.
type snapRecord struct {
	Image string `json:"image"` // as in volumeRecord
	Name  string `json:"name"`
}

// errDamaged is of a record that this program has not written. The other volumes
// are served, and this one is left as it is.
var errDamaged = errors.New("the record of the volume is damaged; restore it, or remove the volume with Ceph's tools")

func encode(record any) string {
	text, err := json.Marshal(record)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", record, err)) // strings only
	}
	return string(text)
}

// decodeVolume returns the record of an image; nil if it has none of its own.
func decodeVolume(text, image string) (*volumeRecord, error) {
	if text == "" {
		return nil, nil
	}
	var r volumeRecord
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("metadata %s of image %s: %w: %w", keyVolume, image, errDamaged, err)
	}
	if r.Image != image {
		return nil, nil
	}
	return &r, nil
}

// decodeSnap returns the name of a snapshot; "" if the record is of another
// image or of another name.
func decodeSnap(text, image, wantHash string) string {
	var r snapRecord
	if json.Unmarshal([]byte(text), &r) != nil || r.Image != image || hash(r.Name) != wantHash {
		return ""
	}
	return r.Name
}
