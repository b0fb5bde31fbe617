package ceph

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/cleatproject/cleat/volume"
)

// Records are extended attributes of the directory NAME, which nodes and pods
// do not mount. Ceph keeps them for as long as the subvolume or one of its
// snapshots exists.
const (
	attrVolume     = "user.cleat.volume"
	attrSnapPrefix = "user.cleat.snap." // with the hash of the snapshot's name
)

// fsRecord is what Ceph does not know of a volume. It is written after the
// subvolume was created, and counts for that creation only.
type fsRecord struct {
	UUID       string            `json:"uuid"`
	Name       string            `json:"name"`
	Created    time.Time         `json:"created"`
	FromVolume volume.ID         `json:"fromVolume,omitempty"`
	FromSnap   volume.SnapshotID `json:"fromSnapshot,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Ephemeral  bool              `json:"ephemeral,omitempty"`
	// Copy describes the copy that fills the volume, until it is complete.
	Copy *fsCopy `json:"copy,omitempty"`
	// Shows is the snapshot whose content the volume shows, without a copy. Its
	// own directory is empty.
	Shows *fsContent `json:"shows,omitempty"`
}

// fsCopy is a copy by Ceph's manager.
type fsCopy struct {
	From  string `json:"from"` // NAME of the source
	Snap  string `json:"snap"`
	Size  int64  `json:"size"`  // that the volume gets then
	Total int64  `json:"total"` // bytes
	// Failed says why the copy has ended without success.
	Failed string `json:"failed,omitempty"`
}

// fsContent is the content of a snapshot.
type fsContent struct {
	Dir  string `json:"dir"` // NAME of its volume
	Snap string `json:"snap"`
	UUID string `json:"uuid"`
}

// path returns the path of a snapshot's content in the group.
func (c fsContent) path() string {
	return strings.Join([]string{"", c.Dir, ".snap", c.Snap, c.UUID}, "/")
}

func (r fsRecord) source() volume.Source {
	return volume.Source{Volume: r.FromVolume, Snapshot: r.FromSnap}
}

// decodeFS returns the record of the volume with a UUID; nil if it does not exist.
func decodeFS(text []byte, uuid string) (*fsRecord, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var r fsRecord
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("attribute %s: %w: %w", attrVolume, errDamaged, err)
	}
	if r.UUID != uuid {
		return nil, nil
	}
	return &r, nil
}

// fsSnapRecord is what Ceph does not know of a snapshot. It is written before
// the snapshot is created.
type fsSnapRecord struct {
	UUID string `json:"uuid"` // of the source
	Name string `json:"name"`
	Size int64  `json:"size"` // of the source, in bytes
}

// decodeFSSnap returns the record of a snapshot; false if it is of another name.
func decodeFSSnap(text []byte, wantHash string) (r fsSnapRecord, ok bool) {
	if json.Unmarshal(text, &r) != nil || hash(r.Name) != wantHash || !uuidPattern().MatchString(r.UUID) {
		return fsSnapRecord{}, false
	}
	return r, true
}

// cloneStatus is the state of a copy by Ceph's manager.
type cloneStatus struct {
	State  string
	Source struct{ Subvolume, Snapshot string }
	// Failure is that of states failed and canceled.
	Failure struct {
		Message string `json:"error_msg"`
	}
}

// States of a copy; others are those of one that goes on.
const (
	cloneComplete = "complete"
	cloneFailed   = "failed"
	cloneCanceled = "canceled"
)

// parseCloneStatus parses the output of "fs clone status".
func parseCloneStatus(text []byte) (cloneStatus, error) {
	var out struct{ Status cloneStatus }
	if err := json.Unmarshal(text, &out); err != nil || out.Status.State == "" {
		return cloneStatus{}, fmt.Errorf("the status of a copy is not JSON with a state: %v", err)
	}
	return out.Status, nil
}

// progress returns the progress of a copy that has done some bytes. The total
// is that of the snapshot as far as the metadata server had counted it, and more
// than done until the copy is complete.
func (c fsCopy) progress(done int64) volume.Progress {
	done = max(done, 0)
	return volume.Progress{Done: done, Total: max(c.Total, done+1), Failed: c.Failed}
}
