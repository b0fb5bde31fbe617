package plan

import (
	"slices"
	"strings"

	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume/access"
)

// Settings are defaults for values that locators omit.
type Settings struct {
	Plugin   string          // keeps the objects of two plugins in one SNAP process apart
	HostNQN  string          // of this machine
	Timeouts access.Timeouts // all fields set
}

// Make plans a device after Locate. errs.Unsupported: the locator is not
// supported.
func (s Settings) Make(q request.Create) (Device, error) {
	d, err := s.make(q)
	for i, o := range d.Objects {
		d.Objects[i] = o.Clone() // not shared with the request
	}
	return d, err
}

func (s Settings) make(q request.Create) (Device, error) {
	switch a := q.Access.(type) {
	case access.NVMe:
		return s.nvme(a), nil
	case access.RBD:
		return s.rbd(q, a), nil
	case access.NFS:
		return s.filesystem(q, MountSpec{NFS: &a}), nil
	case access.CephFS:
		return s.filesystem(q, MountSpec{CephFS: &a}), nil
	case access.File:
		if q.Mode == request.Filesystem {
			return s.filesystem(q, MountSpec{Directory: &a}), nil
		}
		name := aioName(s.Plugin, q.Volume)
		return Device{Name: name, Objects: []Object{{ID: ID{AIO, name}, AIO: &AIOSpec{File: a, ReadOnly: q.ReadOnly()}}}}, nil
	}
	return Device{}, errs.Errorf(errs.Unsupported, "volume %s: no device can be created from a locator of type %T", q.Volume, q.Access)
}

func (s Settings) nvme(a access.NVMe) Device {
	spec := ControllerSpec{
		Transport: a.Transport, Paths: a.Paths, SubNQN: a.NQN, HostNQN: a.HostNQN,
		Timeouts: a.Timeouts.Or(s.Timeouts), IOQueues: a.IOQueues, HeaderDigest: a.HeaderDigest, DataDigest: a.DataDigest,
	}
	if spec.HostGiven = spec.HostNQN != ""; !spec.HostGiven {
		spec.HostNQN = s.HostNQN
	}
	spec.TLSFile = a.TLSKey
	var d Device
	for _, k := range []struct {
		file string
		to   *string
	}{{a.DHChapKey, &spec.DHChap}, {a.DHChapCtrlrKey, &spec.DHChapCtrlr}, {a.TLSKey, &spec.TLS}} {
		if k.file == "" {
			continue
		}
		*k.to = keyName(s.Plugin, k.file)
		key := Object{ID: ID{Key, *k.to}, Key: &KeySpec{File: k.file}}
		if !slices.ContainsFunc(d.Objects, func(o Object) bool { return o.ID == key.ID }) {
			d.Objects = append(d.Objects, key)
		}
	}
	d.Objects = append(d.Objects, Object{ID: ID{Controller, controllerName(spec.SubNQN, spec.HostNQN)}, Controller: &spec})
	d.Choice = Choice{NSID: a.NSID, UUID: a.UUID, NGUID: a.NGUID}
	return d
}

func (s Settings) rbd(q request.Create, a access.RBD) Device {
	monitors := make([]string, 0, len(a.Monitors))
	for _, m := range a.Monitors {
		monitors = append(monitors, m.String())
	}
	cluster := rbdClusterName(s.Plugin, a.ClusterID, strings.Join(monitors, ","), a.User, a.Key)
	of := a.ClusterID
	if of == "" {
		slices.Sort(monitors)
		of = strings.Join(monitors, ",")
	}
	name := rbdName(s.Plugin, q.Volume)
	return Device{Name: name, Objects: []Object{
		{ID: ID{RBDCluster, cluster}, RBDCluster: &RBDClusterSpec{a.Ceph}},
		{ID: ID{RBD, name}, RBD: &RBDSpec{Cluster: cluster, Of: of, Pool: a.Pool, Namespace: a.Namespace, Image: a.Image, ReadOnly: q.ReadOnly()}},
	}}
}

func (s Settings) filesystem(q request.Create, m MountSpec) Device {
	m.ReadOnly = q.ReadOnly()
	name := fsdevName(s.Plugin, q.Volume)
	return Device{Name: name, Objects: []Object{
		{ID: ID{Mount, q.Volume}, Mount: &m},
		{ID: ID{AIOFsdev, name}, Fsdev: &FsdevSpec{Mount: q.Volume}},
	}}
}
