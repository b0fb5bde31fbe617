package node

import (
	"context"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/volume"
)

// UnstageRequest requests to unstage a volume.
type UnstageRequest struct {
	Volume  volume.ID
	Staging string
}

// Unstage unstages a volume. It is idempotent. After nil, this machine has no
// device of the volume. Precondition: the volume is published or in use, as the
// message says.
func (m *Manager) Unstage(ctx context.Context, r UnstageRequest) error {
	ctx, done, err := m.change(ctx, r.Volume)
	if err != nil {
		return err
	}
	defer done()
	rec, ok, err := m.records.stage(ctx, r.Volume)
	switch {
	case err != nil:
		return err
	case !ok:
		return m.unstageUnrecorded(ctx, r)
	case rec.Staging != r.Staging:
		return nil
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

// The record goes last.
func (m *Manager) unstage(ctx context.Context, id volume.ID, rec stageRecord) error {
	if err := m.undoStage(ctx, id, rec); err != nil {
		return err
	}
	if err := m.records.deleteStage(ctx, id); err != nil {
		return err
	}
	m.secrets.Delete(id)
	crashpoint.Hit("unstage.recorded")
	return nil
}

func (m *Manager) undoStage(ctx context.Context, id volume.ID, rec stageRecord) error {
	s, err := m.source(rec.Locator, rec.mounted)
	if err != nil {
		return err
	}
	s.target.Volume = id
	return s.undoStage(ctx, rec.Staging)
}

func (s source) undoStage(ctx context.Context, staging string) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.unmount(ctx, staging); err != nil {
		return err
	}
	crashpoint.Hit("unstage.unmounted")
	if err := s.awaitCheck(ctx); err != nil {
		return err
	}
	if err := s.detach(ctx); err != nil {
		return err
	}
	crashpoint.Hit("unstage.detached")
	return nil
}

// unstageUnrecorded: after the loss of the store, kernel and attachers still
// know the device.
func (m *Manager) unstageUnrecorded(ctx context.Context, r UnstageRequest) error {
	s, ok, err := m.heldDevice(ctx, r.Volume, r.Staging)
	if err != nil || !ok {
		return err
	}
	staged, err := m.isStagedUnrecorded(ctx, r, s.target.Device)
	if err != nil || !staged {
		return err
	}
	return s.undoStage(ctx, r.Staging)
}

// isStagedUnrecorded: the file system is mounted at the path, or the block
// device, which is not visible there, is unused. Precondition: it is published.
func (m *Manager) isStagedUnrecorded(ctx context.Context, r UnstageRequest, d Device) (bool, error) {
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
