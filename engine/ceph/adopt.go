//go:build ceph

package ceph

import (
	"cmp"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// journalLimit is more than the keys of a record of ceph-csi, some ten.
const journalLimit = 64

// adopt returns the image of a volume of ceph-csi, which a static
// PersistentVolume brings here. ceph-csi's records are only read. Such a volume
// can be used and grown; what changes those records is left to ceph-csi.
func (e *Engine) adopt(id volume.ID, h handle) (*image, error) {
	if h.cluster != e.cluster.ID {
		return nil, errs.Errorf(errs.Precondition, "volume %s is in Ceph cluster %s, and this driver serves %s", id, errs.Quote(h.cluster), e.cluster.ID)
	}
	p, err := e.poolOf(h.pool, string(id))
	if err != nil {
		return nil, err
	}
	journal, err := p.io.GetOmapValues(csiVolumePrefix+h.uuid, "", "", journalLimit)
	if is(err, notFound) {
		return nil, cmp.Or(p.notInNamespace("volume "+string(id), func(p *pool) (bool, error) {
			_, err := p.io.Stat(csiVolumePrefix + h.uuid)
			return err == nil, explain(ignoreMissing(err), "look up ceph-csi's record of volume %s", id)
		}), noVolume(id))
	}
	if err != nil {
		return nil, explain(err, "read ceph-csi's record of volume %s", id)
	}
	if len(journal[csiKMS]) > 0 {
		return nil, errs.Errorf(errs.Precondition, "volume %s is encrypted by ceph-csi, and only ceph-csi can use it", id)
	}
	i, err := p.inspect(string(journal[csiImage]))
	if is(err, notFound) {
		return nil, noVolume(id)
	}
	if err != nil {
		return nil, err
	}
	if want := string(journal[csiImageID]); want != "" && want != i.id {
		return nil, errs.Errorf(errs.NotFound, "volume %s does not exist: image %s has the id %s, and ceph-csi's record %s", id, i.name, i.id, want)
	}
	// Whether it has a file system, and which, only its user knows.
	i.handle, i.record = id, &volumeRecord{Image: i.id, Name: string(journal[csiName]), Content: volume.Filesystem}
	return i, nil
}
