package node

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// StageRequest asks to make a volume ready on this node: its file system
// mounted at Staging, or its block device attached.
type StageRequest struct {
	Volume     volume.ID
	Staging    string // an existing directory
	Capability volume.Capability
	// Locator leads to the volume; nil: Config.Locate is asked.
	Locator access.Access
}

// Stage makes a volume ready, or finds that it is. NotFound: there is no such
// volume. Exists: it is staged at this path in another way. Precondition: it is
// staged at another path, or the volume or the path are not fit for it. After
// an error nothing is left.
func (m *Manager) Stage(ctx context.Context, r StageRequest) error {
	unlock, err := m.lock(ctx, r.Volume)
	if err != nil {
		return err
	}
	defer unlock()
	rec, known, err := m.wantedStage(ctx, r)
	if err != nil {
		return err
	}
	if known {
		done, err := m.settleEarlier(ctx, r.Volume, rec)
		if err != nil || done {
			return err
		}
	}
	rec.State = making
	return m.stage(ctx, r, rec)
}

// wantedStage returns the record that the request leads to, and whether there
// is one of the volume already.
func (m *Manager) wantedStage(ctx context.Context, r StageRequest) (rec stageRecord, known bool, err error) {
	capability, err := keep(r.Capability)
	if err != nil {
		return rec, false, err
	}
	_, known, err = m.records.stage(ctx, r.Volume)
	if err != nil {
		return rec, false, err
	}
	l, err := m.locate(ctx, r)
	if err != nil {
		return rec, false, err
	}
	return stageRecord{
		Locator: access.Encode(l), Staging: r.Staging, Capability: capability, ReadOnly: wantsReadOnly(r.Capability),
		mounted: mounted{Boot: m.boot, Since: time.Now()},
	}, known, nil
}

// locate returns the locator of the request, which has to be the volume's own
// where that can be told, or finds it.
func (m *Manager) locate(ctx context.Context, r StageRequest) (access.Access, error) {
	if r.Locator != nil {
		return r.Locator, m.checkLocator(ctx, r)
	}
	if rec, ok, err := m.records.stage(ctx, r.Volume); err != nil || ok {
		if err != nil {
			return nil, err
		}
		return locator(rec.Locator)
	}
	if m.config.Locate == nil {
		return nil, errs.Errorf(errs.Invalid, "volume_context does not say where volume %s is; pass on the one that CreateVolume returned", r.Volume)
	}
	return m.config.Locate(ctx, r.Volume)
}

// checkLocator refuses the locator of another volume. A volume that nobody
// knows here may be one of another process, or gone: attaching it tells.
func (m *Manager) checkLocator(ctx context.Context, r StageRequest) error {
	if m.config.Locate == nil {
		return nil
	}
	own, err := m.config.Locate(ctx, r.Volume)
	switch {
	case errors.Is(err, errs.NotFound):
		return nil
	case err != nil:
		return err
	case !access.Equal(own, r.Locator):
		return errs.Errorf(errs.Invalid, "volume_context is not that of volume %s; pass on the one that CreateVolume returned", r.Volume)
	}
	return nil
}

// settleEarlier deals with what an earlier stage of the volume left, so that
// the wanted one can follow. Done: the earlier one is the wanted one.
func (m *Manager) settleEarlier(ctx context.Context, id volume.ID, wanted stageRecord) (done bool, err error) {
	have, ok, err := m.records.stage(ctx, id)
	if err != nil || !ok {
		return false, err
	}
	if have.State != settled {
		back, err := m.takeBackUnstage(ctx, id, have, wanted)
		if err != nil || back {
			return back, err
		}
		return false, m.clear(ctx, id, have, wanted)
	}
	live, err := m.isStaged(ctx, have)
	if err != nil || !live {
		return false, err // lost, by a reboot for instance: to be made again
	}
	switch {
	case have.same(wanted):
		return true, nil
	case have.Staging != wanted.Staging:
		return false, errs.Errorf(errs.Precondition, "volume %s is staged at %s already and can be staged at one path only; unstage it there first", id, have.Staging)
	case !maps.Equal(have.Locator, wanted.Locator):
		return false, errs.Errorf(errs.Exists, "volume %s is staged with another volume_context; unstage it first, or pass on the one that CreateVolume returned", id)
	}
	return false, errs.Errorf(errs.Exists, "volume %s is staged at %s already with another %s; unstage it first", id, have.Staging, have.Capability.differs(wanted.Capability))
}

func (r stageRecord) same(o stageRecord) bool {
	return r.Staging == o.Staging && r.Capability.equal(o.Capability) && maps.Equal(r.Locator, o.Locator)
}

