package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
)

// verify compares the driver's lists, the pool's files, the kernel's mounts and
// loop devices with the workers' models. With bytes set it also reads all data
// of volumes in use.
func (s *Instance) verify(ctx context.Context, bytes bool) error {
	lists := errors.Join(s.verifyVolumes(ctx), s.verifySnapshots(ctx))
	seen, err := s.verifyPool(ctx)
	return errors.Join(lists, err, s.verifyMounts(seen), s.verifyLoops(seen), s.verifyFiles(seen), s.verifyData(bytes))
}

func (s *Instance) controller() csi.ControllerClient { return s.workers[0].controller() }

func (s *Instance) verifyVolumes(ctx context.Context) error {
	answer, err := s.controller().ListVolumes(ctx, &csi.ListVolumesRequest{})
	if err != nil {
		return fmt.Errorf("ListVolumes: %w", err)
	}
	listed := map[string]*csi.ListVolumesResponse_Entry{}
	for _, e := range answer.GetEntries() {
		listed[e.GetVolume().GetVolumeId()] = e
	}
	var errs []error
	unconfirmed := 0
	for _, w := range s.workers {
		for _, d := range w.disks {
			entry, ok := listed[d.id]
			delete(listed, d.id)
			switch gone := w.open != nil && w.open.goneVolume == d.id; {
			case !ok && !gone:
				errs = append(errs, fmt.Errorf("acknowledged volume %s is not listed", d))
			case ok:
				errs = append(errs, w.verifyVolume(d, entry))
			}
		}
		if w.open != nil {
			unconfirmed += w.open.newVolumes
		}
	}
	if len(listed) > unconfirmed {
		errs = append(errs, fmt.Errorf("%d volumes are listed without an owner, at most %d can come from unanswered calls: %v", len(listed), unconfirmed, listed))
	}
	return errors.Join(errs...)
}

func (w *worker) verifyVolume(d *disk, entry *csi.ListVolumesResponse_Entry) error {
	var errs []error
	if size := entry.GetVolume().GetCapacityBytes(); size < d.size {
		errs = append(errs, fmt.Errorf("volume %s was acknowledged with %d bytes and has %d", d, d.size, size))
	}
	var nodes []string
	if d.granted {
		nodes = []string{NodeID}
	}
	unsure := w.open != nil && w.open.granting == d.id
	if got := entry.GetStatus().GetPublishedNodeIds(); !unsure && !slices.Equal(got, nodes) {
		errs = append(errs, fmt.Errorf("volume %s is granted to %q, want %q", d, got, nodes))
	}
	return errors.Join(errs...)
}

func (s *Instance) verifySnapshots(ctx context.Context) error {
	answer, err := s.controller().ListSnapshots(ctx, &csi.ListSnapshotsRequest{})
	if err != nil {
		return fmt.Errorf("ListSnapshots: %w", err)
	}
	listed := map[string]*csi.Snapshot{}
	for _, e := range answer.GetEntries() {
		listed[e.GetSnapshot().GetSnapshotId()] = e.GetSnapshot()
	}
	var errs []error
	unconfirmed := 0
	for _, w := range s.workers {
		for _, p := range w.snapshots {
			snap, ok := listed[p.id]
			delete(listed, p.id)
			switch gone := w.open != nil && slices.Contains(w.open.goneSnapshots, p.id); {
			case !ok && !gone:
				errs = append(errs, fmt.Errorf("acknowledged snapshot %s %s is not listed", p.name, p.id))
			case ok && (snap.GetGroupSnapshotId() != p.group || snap.GetSourceVolumeId() != p.source || snap.GetSizeBytes() != p.size):
				errs = append(errs, fmt.Errorf("snapshot %s changed: %v", p.name, snap))
			}
		}
		if w.open != nil {
			unconfirmed += w.open.newSnapshots
		}
	}
	if len(listed) > unconfirmed {
		errs = append(errs, fmt.Errorf("%d snapshots are listed without an owner, at most %d can come from unanswered calls", len(listed), unconfirmed))
	}
	return errors.Join(errs...)
}

func (s *Instance) verifyData(all bool) error {
	const some = 3
	return s.each(func(w *worker) error {
		var errs []error
		for _, d := range slices.Concat(w.disks, w.inline) {
			if !d.published || w.open != nil && w.open.publishing == d.id {
				continue
			}
			most := some
			if all {
				most = len(d.data)
			}
			errs = append(errs, w.readSome(d, most))
		}
		return errors.Join(errs...)
	})
}

// verifyRest attaches every volume that is not in use, and a volume restored
// from every snapshot, and compares their data.
func (w *worker) verifyRest() error {
	for _, p := range slices.Clone(w.snapshots) {
		d := &disk{name: w.name("check"), block: p.block, fsType: p.fsType, size: p.size, data: p.data}
		source := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: p.id}}}
		if err := w.createDisk(d, source, nil); err != nil {
			return err
		}
		err := w.readAll(d)
		if err != nil {
			return fmt.Errorf("restored from %s: %w", p.name, err)
		}
		if err := w.remove(d); err != nil {
			return err
		}
	}
	for _, d := range w.disks {
		if err := w.readAll(d); err != nil {
			return err
		}
	}
	return nil
}

// readAll attaches a volume as far as needed, compares its data, and restores
// its previous state.
func (w *worker) readAll(d *disk) error {
	var undo []func(*disk) error
	for _, s := range []struct {
		done     bool
		do, back func(*disk) error
	}{{d.granted, w.grant, w.revoke}, {d.staged, w.stage, w.unstage}, {d.published, w.publish, w.unpublish}} {
		if s.done {
			continue
		}
		if err := s.do(d); err != nil {
			return err
		}
		undo = append([]func(*disk) error{s.back}, undo...)
	}
	if err := w.read(d); err != nil {
		return err
	}
	for _, back := range undo {
		if err := back(d); err != nil {
			return err
		}
	}
	return nil
}
