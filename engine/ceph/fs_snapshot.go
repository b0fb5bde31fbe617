//go:build ceph

package ceph

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ceph/go-ceph/cephfs"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/volume"
)

// fsSnapshot is what the cluster says of a snapshot at one moment.
type fsSnapshot struct {
	dir     string // NAME of its volume
	hash    string
	created int64 // in nanoseconds since 1970
	record  fsSnapRecord
}

func (s fsSnapshot) content() fsContent {
	return fsContent{Dir: s.dir, Snap: snapName(s.hash), UUID: s.record.UUID}
}

func (e *FS) snapshot(s fsSnapshot) volume.Snapshot {
	from := strings.TrimPrefix(s.dir, volumePrefix)
	return volume.Snapshot{
		ID:   volume.SnapshotID(fsSnapshotID{fs: e.id, volume: from, hash: s.hash, created: s.created}.String()),
		Name: s.record.Name, Source: volume.ID(fsID{fs: e.id, hash: from, uuid: withoutDashes(s.record.UUID)}.String()),
		Size: s.record.Size, Content: volume.Filesystem, FSType: FSType,
		Created: time.Unix(0, s.created).UTC(), Ready: true,
	}
}

// snapshots returns those of CreateSnapshot, and the hashes of the names of
// volumes for which temporary ones were created.
func (m *fsMount) snapshots(s *subvolume) (all []fsSnapshot, temporary []string, err error) {
	err = m.use(func(i *cephfs.MountInfo) error {
		names, err := list(i, s.path()+"/.snap")
		if err != nil {
			return explain(err, "list the snapshots of subvolume %s", s.name)
		}
		all, temporary = nil, nil
		for _, name := range names {
			if target, is := strings.CutPrefix(name, clonePrefix); is {
				temporary = append(temporary, target)
			}
			h, own := strings.CutPrefix(name, snapPrefix)
			r, recorded := s.snapRecords[h]
			if !own || !recorded {
				continue
			}
			created, err := snapTime(i, s.path()+"/.snap/"+name)
			if is(err, notFound) {
				continue // it has just been removed
			}
			if err != nil {
				return err
			}
			all = append(all, fsSnapshot{dir: s.name, hash: h, created: created, record: r})
		}
		return nil
	})
	return all, temporary, err
}

func snapTime(i *cephfs.MountInfo, path string) (int64, error) {
	text, err := i.GetXattr(path, "ceph.snap.btime")
	if err != nil {
		return 0, explain(err, "read the creation time of %s", path)
	}
	return parseSnapTime(string(text))
}

// CreateSnapshot implements volume.Snapshots. A snapshot of a volume in use has
// what its clients had written to the cluster.
func (e *FS) CreateSnapshot(ctx context.Context, req volume.SnapshotRequest) (volume.Snapshot, error) {
	if err := checkSnapshot(req, e.cluster.ID); err != nil {
		return volume.Snapshot{}, err
	}
	source, own := parseFSID(req.Source)
	if !own {
		return volume.Snapshot{}, noVolume(req.Source)
	}
	locks := []string{"snapname:" + hash(req.Name), "name:" + source.hash}
	return mutate(ctx, e.Connection, "create snapshot "+errs.Quote(req.Name), locks, func() (volume.Snapshot, error) { return e.createSnapshot(req) })
}

func (e *FS) createSnapshot(req volume.SnapshotRequest) (volume.Snapshot, error) {
	if have, err := e.index.existingSnapshot(req, e.readSnapshot); have != nil || err != nil {
		return *cmp.Or(have, &volume.Snapshot{}), err
	}
	s, err := e.find(req.Source)
	if err != nil {
		return volume.Snapshot{}, err
	}
	if err := s.checkContent(req.Source); err != nil {
		return volume.Snapshot{}, err
	}
	snap, err := e.takeSnapshot(s, req.Name)
	if err != nil {
		return volume.Snapshot{}, err
	}
	out := e.snapshot(snap)
	e.index.putSnapshot(out)
	return out, nil
}

// takeSnapshot writes the record first: the snapshot exists once Ceph has it.
func (e *FS) takeSnapshot(s *subvolume, name string) (fsSnapshot, error) {
	h := hash(name)
	r := fsSnapRecord{UUID: s.uuid, Name: name, Size: s.size}
	if err := e.mount.set(s.name, attrSnapPrefix+h, encode(r)); err != nil {
		return fsSnapshot{}, err
	}
	crashpoint.Hit("snapshot.recorded")
	if err := e.manager.snapshot(s.name, snapName(h)); err != nil {
		return fsSnapshot{}, err
	}
	crashpoint.Hit("snapshot.created")
	snap := fsSnapshot{dir: s.name, hash: h, record: r}
	err := e.mount.use(func(i *cephfs.MountInfo) (err error) {
		snap.created, err = snapTime(i, s.path()+"/.snap/"+snapName(h))
		return err
	})
	if is(err, notFound) {
		err = errs.Errorf(errs.Busy, "snapshot %s was deleted by another controller", errs.Quote(name))
	}
	return snap, err
}

