//go:build ceph

package ceph

import (
	"context"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/volume"
)

// Create implements volume.Engine. It notes first that it begins; the record
// comes last: with it the volume exists. A copy goes on after the call.
func (e *FS) Create(ctx context.Context, req volume.CreateRequest) (volume.Volume, error) {
	p, err := planFS(req, e.cluster.ID, e.name)
	if err != nil {
		return volume.Volume{}, err
	}
	if err := notForeign(p.Source.Volume, "clone it"); err != nil {
		return volume.Volume{}, err
	}
	locks := []string{"name:" + hash(p.Name)}
	if from := sourceHash(p.Source); from != "" && from != hash(p.Name) {
		locks = append(locks, "name:"+from)
	}
	return mutate(ctx, e.Connection, "create volume "+errs.Quote(p.Name), locks, func() (volume.Volume, error) { return e.create(ctx, p) })
}

// sourceHash returns the hash of the name of the volume that a source is or was
// of; "" without a source.
func sourceHash(s volume.Source) string {
	if v, ok := parseFSID(s.Volume); ok {
		return v.hash
	}
	snap, _ := parseFSSnapshotID(s.Snapshot)
	return snap.volume
}

func (e *FS) create(ctx context.Context, p fsPlan) (v volume.Volume, err error) {
	name := imageName(hash(p.Name))
	found, err := e.mount.inspect(name)
	if ignoreMissing(err) != nil {
		return volume.Volume{}, err
	}
	if found != nil && found.record != nil && !found.record.hasFailed() {
		if err := e.pools[0].endCreation(hash(p.Name)); err != nil {
			return volume.Volume{}, err
		}
		return e.existing(p, found)
	}
	if err := e.checkRecorded(found); err != nil {
		return volume.Volume{}, err
	}
	from, err := e.originOf(p.Source)
	if err != nil {
		return volume.Volume{}, err
	}
	size, err := possibleFS(newvolume.Size(p.Size, "", from, granule))
	if err != nil {
		return volume.Volume{}, err
	}
	if found != nil && found.uuid != "" { // of an interrupted creation, or a failed copy
		if err := e.manager.remove(name); err != nil {
			return volume.Volume{}, err
		}
		if err := e.mount.removeUnfinished(name); err != nil {
			return volume.Volume{}, err
		}
	}
	if err := e.pools[0].beginCreation(hash(p.Name), uuid.Must(uuid.NewV7()).String()); err != nil {
		return volume.Volume{}, err
	}
	crashpoint.Hit("create.begun")
	record := fsRecord{
		Name: p.Name, Created: time.Now().UTC(), FromVolume: p.Source.Volume, FromSnap: p.Source.Snapshot,
		Parameters: p.Parameters, Ephemeral: p.Ephemeral,
	}
	switch {
	case from != nil && p.showsSnapshot():
		record.Shows = &from.At
		fallthrough
	case from == nil:
		err = whileBusy(ctx, func() error { return e.manager.make(name, size, p.settings.pool) })
	default:
		defer func() {
			if err != nil && from.At.Snap == "" { // no repeat has to follow
				e.copies.add(copyJob{target: name, from: from.At.Dir, snap: cloneSnapName(hash(p.Name))})
			}
		}()
		record.Copy, err = e.startCopy(ctx, from, p, size)
	}
	if err != nil {
		return volume.Volume{}, p.explainPool(err)
	}
	crashpoint.Hit("create.made")
	return e.finish(p, name, record)
}

// checkRecorded refuses a subvolume that has the name of a volume, and neither a
// record nor a creation that was interrupted: this program did not make its
// content. s can be nil.
func (e *FS) checkRecorded(s *subvolume) error {
	if s == nil || s.record != nil || s.uuid == "" {
		return nil
	}
	begun, err := e.pools[0].creation(strings.TrimPrefix(s.name, volumePrefix))
	if err == nil && begun == "" {
		err = errs.Errorf(errs.Precondition, "subvolume %s of group %s has the name of a volume and no record of this driver, as one that was restored by hand has, so that it is neither used nor removed; copy its files into a new volume and remove it (docs/ceph.md, Restore an image)", s.name, e.manager.group)
	}
	return err
}

