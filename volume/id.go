package volume

import (
	"fmt"
	"regexp"

	"github.com/google/uuid"
)

// ID names a volume; it is unique for ever, never derived from the volume's
// name, so that a volume made anew under an old name is not taken for it.
type ID string

// SnapshotID names a snapshot.
type SnapshotID string

// GroupID names a group of snapshots.
type GroupID string

// NewID makes a volume id. Ids made later sort behind (UUID version 7), so
// lists are in the order of creation.
func NewID() ID { return ID("vol-" + newUUID()) }

// NewSnapshotID makes a snapshot id.
func NewSnapshotID() SnapshotID { return SnapshotID("snap-" + newUUID()) }

// NewGroupID makes a group id.
func NewGroupID() GroupID { return GroupID("group-" + newUUID()) }

func newUUID() string { return uuid.Must(uuid.NewV7()).String() }

// MaxIDLength is CSI's bound on every identifier, in bytes.
const MaxIDLength = 128

var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]*$`)

// CheckID refuses an identifier that could not be one of ours: it ends up in
// file names, so it is a single path element of a narrow alphabet.
func CheckID(id string) error {
	switch {
	case id == "":
		return Errorf(Invalid, "the id is empty")
	case len(id) > MaxIDLength:
		return Errorf(Invalid, "the id is %d bytes long, at most %d are allowed", len(id), MaxIDLength)
	case !idPattern.MatchString(id):
		return Errorf(Invalid, "id %s: only letters, digits and . _ : - may stand in an id, a letter or digit first", clip(id))
	}
	return nil
}

// clip quotes a foreign string for a message without letting it flood the log.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		return fmt.Sprintf("%q…", s[:most])
	}
	return fmt.Sprintf("%q", s)
}
