package plan

import (
	"slices"

	"github.com/cleatproject/cleat/volume/access"
)

// Clone returns a deep copy.
func (o Object) Clone() Object {
	if o.Controller = copied(o.Controller); o.Controller != nil {
		o.Controller.Paths = slices.Clone(o.Controller.Paths)
	}
	o.Key, o.AIO, o.RBD, o.Fsdev = copied(o.Key), copied(o.AIO), copied(o.RBD), copied(o.Fsdev)
	if o.RBDCluster = copied(o.RBDCluster); o.RBDCluster != nil {
		o.RBDCluster.Ceph = cloneCeph(o.RBDCluster.Ceph)
	}
	if o.Mount = copied(o.Mount); o.Mount != nil {
		o.Mount.clone()
	}
	return o
}

func (m *MountSpec) clone() {
	if m.NFS = copied(m.NFS); m.NFS != nil {
		m.NFS.Options = slices.Clone(m.NFS.Options)
	}
	if m.CephFS = copied(m.CephFS); m.CephFS != nil {
		m.CephFS.Ceph = cloneCeph(m.CephFS.Ceph)
	}
	m.Directory = copied(m.Directory)
}

func cloneCeph(c access.Ceph) access.Ceph {
	c.Monitors = slices.Clone(c.Monitors)
	return c
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// Fits reports whether exactly the field of the kind is set.
func (o Object) Fits() bool {
	set := map[Kind]bool{
		Controller: o.Controller != nil, Key: o.Key != nil, AIO: o.AIO != nil, RBD: o.RBD != nil,
		RBDCluster: o.RBDCluster != nil, Mount: o.Mount != nil, AIOFsdev: o.Fsdev != nil,
	}
	for kind, is := range set {
		if is != (kind == o.Kind) {
			return false
		}
	}
	return set[o.Kind]
}
