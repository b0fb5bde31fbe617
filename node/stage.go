package node

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// StageRequest requests to mount a volume's file system at Staging, or to
// attach its block device.
type StageRequest struct {
	Volume     volume.ID
	Staging    string // an existing directory
	Capability volume.Capability
	// Nil means Config.Locate.
	Locator access.Access
	// Format allows to create the capability's file system (ext4 by default) if
	// the device is blank: only the engine knows that it created a blank volume.
	Format bool
	// Secrets of the request: never logged, and stored in memory alone.
	Secrets map[string]string
}

// Stage stages a volume. It is idempotent. NotFound: the volume does not exist.
// Exists: it is staged here with other parameters. Precondition: it is staged
// elsewhere, or the volume or path cannot be used. A stage whose device is Lost
// is replaced if nothing uses it. After an error all effects are rolled back.
func (m *Manager) Stage(ctx context.Context, r StageRequest) error {
	ctx, done, err := m.change(ctx, r.Volume)
	if err != nil {
		return err
	}
	defer done()
	err = m.stageOrRepeat(ctx, r)
	if err == nil && len(r.Secrets) > 0 {
		m.secrets.Store(r.Volume, r.Secrets)
	}
	return err
}

func (m *Manager) stageOrRepeat(ctx context.Context, r StageRequest) error {
	capability, err := newStoredCapability(r.Capability)
	if err != nil {
		return err
	}
	have, recorded, err := m.records.stage(ctx, r.Volume)
	if err != nil {
		return err
	}
	l, err := m.locate(ctx, r, have)
	if err != nil {
		return err
	}
	desired := stageRecord{
		Locator: access.Encode(l), Staging: r.Staging, Capability: capability, ReadOnly: requestsReadOnly(r.Capability),
		State: ready, mounted: mounted{FSType: capability.FSType, Boot: m.boot, Since: time.Now()},
	}
	if !recorded {
		return m.stage(ctx, r, desired, false)
	}
	at, err := m.findStage(ctx, have)
	switch {
	case at.info.Presence == Lost:
		if err := m.removeLost(ctx, r.Volume, have, at); err != nil {
			return err
		}
		return m.stage(ctx, r, desired, false)
	case err != nil:
		return err
	case !at.live || have.State != ready:
		if err := m.replaceStage(ctx, r.Volume, have, desired); err != nil {
			return err
		}
		if have.Boot == m.boot {
			desired.Device = have.Device
		}
		return m.stage(ctx, r, desired, false)
	case !have.same(desired):
		return have.conflict(r.Volume, desired)
	case have.Capability.Block:
		return m.completeBlock(ctx, r, have)
	}
	return nil
}

// completeBlock repeats staging's last effect: a device exists before all its
// settings are applied. A published volume was complete, with a device set up
// for its publishes.
func (m *Manager) completeBlock(ctx context.Context, r StageRequest, rec stageRecord) error {
	live, err := m.livePublishes(ctx, r.Volume)
	if err != nil || len(live) > 0 {
		return err
	}
	return m.stage(ctx, r, rec, true)
}

// locate returns the request's locator, which must be the volume's own if that
// is known, or finds it.
func (m *Manager) locate(ctx context.Context, r StageRequest, have stageRecord) (access.Access, error) {
	switch {
	case r.Locator != nil:
		return r.Locator, m.checkLocator(ctx, r)
	case have.Locator != nil:
		return access.Decode(have.Locator)
	case m.config.Locate != nil:
		return m.config.Locate(ctx, r.Volume)
	}
	return nil, errs.Errorf(errs.Invalid, "volume_context has no location of volume %s; pass the volume_context that CreateVolume returned", r.Volume)
}

// checkLocator rejects the locator of another volume. A volume unknown to
// Locate can be another process's, or deleted: Attach finds out.
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
	case !access.SameVolume(own, r.Locator):
		return errs.Errorf(errs.Invalid, "volume_context does not belong to volume %s; pass the volume_context that CreateVolume returned", r.Volume)
	}
	return nil
}

func (r stageRecord) same(o stageRecord) bool {
	return r.Staging == o.Staging && r.Capability.equal(o.Capability) && maps.Equal(r.Locator, o.Locator)
}

func (r stageRecord) conflict(id volume.ID, desired stageRecord) error {
	switch {
	case r.Staging != desired.Staging:
		return errs.Errorf(errs.Precondition, "volume %s is already staged at %s and can be staged at one path only; unstage it there first", id, r.Staging)
	case !maps.Equal(r.Locator, desired.Locator):
		return errs.Errorf(errs.Exists, "volume %s is staged with another volume_context; unstage it first, or pass the volume_context that CreateVolume returned", id)
	}
	return errs.Errorf(errs.Exists, "volume %s is already staged at %s with a different %s; unstage it first", id, r.Staging, r.Capability.differs(desired.Capability))
}

