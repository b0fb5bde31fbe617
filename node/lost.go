package node

import (
	"context"
	"fmt"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/holders"
	"github.com/cleatproject/cleat/volume"
)

// errLost is for a stage whose device never works again, such as the mount of a
// client that Ceph has evicted.
func errLost(rec stageRecord, at staged, remedy string) error {
	return errs.Errorf(errs.Precondition, "the device staged at %s does not work any more and cannot be replaced: %w; %s", rec.Staging, at.info.Problem, remedy)
}

// removeLost removes a stage whose device is Lost, so that Attach makes another.
// Precondition: the volume is published, or a process uses it.
func (m *Manager) removeLost(ctx context.Context, id volume.ID, rec stageRecord, at staged) error {
	live, err := m.livePublishes(ctx, id)
	if err != nil {
		return err
	}
	if len(live) > 0 {
		return errLost(rec, at, fmt.Sprintf("it is published at %s: delete the pods that use the volume", live[0].Target))
	}
	e, isMounted, err := mountAt(ctx, rec.Staging, at.info.Device)
	if err != nil {
		return err
	}
	if isMounted {
		// The kernel refuses to unmount what is in use here, but not what a container
		// has a mount of its own of.
		if users, found := holders.UsersOfFileSystem(ctx, uint32(e.Major), uint32(e.Minor)); found {
			return errLost(rec, at, "it is used by "+users)
		}
	}
	rec.Lost = true
	if err := m.records.putStage(ctx, id, rec); err != nil {
		return err
	}
	if err := m.undoStage(ctx, id, rec); err != nil {
		return fmt.Errorf("remove the device staged at %s, which does not work any more: %w", rec.Staging, err)
	}
	m.log.WarnContext(ctx, "removed a stage that did not work any more", "volume", id, "path", rec.Staging, "err", at.info.Problem)
	return nil
}

// restageLost replaces the stage of a publish if its device is Lost: kubelets do
// not repeat NodeStageVolume while a pod of the volume is on the node. The record
// stays if staging fails, so that the next call continues.
func (m *Manager) restageLost(ctx context.Context, r PublishRequest, capability storedCapability) error {
	rec, ok, err := m.records.stage(ctx, r.Volume)
	if err != nil || !ok || rec.State != ready || rec.Staging != r.Staging {
		return err // admit reports the rest
	}
	at, err := m.findStage(ctx, rec)
	isLost := at.info.Presence == Lost
	if !isLost && (err != nil || at.live || !rec.Lost) {
		return nil
	}
	if !capability.equal(rec.Capability) {
		return errs.Errorf(errs.Precondition, "volume %s must be staged again, and this publish has a different %s than its stage; unstage it first", r.Volume, rec.Capability.differs(capability))
	}
	if isLost {
		if err := m.removeLost(ctx, r.Volume, rec, at); err != nil {
			return err
		}
	}
	s := StageRequest{Volume: r.Volume, Staging: r.Staging, Capability: r.Capability, Secrets: r.Secrets}
	if stored, ok := m.secrets.Load(r.Volume); ok && len(s.Secrets) == 0 {
		s.Secrets = stored.(map[string]string)
	}
	if err := m.stage(ctx, s, rec, true); err != nil {
		return fmt.Errorf("stage volume %s again, whose device did not work any more: %w", r.Volume, err)
	}
	if rec, _, err = m.records.stage(ctx, r.Volume); err != nil { // stage can have changed it
		return err
	}
	if at, err = m.findStage(ctx, rec); err != nil {
		return err
	}
	rec.Lost = true // adoptStage clears it
	return m.adoptStage(ctx, r.Volume, rec, at)
}
