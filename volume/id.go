package volume

import (
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/errs"
)

// ID names a volume; it is unique for ever, never derived from the volume's
// name, so that a volume made anew under an old name is not taken for it.
type ID string

// SnapshotID names a snapshot.
type SnapshotID string

// GroupID names a group of snapshots.
type GroupID string

// NewID returns the id of a new volume in the pool with this UUID. Ids sort by
// the time at which they were made (UUID version 7). They end in the last part
// of the pool's UUID, so that a node can tell an object that is gone from one
// that another node has; an empty pool leaves that part out.
func NewID(pool string) ID { return ID(newID("vol-", pool)) }

// NewSnapshotID returns the id of a new snapshot, in the form of NewID.
func NewSnapshotID(pool string) SnapshotID { return SnapshotID(newID("snap-", pool)) }

// NewGroupID returns the id of a new group of snapshots, in the form of NewID.
func NewGroupID(pool string) GroupID { return GroupID(newID("group-", pool)) }

func newID(prefix, pool string) string {
	id := prefix + uuid.Must(uuid.NewV7()).String()
	if pool != "" {
		id += "-" + poolSuffix(pool)
	}
	return id
}

// poolSuffix is the part of a pool's UUID that ids carry: 48 random bits.
func poolSuffix(pool string) string { return pool[strings.LastIndexByte(pool, '-')+1:] }

var ownID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:vol|snap|group)-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-([0-9a-f]{12}))?$`)
})

// MayBeInAnotherPool reports whether an object that the given pool does not
// have can be in another one. Ids of releases up to 2026-11 name no pool, so
// theirs can; ids that NewID never makes cannot.
func MayBeInAnotherPool(id, pool string) bool {
	m := ownID().FindStringSubmatch(id)
	return m != nil && (m[2] == "" || m[2] != poolSuffix(pool))
}

// IDTime returns when NewID made an id; zero for other ids.
func IDTime(id string) time.Time {
	m := ownID().FindStringSubmatch(id)
	if m == nil {
		return time.Time{}
	}
	u, err := uuid.Parse(m[1])
	if err != nil || u.Version() != 7 {
		return time.Time{}
	}
	return time.Unix(u.Time().UnixTime()).UTC()
}

// MaxIDLength is CSI's bound on every identifier, in bytes.
const MaxIDLength = 128

// idChars are the characters of identifiers.
const idChars = "._:-ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// CheckID refuses an identifier that could not be one of ours: it ends up in
// file names, so it is a single path element of a narrow alphabet.
func CheckID(id string) error {
	switch {
	case id == "":
		return errs.Errorf(errs.Invalid, "the id is empty")
	case len(id) > MaxIDLength:
		return errs.Errorf(errs.Invalid, "the id is %d bytes long, at most %d are allowed", len(id), MaxIDLength)
	case strings.Trim(id, idChars) != "" || strings.IndexByte("._:-", id[0]) >= 0:
		return errs.Errorf(errs.Invalid, "id %s: only letters, digits and . _ : - may stand in an id, a letter or digit first", errs.Quote(id))
	}
	return nil
}
