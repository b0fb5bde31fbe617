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
	// Image is the internal id that the image had at its creation, as in the id of
	// the volume. A migration or a copy under the same name gives it another one.
	Image string `json:"image"`
	// UUID is that of the recorded creation; records of earlier releases have none.
	UUID       string            `json:"uuid,omitempty"`
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

// decodeVolume returns the record of an image; nil if it has none.
func decodeVolume(text, image string) (*volumeRecord, error) {
	if text == "" {
		return nil, nil
	}
	var r volumeRecord
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("metadata %s of image %s: %w: %w", keyVolume, image, errDamaged, err)
	}
	return &r, nil
}

// isOf reports whether a record is that of the image with a name and an internal
// id. librbd copies metadata to clones, whose name is another one unless they
// have the name of a deleted volume: isMaking says that the creation of this name
// has not ended, so that the record came from its source.
func (r *volumeRecord) isOf(name, id string, isMaking bool) bool {
	switch {
	case r == nil:
		return false
	case r.Image == id:
		return true
	}
	return name == deletedName(r.Image) || name == imageName(hash(r.Name)) && !isMaking
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
