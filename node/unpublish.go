package node

import (
	"context"

	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
)

// UnpublishRequest asks to undo a publish.
type UnpublishRequest struct {
	Volume volume.ID
	Target string
}

// Unpublish undoes a publish and removes the target; one that is not there is
// no error. Precondition: somebody holds it, or the target holds what the
// volume did not bring.
func (m *Manager) Unpublish(ctx context.Context, r UnpublishRequest) error {
	unlock, err := m.lock(ctx, r.Volume, r.Target)
	if err != nil {
		return err
	}
	defer unlock()
	rec, ok, err := m.records.publish(ctx, r.Target)
	switch {
	case err != nil:
		return err
	case !ok:
		return m.unpublishUnknown(ctx, r)
	case rec.Volume != r.Volume:
		return nil // it is not published there
	}
	return m.unpublish(ctx, r.Target, rec)
}

// unpublish takes a publish from wherever it is to nothing.
func (m *Manager) unpublish(ctx context.Context, target string, rec publishRecord) error {
	rec.State = undoing
	if err := m.records.putPublish(ctx, target, rec); err != nil {
		return err
	}
	crashpoint.Hit("unpublish.intent")
	if err := m.uncover(ctx, target, rec); err != nil {
		return err
	}
	crashpoint.Hit("unpublish.unmounted")
	if err := removeTarget(target); err != nil {
		return err
	}
	crashpoint.Hit("unpublish.target-removed")
	if rec.Capability.Block && rec.ReadOnly {
		if err := m.unprotect(ctx, target, rec); err != nil {
			return err
		}
		crashpoint.Hit("unpublish.unprotected")
	}
	if rec.Ephemeral != nil {
		if err := m.endEphemeral(ctx, rec); err != nil {
			return err
		}
	}
	if err := m.records.dropPublish(ctx, target); err != nil {
		return err
	}
	crashpoint.Hit("unpublish.recorded")
	return nil
}

// uncover unmounts the volume from the target.
func (m *Manager) uncover(ctx context.Context, target string, rec publishRecord) error {
	if rec.Capability.Block {
		d, err := m.deviceOf(ctx, rec)
		if err != nil {
			return err
		}
		return unmountNode(ctx, target, d, m.remembered(rec))
	}
	s, err := m.sourceOf(ctx, rec)
	if err != nil {
		return err
	}
	if s.attacher == nil { // unstaged, so no mount of it is left
		return nil
	}
	return s.takeDown(ctx, target)
}

// unmountNode takes away the device nodes that were bound at a target.
func unmountNode(ctx context.Context, target string, devices ...Device) error {
	there, err := nodeAt(ctx, target, devices...)
	if err != nil || !there {
		return err
	}
	return mount.Unmount(ctx, target)
}

// unprotect lets a block device be written again when the last read-only
// publish of it goes.
func (m *Manager) unprotect(ctx context.Context, target string, rec publishRecord) error {
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
	v, err := s.look(ctx)
	if err != nil || v.Device.IsZero() || !v.ReadOnly {
		return err
	}
	return s.attacher.Protect(ctx, s.target, false)
}

// unpublishUnknown undoes a publish whose target is not on record: as after the
// store was lost, or because the target is called by another name. The target is
// changed only if it shows the volume and is not where the volume is staged.
func (m *Manager) unpublishUnknown(ctx context.Context, r UnpublishRequest) error {
	s, ok, err := m.unrecorded(ctx, r.Volume)
	if err != nil || !ok {
		return err
	}
	d := s.target.Device
	here, mounted, err := mount.At(ctx, r.Target)
	if err != nil || !mounted || !shows(here, d) && !isNode(r.Target, d) {
		return err
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
	return removeTarget(r.Target)
}

// isStageMount reports whether a mount is the stage of a volume. Without a record
// of the stage it is the only mount of the file system: each publish is a second
// one.
func (m *Manager) isStageMount(ctx context.Context, id volume.ID, d Device, e mount.Entry) (bool, error) {
	stage, ok, err := m.records.stage(ctx, id)
	if err != nil {
		return false, err
	}
	if ok {
		return isMountedAs(ctx, stage.Staging, e)
	}
	all, err := mountsOf(ctx, d)
	return shows(e, d) && len(all) == 1, err
}

// isMountedAs reports whether a path, by whatever name, leads to a mount.
func isMountedAs(ctx context.Context, path string, e mount.Entry) (bool, error) {
	at, there, err := mount.At(ctx, path)
	return there && at.ID == e.ID, err
}
