package ceph

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/volume"
)

// A CephFS volume is a subvolume NAME of one group, with the same names as RBD
// images and snapshots have. Ceph keeps it as
//
//	/volumes/GROUP/NAME/UUID              the content, which nodes mount
//	/volumes/GROUP/NAME/.snap/SNAP/UUID   the content of a snapshot
//
// The UUID differs for each creation. The directory NAME stays after the deletion of a
// volume with snapshots, and its next creation continues it.

// fsID is the content of a CephFS volume's id.
type fsID struct {
	fs   int64  // number of the file system
	hash string // of the volume's name
	uuid string // without dashes
}

func (id fsID) String() string { return fmt.Sprintf("fsvol-%x-%s-%s", id.fs, id.hash, id.uuid) }

var fsIDs = pattern(`^fsvol-` + idNumber + `-([0-9a-f]{32})-([0-9a-f]{32})$`)

func parseFSID(id volume.ID) (fsID, bool) {
	fs, parts, ok := parseID(fsIDs, string(id))
	return fsID{fs: fs, hash: parts[0], uuid: parts[1]}, ok
}

// fsSnapshotID is the content of a CephFS snapshot's id.
type fsSnapshotID struct {
	fs      int64
	volume  string // hash of the volume's name
	hash    string // of the snapshot's name
	created int64  // in nanoseconds since 1970: differs for each creation
}

func (id fsSnapshotID) String() string {
	return fmt.Sprintf("fssnap-%x-%s-%s-%x", id.fs, id.volume, id.hash, id.created)
}

var fsSnapshotIDs = pattern(`^fssnap-` + idNumber + `-([0-9a-f]{32})-([0-9a-f]{32})-` + idNumber + `$`)

func parseFSSnapshotID(id volume.SnapshotID) (fsSnapshotID, bool) {
	fs, parts, ok := parseID(fsSnapshotIDs, string(id))
	created, err := strconv.ParseInt(parts[2], 16, 64)
	return fsSnapshotID{fs: fs, volume: parts[0], hash: parts[1], created: created}, ok && err == nil
}

var uuidPattern = pattern(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func withoutDashes(uuid string) string { return strings.ReplaceAll(uuid, "-", "") }

// parseSnapTime parses the attribute ceph.snap.btime, SECONDS.NANOSECONDS.
func parseSnapTime(text string) (nanoseconds int64, err error) {
	seconds, fraction, _ := strings.Cut(text, ".")
	s, err := strconv.ParseUint(seconds, 10, 32)
	n, err2 := strconv.ParseUint(fraction, 10, 32)
	if err != nil || err2 != nil || len(fraction) != 9 {
		return 0, fmt.Errorf("the creation time %q of a snapshot is not SECONDS.NANOSECONDS", text)
	}
	return int64(s)*1e9 + int64(n), nil
}

// parseNumber parses a numeric attribute.
func parseNumber(key, text string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimRight(text, "\x00\n"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("attribute %s is %q instead of a number", key, text)
	}
	return n, nil
}