type staged struct {
	source
	live  bool // mounted at the staging path; block: attached
	info  Info
	entry mount.Entry // of a file system
}

// findStage reads a stage from the kernel. Precondition: the device is another
// volume's, or something else is mounted.
func (m *Manager) findStage(ctx context.Context, rec stageRecord) (staged, error) {
	s, err := m.source(rec.Locator, rec.mounted)
	if err != nil {
		return staged{}, err
	}
	at := staged{source: s}
	at.info, err = s.inspect(ctx)
	if err != nil || at.info.Device.IsZero() {
		return at, err
	}
	if at.info.Presence == Replaced {
		return at, errs.Errorf(errs.Precondition, "the device staged at %s no longer belongs to the volume: %w; unstage the volume first", rec.Staging, at.info.Problem)
	}
	if at.info.Presence == Lost {
		return at, errs.Errorf(errs.Precondition, "the device staged at %s does not work any more: %w; stage the volume again", rec.Staging, at.info.Problem)
	}
	if rec.Capability.Block {
		at.live = true
		return at, nil
	}
	at.entry, at.live, err = mountAt(ctx, rec.Staging, at.info.Device)
	return at, err
}

// replaceStage removes an earlier stage that is incomplete or has lost its
// mount. Publishes stay: an equal stage is mounted below them.
func (m *Manager) replaceStage(ctx context.Context, id volume.ID, have, desired stageRecord) error {
	if have.same(desired) {
		return nil
	}
	live, err := m.livePublishes(ctx, id)
	if err != nil {
		return err
	}
	if len(live) > 0 {
		return errs.Errorf(errs.Precondition, "volume %s is still published at %s and cannot be staged with another capability; unpublish it first", id, live[0].Target)
	}
	return m.undoStage(ctx, id, have)
}

// stage creates or completes a stage; the mount is the last effect. A complete
// stage is neither committed nor rolled back.
func (m *Manager) stage(ctx context.Context, r StageRequest, rec stageRecord, complete bool) (err error) {
	if err := m.checkPath("staging_target_path", r.Staging); err != nil {
		return err
	}
	if err := checkDirectory("staging_target_path", r.Staging); err != nil {
		return err
	}
	s, err := m.source(rec.Locator, rec.mounted)
	if err != nil {
		return err
	}
	s.target.Volume, s.target.Secrets = r.Volume, r.Secrets
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if !complete {
		if rec.Device, err = s.expectedDevice(ctx); err != nil {
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
		crashpoint.Hit("stage.recorded")
	}
	attachment, err := s.attacher.Attach(ctx, s.target, rec.Capability.use())
	if err != nil {
		return err
	}
	defer attachment.File.Close()
	crashpoint.Hit("stage.attached")
	if rec.Capability.Block {
		return nil
	}
	if !complete && attachment.Device.IsDirectory() { // its mount at the path survives that of the attacher
		rec.Device = attachment.Device
		if err := m.records.putStage(ctx, r.Volume, rec); err != nil {
			return err
		}
	}
	fs := filesystem{
		attachment: attachment, path: r.Staging, capability: r.Capability, readOnly: rec.ReadOnly,
		format: m.formatting(r), scratch: m.growScratch(r.Volume), log: m.log.With("volume", r.Volume),
	}
	notGrown, err := fs.mount(ctx)
	if err != nil {
		return explain(s.attacher, m.explainMissing(ctx, r.Volume, attachment, err))
	}
	if !rec.ReadOnly {
		m.warnGroups(ctx, r.Volume, attachment.Device, attachment.Size)
	}
	if notGrown == nil {
		return nil
	}
	m.log.WarnContext(ctx, "file system was not grown, mounted with its old size", "volume", r.Volume, "err", notGrown)
	rec.NotGrown = notGrown.Error()
	return m.records.putStage(ctx, r.Volume, rec)
}

// rollBackStage keeps device and record while an earlier stage's publishes use
// them.
func (m *Manager) rollBackStage(ctx context.Context, id volume.ID, rec stageRecord) {
	ctx, cancel := rollbackContext(ctx)
	defer cancel()
	live, err := m.livePublishes(ctx, id)
	if err == nil && len(live) == 0 {
		err = m.unstage(ctx, id, rec)
	}
	if err != nil {
		m.log.WarnContext(ctx, "stage rollback failed, will retry on unstage or restart", "volume", id, "err", err)
	}
}

func checkDirectory(field, path string) error {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0) // a mounted file system is not accessed
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return errs.Errorf(errs.Precondition, "%s %s is not a directory", field, path)
	case errors.Is(err, fs.ErrNotExist):
		return errs.Errorf(errs.Precondition, "%s %s does not exist; the caller must create it", field, path)
	case err != nil:
		return errs.Errorf(errs.Precondition, "%s %s cannot be used: %w", field, path, err)
	}
	return f.Close()
}
