package node

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
)

// UnpublishRequest requests to unpublish a volume.
type UnpublishRequest struct {
	Volume volume.ID
	Target string
}

// Unpublish unpublishes a volume and removes the target. It is idempotent.
// Precondition: the volume is in use, or the target has other files.
func (m *Manager) Unpublish(ctx context.Context, r UnpublishRequest) error {
	ctx, done, err := m.change(ctx, r.Volume)
	if err != nil {
		return err
	}
	defer done()
	rec, ok, err := m.records.publish(ctx, r.Target)
	switch {
	case err != nil:
		return err
	case !ok:
		return m.unpublishUnrecorded(ctx, r)
	case rec.Volume != r.Volume:
		return nil
	}
	return m.unpublish(ctx, r.Target, rec)
}

// The record goes last.
func (m *Manager) unpublish(ctx context.Context, target string, rec publishRecord) error {
	if rec.Inline != nil && rec.State != deleting {
		// The data is lost from here on.
		rec.State = deleting
		if err := m.records.putPublish(ctx, target, rec); err != nil {
			return err
		}
		crashpoint.Hit("unpublish.inline-deleting")
	}
	if err := m.unmountTarget(ctx, target, rec); err != nil {
		return err
	}
	crashpoint.Hit("unpublish.unmounted")
	if err := removeTarget(target); err != nil {
		return err
	}
	crashpoint.Hit("unpublish.target-removed")
	if rec.Capability.Block && rec.ReadOnly {
		if err := m.makeWritable(ctx, target, rec); err != nil {
			return err
		}
		crashpoint.Hit("unpublish.writable")
	}
	if rec.Inline != nil {
		if err := m.deleteInline(ctx, rec); err != nil {
			return err
		}
	}
	if err := m.records.deletePublish(ctx, rec.Volume, target); err != nil {
		return err
	}
	crashpoint.Hit("unpublish.recorded")
	return nil
}

func (m *Manager) unmountTarget(ctx context.Context, target string, rec publishRecord) error {
	if rec.Capability.Block {
		d, err := m.deviceOf(ctx, rec)
		if err != nil {
			return err
		}
		there, err := nodeAt(ctx, target, d, m.recordedDevice(rec))
		if err != nil || !there {
			return err
		}
		return mount.Unmount(ctx, target)
	}
	s, ok, err := m.sourceOf(ctx, rec)
	if err != nil || !ok { // not staged: no mount
		return err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return s.unmount(ctx, target)
}

// The last read-only publish is gone.
func (m *Manager) makeWritable(ctx context.Context, target string, rec publishRecord) error {
	stage, ok, err := m.records.stage(ctx, rec.Volume)
	if err != nil || !ok || stage.Capability.readOnly() {
		return err
	}
	live, err := m.livePublishes(ctx, rec.Volume)
	if err != nil {
		return err
	}
	for _, p := range live {
		if p.ReadOnly && p.Target != target {
			return nil
		}
	}
	s, err := m.source(stage.Locator, stage.mounted)
	if err != nil {
		return err
	}
	info, err := s.inspect(ctx)
	if err != nil || info.Device.IsZero() || !info.ReadOnly {
		return err
	}
	return s.attacher.SetReadOnly(ctx, s.target, false)
}

// The record was deleted or lost, or the target has another name. Only the
// volume's mounts that are not its stage are unmounted; an empty target without
// a mount is removed.
func (m *Manager) unpublishUnrecorded(ctx context.Context, r UnpublishRequest) error {
	here, isMounted, err := mount.At(ctx, r.Target)
	if err != nil {
		return err
	}
	if !isMounted {
		return m.removeUnrecorded(ctx, r)
	}
	s, ok, err := m.heldDevice(ctx, r.Volume, r.Target)
	if err != nil || !ok {
		return err
	}
	d := s.target.Device
	if !isMountOf(here, d) && !isNode(r.Target, d) {
		return nil
	}
	staged, err := m.isStageMount(ctx, r.Volume, d, here)
	if err != nil || staged {
		return err
	}
	publishes, err := m.records.publishesOf(ctx, r.Volume)
	if err != nil {
		return err
	}
	for _, p := range publishes {
		same, err := isMountedAs(ctx, p.Target, here)
		if err != nil {
			return err
		}
		if same {
			return m.unpublish(ctx, p.Target, p.publishRecord)
		}
	}
	if err := mount.Unmount(ctx, r.Target); err != nil {
		return err
	}
	if err := removeTarget(r.Target); err != nil {
		return err
	}
	return s.detachUnknown(ctx)
}

// detachUnknown detaches a block device that only its path identified: Unstage
// cannot find it.
func (s source) detachUnknown(ctx context.Context) error {
	mounts, err := mountsOf(ctx, s.target.Device)
	if err != nil || s.target.Locator != nil || len(mounts) > 0 {
		return err
	}
	return s.detach(ctx)
}

// removeUnrecorded removes an interrupted call's target, as the CSI
// specification requires: an empty directory or file where a volume could have
// been. Paths inside a volume and staging paths stay, without an error.
func (m *Manager) removeUnrecorded(ctx context.Context, r UnpublishRequest) error {
	if m.checkPath("target_path", r.Target) != nil || checkEmpty(r.Target) != nil {
		return nil
	}
	if _, err := os.Lstat(r.Target); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	resolved, err := resolve("target_path", r.Target)
	if err != nil {
		return err
	}
	all, err := m.records.all(ctx)
	if err != nil {
		return err
	}
	for _, v := range all {
		if v.stage != nil && isWithin(resolved, realPath(v.stage.Staging)) {
			return nil
		}
		for _, p := range v.publishes {
			if isWithin(resolved, realPath(p.Target)) {
				return nil
			}
		}
	}
	return removeTarget(r.Target)
}

// Without its record, the only mount is the stage: publishes are additional
// ones.
func (m *Manager) isStageMount(ctx context.Context, id volume.ID, d Device, e mount.Entry) (bool, error) {
	stage, ok, err := m.records.stage(ctx, id)
	if err != nil {
		return false, err
	}
	if ok {
		return isMountedAs(ctx, stage.Staging, e)
	}
	all, err := mountsOf(ctx, d)
	return isMountOf(e, d) && len(all) == 1, err
}

// The path can have any name.
func isMountedAs(ctx context.Context, path string, e mount.Entry) (bool, error) {
	at, there, err := mount.At(ctx, path)
	return there && at.ID == e.ID, err
}
