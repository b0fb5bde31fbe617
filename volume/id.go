package volume

import (
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/errs"
)

// ID identifies a volume. It is globally unique and not derived from the name:
// a recreated volume has another ID.
type ID string

// SnapshotID identifies a snapshot.
type SnapshotID string

// GroupID identifies a group of snapshots.
type GroupID string

// NewID returns the id of a new volume. Ids sort by creation time (UUID version
// 7) and end in the last part of the pool's UUID, if any, so that a node can
// distinguish a deleted object from one of another node.
func NewID(pool string) ID { return ID(newID("vol-", pool)) }

// NewSnapshotID returns a new id like NewID.
func NewSnapshotID(pool string) SnapshotID { return SnapshotID(newID("snap-", pool)) }

// NewGroupID returns a new id like NewID.
func NewGroupID(pool string) GroupID { return GroupID(newID("group-", pool)) }

func newID(prefix, pool string) string {
	id := prefix + uuid.Must(uuid.NewV7()).String()
	if pool != "" {
		id += "-" + poolSuffix(pool)
	}
	return id
}

// poolSuffix returns the part of a pool's UUID that ids contain: 48 random
// bits.
func poolSuffix(pool string) string { return pool[strings.LastIndexByte(pool, '-')+1:] }

var ownID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:vol|snap|group)-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-([0-9a-f]{12}))?$`)
})

// CanBeInAnotherPool reports whether an object that is not in the given pool
// can be in another one. That includes ids of releases up to 2026-11, which
// name no pool, and excludes ids that NewID cannot return.
func CanBeInAnotherPool(id, pool string) bool {
	m := ownID().FindStringSubmatch(id)
	return m != nil && (m[2] == "" || m[2] != poolSuffix(pool))
}

// CanBeInPool reports whether an object with the id can be in the given pool:
// NewID returned it for that pool or, in releases up to 2026-11, for any.
func CanBeInPool(id, pool string) bool {
	m := ownID().FindStringSubmatch(id)
	return m != nil && (m[2] == "" || m[2] == poolSuffix(pool))
}

// IDTime returns the creation time of an id of NewID, and zero for other ids.
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

// MaxIDLength is the CSI limit for identifiers, in bytes.
const MaxIDLength = 128

const idChars = "._:-ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// CheckID validates an identifier: a single path element of a narrow alphabet,
// since ids become part of file names.
func CheckID(id string) error {
	switch {
	case id == "":
		return errs.Errorf(errs.Invalid, "the id is empty")
	case len(id) > MaxIDLength:
		return errs.Errorf(errs.Invalid, "the id is %d bytes long, at most %d are allowed", len(id), MaxIDLength)
	case strings.Trim(id, idChars) != "" || strings.IndexByte("._:-", id[0]) >= 0:
		return errs.Errorf(errs.Invalid, "id %s: an id contains only letters, digits and . _ : - and begins with a letter or digit", errs.Quote(id))
	}
	return nil
}
