package ceph

import (
	"maps"
	"slices"
	"sync"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// index has all volumes and snapshots, for lists. Its entries can be older than
// the cluster.
type index struct {
	mu        sync.Mutex
	volumes   map[volume.ID]volume.Volume
	names     map[string]volume.ID
	snapshots map[volume.SnapshotID]volume.Snapshot
	snapNames map[string]volume.SnapshotID
}

func newIndex() *index {
	return &index{
		volumes: map[volume.ID]volume.Volume{}, names: map[string]volume.ID{},
		snapshots: map[volume.SnapshotID]volume.Snapshot{}, snapNames: map[string]volume.SnapshotID{},
	}
}

// put adds or replaces a volume. Lists have no progress, which only Get reads.
func (x *index) put(v volume.Volume) {
	v.Progress = volume.Progress{}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.volumes[v.ID], x.names[v.Name] = v, v.ID
}

func (x *index) drop(id volume.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if name := x.volumes[id].Name; x.names[name] == id {
		delete(x.names, name)
	}
	delete(x.volumes, id)
}

func (x *index) putSnapshot(s volume.Snapshot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.snapshots[s.ID] = s
	if s.Group == "" { // members have no names of their own
		x.snapNames[s.Name] = s.ID
	}
}

func (x *index) dropGroup(id volume.GroupID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	maps.DeleteFunc(x.snapshots, func(_ volume.SnapshotID, s volume.Snapshot) bool { return s.Group == id })
}

func (x *index) dropSnapshot(id volume.SnapshotID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if name := x.snapshots[id].Name; x.snapNames[name] == id {
		delete(x.snapNames, name)
	}
	delete(x.snapshots, id)
}

// named returns the id of the volume with a name.
func (x *index) named(name string) (volume.ID, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id, ok := x.names[name]
	return id, ok
}

// withImage returns the volume of a pool whose image had an internal id at its
// creation.
func (x *index) withImage(pool int64, image string) (volume.ID, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id := range x.volumes {
		if v, _ := parseVolumeID(id); v.pool == pool && v.image == image {
			return id, true
		}
	}
	return "", false
}

// snapshotNamed returns the snapshot with a name.
func (x *index) snapshotNamed(name string) (volume.Snapshot, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.snapshots[x.snapNames[name]]
	return s, ok
}

// existingSnapshot returns the snapshot of an equal request, as read returns it;
// nil: it does not exist. Exists: a snapshot of another volume has the name.
func (x *index) existingSnapshot(req volume.SnapshotRequest, read func(volume.SnapshotID) (volume.Snapshot, error)) (*volume.Snapshot, error) {
	listed, ok := x.snapshotNamed(req.Name)
	if !ok {
		return nil, nil
	}
	s, err := read(listed.ID)
	switch {
	case errs.KindOf(err) == errs.NotFound:
		return nil, nil
	case err == nil && s.Source != req.Source:
		err = errs.Errorf(errs.Exists, "snapshot %s already has the name %s and is of volume %s", s.ID, errs.Quote(req.Name), s.Source)
	}
	if err != nil {
		return nil, err
	}
	return &s, nil
}

func (x *index) list(after volume.ID, limit int) []volume.Volume {
	x.mu.Lock()
	defer x.mu.Unlock()
	var all []volume.Volume
	for _, id := range slices.Sorted(maps.Keys(x.volumes)) {
		if id > after && (limit == 0 || len(all) < limit) {
			all = append(all, x.volumes[id])
		}
	}
	return all
}

func (x *index) listSnapshots(query volume.SnapshotQuery) []volume.Snapshot {
	x.mu.Lock()
	defer x.mu.Unlock()
	var all []volume.Snapshot
	for _, id := range slices.Sorted(maps.Keys(x.snapshots)) {
		s := x.snapshots[id]
		if id > query.After && (query.Source == "" || s.Source == query.Source) && (query.Limit == 0 || len(all) < query.Limit) {
			all = append(all, s)
		}
	}
	return all
}
