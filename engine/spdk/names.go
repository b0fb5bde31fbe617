package spdk

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/errs"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// Ids of volumes and snapshots are those of spdk-csi, TARGET:UUID with the UUID
// of the lvol.
var idPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,62}):([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)
})

func parseID(id string) (target, uuid string, ok bool) {
	m := idPattern().FindStringSubmatch(id)
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
}

func formatID(target, uuid string) string { return target + ":" + uuid }

func checkTargetName(name string) error {
	const example = "00000000-0000-0000-0000-000000000000"
	if _, _, ok := parseID(formatID(name, example)); !ok {
		return errs.Errorf(errs.Invalid, "target name %s is not valid: it is part of volume ids, and has up to 63 letters, digits, dots, dashes and underscores, the first a letter or digit", errs.Quote(name))
	}
	return nil
}

// Prefixes of the names of lvols. What has the last one belongs to no volume any
// more, and is removed as soon as SPDK allows.
const (
	hashedPrefix   = "cleat-volume-"
	snapshotPrefix = "cleat-snapshot-"
	sourcePrefix   = "cleat-source-" // snapshot from which a volume is cloned
)

// alias is a name of an lvol's bdev.
func alias(store, lvol string) string { return store + "/" + lvol }

func isOurs(lvol string) bool { return strings.HasPrefix(lvol, "cleat-") }

func isSource(lvol string) bool { return strings.HasPrefix(lvol, sourcePrefix) }

var plainName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`) })

// lvolName returns the name of the lvol of a volume, that of the volume where
// SPDK allows, as with spdk-csi.
func lvolName(volume string) string {
	if plainName().MatchString(volume) && !isOurs(volume) {
		return volume
	}
	return hashedPrefix + hash(volume)
}

// lvol returns the name of the lvol of a snapshot. An lvol can outlive the
// deletion of its snapshot, whose name can be used again.
func (r snapRecord) lvol() string { return snapshotPrefix + hash(r.Name+" "+stamp(r.Created)) }

// source returns the name of the snapshot from which the volume is cloned. It
// can outlive the volume.
func (r record) source() string { return sourcePrefix + hash(r.Name+" "+stamp(r.Created)) }

func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

// hash has 128 bits: names of lvols have at most 63 bytes.
func hash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

// nqnPrefix is that of spdk-csi.
const nqnPrefix = "nqn.2020-04.io.spdk.csi:uuid:"

// ownedSerial starts the serial numbers of subsystems, which name the release
// that has the volume. Those of spdk-csi, and of cleat before that, are all
// "spdkcsi-sn".
const ownedSerial = "cleat-"

// serial returns the serial number of this release's subsystems; SPDK accepts 20
// bytes.
func (e *Engine) serial() string { return ownedSerial + hash(e.config.Owner)[:12] }

// isOfOther reports whether another release has created a subsystem.
func (e *Engine) isOfOther(s rpc.Subsystem) bool {
	return strings.HasPrefix(s.Serial, ownedSerial) && s.Serial != e.serial()
}

// isAdoptable reports whether a fence can adopt the volume of a subsystem that no
// record has: the subsystem is of this release, or of spdk-csi, which admits every
// host. Another one can be of any release of cleat.
func (e *Engine) isAdoptable(s rpc.Subsystem) bool { return s.Serial == e.serial() || s.AllowAnyHost }

func nqnOf(uuid string) string { return nqnPrefix + uuid }

func volumeID(target, uuid string) volume.ID { return volume.ID(formatID(target, uuid)) }
