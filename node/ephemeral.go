package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// newEphemeral describes the volume that a publish brings along. Its name
// follows from the volume's id, so that a repeat finds it; it is a digest as
// the id may be as long as a name may be.
func newEphemeral(id volume.ID, e Ephemeral) *ephemeralRecord {
	sum := sha256.Sum256([]byte(id))
	return &ephemeralRecord{Name: "ephemeral-" + hex.EncodeToString(sum[:16]), Ephemeral: e}
}

func (e ephemeralRecord) same(o ephemeralRecord) bool {
	return e.Name == o.Name && e.Size == o.Size && e.FSType == o.FSType && maps.Equal(e.Parameters, o.Parameters)
}

func (e ephemeralRecord) request() volume.CreateRequest {
	return volume.CreateRequest{
		Name: e.Name, Size: e.Size, Content: volume.Filesystem, FSType: e.FSType,
		Parameters: maps.Clone(e.Parameters), Ephemeral: true,
	}
}

// publishEphemeral makes a volume and mounts it straight at the target.
func (m *Manager) publishEphemeral(ctx context.Context, r PublishRequest, rec publishRecord) (err error) {
	switch {
	case m.config.Ephemerals == nil:
		return errs.Errorf(errs.Unsupported, "inline ephemeral volumes need a driver process that serves the controller too, which this one does not; use a PersistentVolumeClaim")
	case rec.Capability.Block:
		return errs.Errorf(errs.Invalid, "an inline ephemeral volume cannot be a block device; use access type mount")
	}
	if err := m.admitEphemeral(ctx, r); err != nil {
		return err
	}
	if err := checkTarget(ctx, r.Target, false, Device{}); err != nil {
		return err
	}
	if err := m.records.putPublish(ctx, r.Target, rec); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			m.rollBackPublish(ctx, r.Target)
		}
	}()
	crashpoint.Hit("publish.ephemeral-intent")
	v, err := m.config.Ephemerals.Create(ctx, rec.Ephemeral.request())
	if err != nil {
		return err
	}
	crashpoint.Hit("publish.ephemeral-created")
	rec.Ephemeral.Volume, rec.Ephemeral.Locator = v.ID, access.Encode(v.Locator)
	if err := m.records.putPublish(ctx, r.Target, rec); err != nil {
		return err
	}
	crashpoint.Hit("publish.ephemeral-recorded")
	if err := m.mountEphemeral(ctx, r, &rec); err != nil {
		return err
	}
	rec.State = settled
	if err := m.records.putPublish(ctx, r.Target, rec); err != nil {
		return err
	}
	crashpoint.Hit("publish.recorded")
	return nil
}

// mountAgain mounts an ephemeral volume that is there and was mounted before.
// The record stays settled all the while: no failure may cost the volume.
func (m *Manager) mountAgain(ctx context.Context, r PublishRequest, rec publishRecord) error {
	if err := checkTarget(ctx, r.Target, false, Device{}); err != nil {
		return err
	}
	if err := m.mountEphemeral(ctx, r, &rec); err != nil {
		ctx, cancel := rollBackContext(ctx)
		defer cancel()
		if s, err := m.sourceOf(ctx, rec); err == nil {
			err = errors.Join(s.takeDown(ctx, r.Target), s.detach(ctx))
			if err != nil {
				m.log.WarnContext(ctx, "a mount that failed could not be undone", "target", r.Target, "error", err)
			}
		}
		return err
	}
	return m.records.putPublish(ctx, r.Target, rec)
}

// admitEphemeral: an ephemeral volume has one publish, and its id is not that
// of a staged volume.
func (m *Manager) admitEphemeral(ctx context.Context, r PublishRequest) error {
	if _, staged, err := m.records.stage(ctx, r.Volume); err != nil || staged {
		if err != nil {
			return err
		}
		return errs.Errorf(errs.Precondition, "volume id %s is that of a staged volume and cannot be used for an inline ephemeral one", r.Volume)
	}
	others, err := m.records.publishesOf(ctx, r.Volume)
	if err != nil {
		return err
	}
	for _, o := range others {
		if o.Target != r.Target {
			return errs.Errorf(errs.Precondition, "inline ephemeral volume %s is published at %s already; it belongs to one pod and has one target", r.Volume, o.Target)
		}
	}
	return nil
}

func (m *Manager) mountEphemeral(ctx context.Context, r PublishRequest, rec *publishRecord) error {
	if err := makeTarget(r.Target, false); err != nil {
		return err
	}
	crashpoint.Hit("publish.target-made")
	s, err := m.sourceOf(ctx, *rec)
	if err != nil {
		return err
	}
	release, err := s.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	attachment, err := s.attacher.Attach(ctx, s.target, Use{})
	if err != nil {
		return err
	}
	defer attachment.File.Close()
	crashpoint.Hit("publish.attached")
	rec.Device = attachment.Device
	if err := m.records.putPublish(ctx, r.Target, *rec); err != nil {
		return err
	}
	g := mounting{attachment: attachment, path: r.Target, capability: r.Capability, readOnly: rec.ReadOnly}
	fsType, err := g.run(ctx)
	rec.FSType = string(fsType)
	return err
}

// endEphemeral takes away the volume that a publish brought along.
func (m *Manager) endEphemeral(ctx context.Context, rec publishRecord) error {
	if m.config.Ephemerals == nil {
		return errs.Errorf(errs.Unsupported, "inline ephemeral volume %s cannot be deleted: this driver process does not serve the controller any more; start it with --services all", rec.Volume)
	}
	id, err := m.madeEphemeral(ctx, rec)
	if err != nil {
		return err
	}
	s, err := m.sourceOf(ctx, rec)
	if err != nil {
		return err
	}
	if s.attacher != nil {
		if err := s.detach(ctx); err != nil {
			return err
		}
	}
	crashpoint.Hit("unpublish.detached")
	if id == "" {
		return nil
	}
	if err := m.config.Ephemerals.Delete(ctx, id); err != nil {
		return err
	}
	crashpoint.Hit("unpublish.ephemeral-deleted")
	return nil
}

// madeEphemeral returns the engine's id. Where a crash came between the
// engine's answer and our record of it, asking once more finds the volume by
// its name (or makes it for a moment). Empty: the engine refuses to make it, so
// it never did.
func (m *Manager) madeEphemeral(ctx context.Context, rec publishRecord) (volume.ID, error) {
	if rec.Ephemeral.Volume != "" {
		return rec.Ephemeral.Volume, nil
	}
	v, err := m.config.Ephemerals.Create(ctx, rec.Ephemeral.request())
	if err == nil {
		return v.ID, nil
	}
	switch errs.KindOf(err) {
	case errs.Invalid, errs.OutOfRange, errs.Exhausted, errs.Exists, errs.NotFound, errs.Unsupported:
		return "", nil
	}
	return "", err
}