// DeleteSnapshot implements volume.Snapshots. Busy: copies of it go on.
// Precondition: volumes show it. The last snapshot of a deleted volume takes the
// rest of its subvolume with it.
func (e *FS) DeleteSnapshot(ctx context.Context, id volume.SnapshotID) error {
	s, own := parseFSSnapshotID(id)
	if !own {
		return nil
	}
	_, err := mutate(ctx, e.Connection, "delete snapshot "+string(id), []string{"name:" + s.volume}, func() (struct{}, error) { return struct{}{}, e.deleteSnapshot(id) })
	return err
}

func (e *FS) deleteSnapshot(id volume.SnapshotID) error {
	s, err := e.findSnapshot(id)
	if errs.KindOf(err) == errs.NotFound {
		e.index.dropSnapshot(id)
		return nil
	}
	if err != nil {
		return err
	}
	for _, v := range e.index.list("", 0) {
		if v.ReadOnly && v.Source.Snapshot == id {
			return errs.Errorf(errs.Precondition, "snapshot %s is shown by volume %s; delete that volume first", id, v.ID)
		}
	}
	for _, name := range e.leftOut {
		if err := e.checkNotShown(id, name); err != nil {
			return err
		}
	}
	if err := e.manager.removeSnapshot(s.dir, snapName(s.hash)); err != nil {
		return err
	}
	crashpoint.Hit("delete-snapshot.removed")
	e.index.dropSnapshot(id)
	return ignoreMissing(e.mount.use(func(i *cephfs.MountInfo) error {
		return explain(i.RemoveXattr("/"+s.dir, attrSnapPrefix+s.hash), "remove the record of snapshot %s", id)
	}))
}

// checkNotShown refuses the deletion of a snapshot that a subvolume can show
// without being in the index. One with files of its own shows none.
func (e *FS) checkNotShown(id volume.SnapshotID, name string) error {
	return ignoreMissing(e.mount.use(func(i *cephfs.MountInfo) error {
		s := subvolume{name: name, snapRecords: map[string]fsSnapRecord{}}
		damage := s.load(i)
		switch {
		case damage == nil && s.record != nil && s.record.Shows != nil && s.record.FromSnap == id:
			return errs.Errorf(errs.Precondition, "snapshot %s is shown by subvolume %s; delete that volume first", id, name)
		case !errors.Is(damage, errDamaged):
			return damage
		}
		files, err := list(i, s.content())
		if err != nil || len(files) > 0 {
			return err
		}
		return errs.Errorf(errs.Precondition, "subvolume %s can show snapshot %s: %w", name, id, damage)
	}))
}

// GetSnapshot implements volume.Snapshots.
func (e *FS) GetSnapshot(ctx context.Context, id volume.SnapshotID) (volume.Snapshot, error) {
	return call(ctx, e.Connection, "get snapshot "+errs.Quote(string(id)), func() (volume.Snapshot, error) { return e.readSnapshot(id) })
}

func (e *FS) readSnapshot(id volume.SnapshotID) (volume.Snapshot, error) {
	s, err := e.findSnapshot(id)
	if err != nil {
		return volume.Snapshot{}, err
	}
	return e.snapshot(s), nil
}

// ListSnapshots implements volume.Snapshots.
func (e *FS) ListSnapshots(ctx context.Context, query volume.SnapshotQuery) ([]volume.Snapshot, error) {
	if ctx.Err() != nil {
		return nil, late(ctx, "list snapshots")
	}
	return e.index.listSnapshots(query), nil
}

// findSnapshot returns a snapshot, whose volume can be deleted. NotFound: it does
// not exist.
func (e *FS) findSnapshot(id volume.SnapshotID) (fsSnapshot, error) {
	missing := errs.Errorf(errs.NotFound, "snapshot %s does not exist", errs.Quote(string(id)))
	want, own := parseFSSnapshotID(id)
	if !own || want.fs != e.id {
		return fsSnapshot{}, missing
	}
	s, err := e.mount.inspect(imageName(want.volume))
	if is(err, notFound) {
		return fsSnapshot{}, missing
	}
	if err != nil {
		return fsSnapshot{}, err
	}
	r, recorded := s.snapRecords[want.hash]
	if !recorded {
		return fsSnapshot{}, missing
	}
	found := fsSnapshot{dir: s.name, hash: want.hash, record: r}
	err = e.mount.use(func(i *cephfs.MountInfo) (err error) {
		found.created, err = snapTime(i, s.path()+"/.snap/"+snapName(want.hash))
		return err
	})
	if is(err, notFound) || err == nil && found.created != want.created {
		return fsSnapshot{}, missing
	}
	return found, err
}