// finish writes the record of a new subvolume.
func (e *FS) finish(p fsPlan, name string, r fsRecord) (volume.Volume, error) {
	s, err := e.mount.inspect(name)
	if err != nil {
		return volume.Volume{}, err
	}
	if s.uuid == "" || s.isUnclear {
		return volume.Volume{}, errs.Errorf(errs.Busy, "subvolume %s does not have one directory for its content: Ceph's manager was killed during its creation, or it was removed; repeat the call", name)
	}
	r.UUID = s.uuid
	if err := e.mount.setRecord(name, r); err != nil {
		return volume.Volume{}, err
	}
	crashpoint.Hit("create.recorded")
	if err := e.pools[0].endCreation(hash(p.Name)); err != nil {
		return volume.Volume{}, err
	}
	if s, err = e.mount.inspect(name); err != nil {
		return volume.Volume{}, err
	}
	if s.record == nil || s.record.hasFailed() {
		return volume.Volume{}, errs.Errorf(errs.Busy, "subvolume %s was replaced by another controller", name)
	}
	if r.Copy != nil {
		e.copies.add(copyJob{target: name, from: r.Copy.From, snap: r.Copy.Snap})
	}
	return e.existing(p, s)
}

func (e *FS) existing(p fsPlan, s *subvolume) (volume.Volume, error) {
	v, err := e.withProgress(s)
	if err != nil {
		return v, err
	}
	e.index.put(v)
	return v, newvolume.Matches(p.CreateRequest, v, s.record.Parameters)
}

func (r fsRecord) hasFailed() bool { return r.Copy != nil && r.Copy.Failed != "" }

// fsOrigin is the source of a new volume: without At.Snap, a volume itself.
type fsOrigin = newvolume.Origin[fsContent]

func (e *FS) originOf(s volume.Source) (*fsOrigin, error) {
	return newvolume.OriginOf(s, func(id volume.ID) (fsOrigin, error) {
		from, err := e.find(id)
		if err == nil {
			err = from.checkContent(id)
		}
		if err != nil {
			return fsOrigin{}, err
		}
		return fsOrigin{Size: from.size, Content: volume.Filesystem, FSType: FSType, At: fsContent{Dir: from.name, UUID: from.uuid}}, nil
	}, func(id volume.SnapshotID) (fsOrigin, error) {
		snap, err := e.findSnapshot(id)
		return fsOrigin{Size: snap.record.Size, Content: volume.Filesystem, FSType: FSType, At: snap.content()}, err
	})
}

// checkContent refuses the use of a volume whose directory does not have its
// content.
func (s *subvolume) checkContent(id volume.ID) error {
	switch {
	case s.record.hasFailed():
		return errs.Errorf(errs.Precondition, "volume %s has no complete content: %s; delete it", id, s.record.Copy.Failed)
	case s.record.Copy != nil:
		return errs.Errorf(errs.Busy, "volume %s is being copied; repeat the call when it is complete", id)
	case s.record.Shows != nil:
		return errs.Errorf(errs.Precondition, "volume %s shows the snapshot %s and has no content of its own; use the snapshot as the source", id, s.record.FromSnap)
	}
	return nil
}

// explainPool names the parameter of a data pool that does not exist.
func (p fsPlan) explainPool(err error) error {
	if p.settings.pool != "" && is(err, syscall.EINVAL) {
		return errs.Errorf(errs.Invalid, "%s %s is not a data pool of the file system: %w", keyPool, errs.Quote(p.settings.pool), err)
	}
	return err
}

const (
	busyInterval    = 50 * time.Millisecond // doubles up to
	maxBusyInterval = time.Second
)

// whileBusy repeats a command of the manager while the removal of the files of
// an earlier volume of the name, or the end of a copy, prevents it. Since Squid
// the manager also refuses copies while it makes as many as it can.
func whileBusy(ctx context.Context, command func() error) error {
	for pause := (backoff.Backoff{First: busyInterval, Most: maxBusyInterval}); ; {
		err := command()
		if !is(err, syscall.EAGAIN) || pause.Wait(ctx) != nil {
			return err
		}
	}
}
