package node

import (
	"context"
	"errors"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// UnstageRequest asks to undo a stage.
type UnstageRequest struct {
	Volume  volume.ID
	Staging string
}

// Unstage undoes a stage; one that is not there is no error. On return nothing
// on this machine is bound to the volume. Precondition: it is published still,
// or somebody holds it; the message says who.
func (m *Manager) Unstage(ctx context.Context, r UnstageRequest) error {
	unlock, err := m.lock(ctx, r.Volume)
	if err != nil {
		return err
	}
	defer unlock()
	rec, ok, err := m.records.stage(ctx, r.Volume)
	switch {
	case err != nil:
		return err
	case !ok:
		return m.unstageUnknown(ctx, r)
	case rec.Staging != r.Staging:
		return nil // it is not staged there
	}
	live, err := m.livePublishes(ctx, r.Volume)
	if err != nil {
		return err
	}
	if len(live) > 0 {
		return errs.Errorf(errs.Precondition, "volume %s is still published at %s; unpublish it first", r.Volume, live[0].Target)
	}
	return m.unstage(ctx, r.Volume, rec)
}

// unstage takes a volume from wherever it is to nothing.
func (m *Manager) unstage(ctx context.Context, id volume.ID, rec stageRecord) error {
	s, err := m.source(rec.Locator, rec.mounted)
	if err != nil {
		return err
	}
	release, err := s.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	rec.State = undoing
	if err := m.records.putStage(ctx, id, rec); err != nil {
		return err
	}
	crashpoint.Hit("unstage.intent")
	if err := s.takeDown(ctx, rec.Staging); err != nil {
		return err
	}
	crashpoint.Hit("unstage.unmounted")
	if err := s.detach(ctx); err != nil {
		return err
	}
	crashpoint.Hit("unstage.detached")
	if err := m.records.dropStage(ctx, id); err != nil {
		return err
	}
	crashpoint.Hit("unstage.recorded")
	return nil
}

// takeDown unmounts the volume from a path, whatever it is bound to now: the
// volume's file, and one that was deleted under it.
func (s source) takeDown(ctx context.Context, path string) error {
	release, err := s.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	for {
		v, err := s.look(ctx)
		if err != nil || v.Device.IsZero() {
			return err
		}
		if _, there, err := mountAt(ctx, path, v.Device); err != nil || !there {
			return ignoreForeign(err)
		}
		if err := unmountAll(ctx, path, v.Device); err != nil {
			return err
		}
	}
}

// ignoreForeign: what somebody else mounted where the volume is not is not in
// the way of taking the volume down.
func ignoreForeign(err error) error {
	if errors.Is(err, errs.Precondition) {
		return nil
	}
	return err
}

// unstageUnknown undoes a stage that no record tells of, as after the store was
// lost: the kernel and the attachers still know the device.
func (m *Manager) unstageUnknown(ctx context.Context, r UnstageRequest) error {
	s, ok, err := m.unrecorded(ctx, r.Volume)
	if err != nil || !ok {
		return err
	}
	staged, err := m.isStagedUnknown(ctx, r, s.target.Device)
	if err != nil || !staged {
		return err
	}
	rec := stageRecord{
		Locator: access.Encode(s.target.Locator), Staging: r.Staging, State: undoing,
		mounted: mounted{Device: s.target.Device, Boot: m.boot},
	}
	return m.unstage(ctx, r.Volume, rec)
}

// isStagedUnknown reports whether what no record tells of is staged at a path: a
// file system that is mounted there, or a block device, which shows nowhere
// where it is staged, that nobody uses. Precondition: it is published still.
func (m *Manager) isStagedUnknown(ctx context.Context, r UnstageRequest, d Device) (bool, error) {
	here, there, err := mountAt(ctx, r.Staging, d)
	if ignoreForeign(err) != nil {
		return false, err
	}
	mounts, err := mountsOf(ctx, d)
	if err != nil {
		return false, err
	}
	for _, e := range mounts {
		if there && e.Target != here.Target || bindsNode(e, d) {
			return false, errs.Errorf(errs.Precondition, "volume %s is still published at %s; unpublish it first", r.Volume, e.Target)
		}
	}
	return there || len(mounts) == 0, nil
}

// unrecorded finds a volume that is attached though nothing on record says so.
func (m *Manager) unrecorded(ctx context.Context, id volume.ID) (source, bool, error) {
	for _, at := range m.config.Attachers {
		held, err := at.Held(ctx)
		if errors.Is(err, errs.Unavailable) {
			continue // no storage, so nothing of it is held
		}
		if err != nil {
			return source{}, false, err
		}
		for _, h := range held {
			if h.Volume == id && h.Locator != nil {
				return source{attacher: at, target: Target{Locator: h.Locator, Device: h.Device}}, true, nil
			}
		}
	}
	return source{}, false, nil
}