// takeBackUnstage makes a stage valid again whose unstage was refused before it
// had undone anything: somebody held the mount, and may hold it still.
func (m *Manager) takeBackUnstage(ctx context.Context, id volume.ID, have, wanted stageRecord) (bool, error) {
	if have.State != undoing || !have.same(wanted) {
		return false, nil
	}
	if live, err := m.isStaged(ctx, have); err != nil || !live {
		return false, nil // whatever is wrong with it, it is put away
	}
	have.State = settled
	return true, m.records.putStage(ctx, id, have)
}

// clear puts away a stage that was cut half-way and never acknowledged. What
// is published stays, and a stage of the same kind goes on below it.
func (m *Manager) clear(ctx context.Context, id volume.ID, have, wanted stageRecord) error {
	live, err := m.livePublishes(ctx, id)
	switch {
	case err != nil:
		return err
	case len(live) == 0:
		return m.unstage(ctx, id, have)
	case !have.same(wanted):
		return errs.Errorf(errs.Precondition, "volume %s is still published at %s and cannot be staged with another capability; unpublish it first", id, live[0].Target)
	}
	return nil
}

// isStaged asks the kernel whether a stage is as it was acknowledged.
func (m *Manager) isStaged(ctx context.Context, rec stageRecord) (bool, error) {
	s, err := m.source(rec.Locator, rec.mounted)
	if err != nil {
		return false, err
	}
	v, err := s.look(ctx)
	if err != nil || v.Device.IsZero() {
		return false, err
	}
	if v.Backing == Replaced {
		return false, errs.Errorf(errs.Precondition, "the device that is staged at %s is no longer the volume's: %w; unstage the volume first", rec.Staging, v.Problem)
	}
	if rec.Capability.Block {
		return true, nil
	}
	_, there, err := mountAt(ctx, rec.Staging, v.Device)
	return there, err
}

// stage brings a volume from nothing, or from whatever there is, to staged.
func (m *Manager) stage(ctx context.Context, r StageRequest, rec stageRecord) (err error) {
	if err := m.checkPath("staging_target_path", r.Staging); err != nil {
		return err
	}
	if err := checkDirectory("staging_target_path", r.Staging); err != nil {
		return err
	}
	if err := m.records.putStage(ctx, r.Volume, rec); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			m.rollBackStage(ctx, r.Volume, rec)
		}
	}()
	crashpoint.Hit("stage.intent")
	s, err := m.source(rec.Locator, rec.mounted)
	if err != nil {
		return err
	}
	release, err := s.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	use := Use{Block: rec.Capability.Block, ReadOnly: rec.Capability.Block && rec.Capability.readOnly()}
	attachment, err := s.attacher.Attach(ctx, s.target, use)
	if err != nil {
		return err
	}
	defer attachment.File.Close()
	crashpoint.Hit("stage.attached")
	rec.Device = attachment.Device
	if err := m.records.putStage(ctx, r.Volume, rec); err != nil {
		return err
	}
	crashpoint.Hit("stage.device-recorded")
	if !rec.Capability.Block {
		g := mounting{attachment: attachment, path: r.Staging, capability: r.Capability, readOnly: rec.ReadOnly}
		fsType, err := g.run(ctx)
		if err != nil {
			return err
		}
		rec.FSType = string(fsType)
	}
	rec.State = settled
	if err := m.records.putStage(ctx, r.Volume, rec); err != nil {
		return err
	}
	crashpoint.Hit("stage.recorded")
	return nil
}

// rollBackStage undoes a stage that failed. Where publishes of an earlier stage
// still live on the device, that stays, and the record with it.
func (m *Manager) rollBackStage(ctx context.Context, id volume.ID, rec stageRecord) {
	ctx, cancel := rollBackContext(ctx)
	defer cancel()
	// What was last recorded may know the device that this copy does not.
	if last, ok, err := m.records.stage(ctx, id); err == nil && ok {
		rec = last
	}
	live, err := m.livePublishes(ctx, id)
	if err == nil && len(live) > 0 {
		rec.State = settled
		err = m.records.putStage(ctx, id, rec)
	} else if err == nil {
		err = m.unstage(ctx, id, rec)
	}
	if err != nil {
		m.log.WarnContext(ctx, "a failed stage could not be undone; unstage or start-up will", "volume", id, "error", err)
	}
}

func checkDirectory(field, path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errs.Errorf(errs.Precondition, "%s %s does not exist; the caller must create it", field, path)
	case err != nil:
		return errs.Errorf(errs.Precondition, "%s %s cannot be used: %w", field, path, err)
	case !info.IsDir():
		return errs.Errorf(errs.Precondition, "%s %s is not a directory", field, path)
	}
	return nil
}
