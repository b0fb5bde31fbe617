package ceph

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// handle is the id of a volume of ceph-csi:
// 0001-LLLL-CLUSTERID-POOLID-UUID, with the length of CLUSTERID and the pool's
// number in hexadecimal digits.
type handle struct {
	cluster string
	pool    int64
	uuid    string
}

func (h handle) String() string {
	return fmt.Sprintf("0001-%04x-%s-%016x-%s", len(h.cluster), h.cluster, h.pool, h.uuid)
}

var handleEnd = pattern(`^-([0-9a-f]{16})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)

func parseHandle(id volume.ID) (handle, bool) {
	rest, ok := strings.CutPrefix(string(id), "0001-")
	if !ok || len(rest) < 5 || rest[4] != '-' || len(id) > volume.MaxIDLength {
		return handle{}, false
	}
	length, err := strconv.ParseUint(rest[:4], 16, 16)
	if rest = rest[5:]; err != nil || length == 0 || length > 36 || uint64(len(rest)) < length {
		return handle{}, false
	}
	m := handleEnd().FindStringSubmatch(rest[length:])
	if m == nil {
		return handle{}, false
	}
	pool, err := strconv.ParseInt(m[1], 16, 64)
	h := handle{cluster: rest[:length], pool: pool, uuid: m[2]}
	return h, err == nil && h.String() == string(id)
}

// Keys of the omap "csi.volume.UUID", in which ceph-csi records a volume.
const (
	csiVolumePrefix = "csi.volume."
	csiName         = "csi.volname"
	csiImage        = "csi.imagename"
	csiImageID      = "csi.imageid"
	csiKMS          = "csi.volume.encryptKMS"
)

// notForeign refuses what only the owner of an adopted volume does.
func notForeign(id volume.ID, what string) error {
	if _, foreign := parseHandle(id); foreign {
		return errs.Errorf(errs.Precondition, "volume %s belongs to ceph-csi; %s with ceph-csi", id, what)
	}
	return nil
}
