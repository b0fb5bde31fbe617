//go:build ceph

package ceph

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// csiBacking is set for a volume of ceph-csi that shows a snapshot.
const csiBacking = "csi.volume.backingsnapshotid"

// adopt returns a volume of ceph-csi, as Engine.adopt does for RBD images.
func (e *FS) adopt(id volume.ID, h handle) (volume.Volume, error) {
	v, _, err := e.adopted(id, h)
	return v, err
}

func (e *FS) adopted(id volume.ID, h handle) (v volume.Volume, name string, err error) {
	if h.cluster != e.cluster.ID || h.pool != e.id {
		return v, "", errs.Errorf(errs.Precondition, "volume %s is in file system number %d of Ceph cluster %s, and this driver serves number %d of %s", id, h.pool, errs.Quote(h.cluster), e.id, e.cluster.ID)
	}
	io, err := e.rados.OpenIOContext(e.pools[0].name)
	if err != nil {
		return v, "", explain(err, "open pool %s", e.pools[0].name)
	}
	defer io.Destroy()
	io.SetNamespace(e.cluster.CephFS.Namespace())
	journal, err := io.GetOmapValues(csiVolumePrefix+h.uuid, "", "", journalLimit)
	if is(err, notFound) {
		return v, "", noVolume(id)
	}
	if err != nil {
		return v, "", explain(err, "read ceph-csi's record of volume %s", id)
	}
	for key, what := range map[string]string{csiKMS: "is encrypted by ceph-csi", csiBacking: "shows a snapshot of ceph-csi"} {
		if len(journal[key]) > 0 {
			return v, "", errs.Errorf(errs.Precondition, "volume %s %s, and only ceph-csi can use it", id, what)
		}
	}
	name = cmp.Or(string(journal[csiImage]), "csi-vol-"+h.uuid)
	info, err := e.manager.info(name)
	if is(err, notFound) || err == nil && info.Path == "" {
		return v, "", noVolume(id)
	}
	if err != nil {
		return v, "", err
	}
	path, inGroup := strings.CutPrefix(info.Path, e.root)
	if !inGroup {
		return v, "", errs.Errorf(errs.Precondition, "volume %s is at %s, outside of the subvolume group of this driver, %s", id, info.Path, e.root)
	}
	size, _ := strconv.ParseInt(string(info.Quota), 10, 64) // "infinite" is 0
	return volume.Volume{
		ID: id, Name: string(journal[csiName]), Size: size, Content: volume.Filesystem, FSType: FSType, Locator: e.locator(path),
	}, name, nil
}

func (e *FS) expandAdopted(id volume.ID, h handle, size volume.SizeRange) (volume.Volume, error) {
	v, name, err := e.adopted(id, h)
	if err != nil {
		return v, err
	}
	want, err := grownSize(id, v.Size, size)
	if err != nil || want <= v.Size || v.Size == 0 { // without a quota it has no size
		return v, err
	}
	if err := e.manager.grow(name, want); err != nil {
		return v, err
	}
	return e.adopt(id, h)
}
