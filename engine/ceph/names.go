package ceph

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/cleatproject/cleat/volume"
)

// Images and snapshots are named by a hash: names of a request can contain any
// character, and RBD accepts some that other tools misread, such as / and @.
const (
	volumePrefix  = "cleat-vol-"
	deletedPrefix = "cleat-del-"
	snapPrefix    = "cleat-snap-"
	clonePrefix   = "cleat-clone-"
	groupPrefix   = "cleat-group-"
)

// stateObject holds the state of the controller: its omap has the entries, its
// data the generation.
const stateObject = "cleat-state"

// hash returns 128 bits of a name's SHA-256.
func hash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

// imageName returns the name of a volume's image.
func imageName(hash string) string { return volumePrefix + hash }

// deletedName returns the name of a deleted volume's image, by the internal id
// at its creation.
func deletedName(image string) string { return deletedPrefix + image }

// snapName returns the name of a snapshot on the image of its source.
func snapName(hash string) string { return snapPrefix + hash }

// cloneSnapName returns the name of the temporary snapshot from which a volume
// is cloned, by the hash of the new volume's name.
func cloneSnapName(hash string) string { return clonePrefix + hash }

// idNumber is a number in an id, in the only form that it has there.
const idNumber = `(0|[1-9a-f][0-9a-f]{0,15})`

func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// parseID returns the number with which an id of a pattern begins, and its other parts;
// the parts of another id are empty.
func parseID(ids func() *regexp.Regexp, id string) (first int64, parts []string, ok bool) {
	m := ids().FindStringSubmatch(id)
	if m == nil {
		return 0, make([]string, ids().NumSubexp()-1), false
	}
	first, err := strconv.ParseInt(m[1], 16, 64)
	return first, m[2:], err == nil
}

// volumeID is the content of a volume's id. The internal id of the image
// differs for each creation. The record of the image keeps it when the image
// gets another one.
type volumeID struct {
	pool  int64
	hash  string // of the name
	image string // internal id at the creation
}

func (id volumeID) String() string {
	return fmt.Sprintf("vol-%x-%s-%s", id.pool, id.hash, id.image)
}

// VolumeID returns the id of the volume with an image in a pool, or "" if the
// image is not that of a volume of this engine. imageID is the image's internal id.
func VolumeID(pool int64, image, imageID string) volume.ID {
	hash, ok := strings.CutPrefix(image, volumePrefix)
	id := volume.ID(volumeID{pool: pool, hash: hash, image: imageID}.String())
	if _, parsed := parseVolumeID(id); !ok || !parsed {
		return ""
	}
	return id
}

var volumeIDs = pattern(`^vol-` + idNumber + `-([0-9a-f]{32})-([0-9a-f]{1,32})$`)

func parseVolumeID(id volume.ID) (volumeID, bool) {
	pool, parts, ok := parseID(volumeIDs, string(id))
	return volumeID{pool: pool, hash: parts[0], image: parts[1]}, ok
}

// snapshotID is the content of a snapshot's id.
type snapshotID struct {
	pool  int64
	image string // internal id of the source's image at its creation
	hash  string // of the snapshot's name
	snap  uint64 // RBD's id of the snapshot, never reused in a pool
}

func (id snapshotID) String() string {
	return fmt.Sprintf("snap-%x-%s-%s-%x", id.pool, id.image, id.hash, id.snap)
}

var snapshotIDs = pattern(`^snap-` + idNumber + `-([0-9a-f]{1,32})-([0-9a-f]{32})-` + idNumber + `$`)

func parseSnapshotID(id volume.SnapshotID) (snapshotID, bool) {
	pool, parts, ok := parseID(snapshotIDs, string(id))
	snap, err := strconv.ParseUint(parts[2], 16, 64)
	return snapshotID{pool: pool, image: parts[0], hash: parts[1], snap: snap}, ok && err == nil
}

// groupID is the content of the id of a group of snapshots. Each creation has a
// UUID of its own, which the record of the group has.
type groupID struct {
	pool int64
	hash string // of the name
	uuid string
}

func (id groupID) String() string {
	return fmt.Sprintf("group-%x-%s-%s", id.pool, id.hash, id.uuid)
}

// name returns the name of RBD's group.
func (id groupID) name() string { return groupPrefix + id.hash + "-" + id.uuid }

// memberHash stands for the hash of the name in the ids of the group's members.
// No name has its first byte.
func (id groupID) memberHash() string { return hash("\xff" + id.String()) }

var groupIDs = pattern(`^group-` + idNumber + `-([0-9a-f]{32})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)

func parseGroupID(id volume.GroupID) (groupID, bool) {
	pool, parts, ok := parseID(groupIDs, string(id))
	return groupID{pool: pool, hash: parts[0], uuid: parts[1]}, ok
}

// parseGroupName returns the id of the group with the name of a group of RBD.
func parseGroupName(pool int64, name string) (groupID, bool) {
	rest, ok := strings.CutPrefix(name, groupPrefix)
	if !ok {
		return groupID{}, false
	}
	return parseGroupID(volume.GroupID(fmt.Sprintf("group-%x-%s", pool, rest)))
}
