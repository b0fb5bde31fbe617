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

// InlineVolume exists as long as its one publish. It is part of stored records.
type InlineVolume struct {
	Size       volume.SizeRange  `json:"size"`             // empty: default
	FSType     string            `json:"fsType,omitempty"` // empty: the engine's
	Parameters map[string]string `json:"parameters,omitempty"`
}

// The name is a digest of the id, which can be too long: a retry finds the
// volume by it.
func newInline(id volume.ID, v InlineVolume) *inlineRecord {
	sum := sha256.Sum256([]byte(id))
	return &inlineRecord{Name: "ephemeral-" + hex.EncodeToString(sum[:16]), InlineVolume: v}
}

func (v inlineRecord) same(o inlineRecord) bool {
	return v.Name == o.Name && v.Size == o.Size && v.FSType == o.FSType && maps.Equal(v.Parameters, o.Parameters)
}

func (v inlineRecord) request() volume.CreateRequest {
	return volume.CreateRequest{
		Name: v.Name, Size: v.Size, Content: volume.Filesystem, FSType: v.FSType,
		Parameters: maps.Clone(v.Parameters), Ephemeral: true,
	}
}

// publishInline creates a volume and mounts it at the target. It commits before
// the volume is created, so that Reconcile can delete it, and after, with its
// locator. A ready volume was acknowledged and has lost its mount: it is
// mounted again, and never deleted on failure.
func (m *Manager) publishInline(ctx context.Context, r PublishRequest, rec publishRecord) (err error) {
	switch {
	case m.config.Inline == nil:
		return errs.Errorf(errs.Unsupported, "inline ephemeral volumes need a driver process that also serves the controller (--services all), which this one does not; use a PersistentVolumeClaim")
	case rec.Capability.Block:
		return errs.Errorf(errs.Invalid, "an inline ephemeral volume cannot be a block device; use access type mount")
	}
	if err := m.admitInline(ctx, r); err != nil {
		return err
	}
	if err := checkTarget(ctx, r.Target, false, Device{}); err != nil {
		return err
	}
	exists := rec.State == ready
	if !exists {
		if err := m.records.putPublish(ctx, r.Target, rec); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				m.rollBackPublish(ctx, r.Target)
			}
		}()
		crashpoint.Hit("publish.inline-recorded")
		v, err := m.config.Inline.Create(ctx, rec.Inline.request())
		if err != nil {
			return err
		}
		crashpoint.Hit("publish.inline-created")
		rec.State, rec.Inline.Volume, rec.Inline.Locator = ready, v.ID, access.Encode(v.Locator)
	}
	s, err := m.source(rec.Inline.Locator, rec.mounted)
	if err != nil {
		return err
	}
	if rec.Device, err = s.expectedDevice(ctx); err != nil {
		return err
	}
	if err := m.records.putPublish(ctx, r.Target, rec); err != nil {
		return err
	}
	crashpoint.Hit("publish.inline-ready")
	err = m.mountInline(ctx, s, r, rec)
	if err != nil && exists {
		m.unmountInline(ctx, s, r.Target)
	}
	return err
}

// admitInline: no other publish, and no staged volume with that id.
func (m *Manager) admitInline(ctx context.Context, r PublishRequest) error {
	_, staged, err := m.records.stage(ctx, r.Volume)
	if err != nil {
		return err
	}
	if staged {
		return errs.Errorf(errs.Precondition, "volume id %s belongs to a staged volume and cannot be used for an inline ephemeral volume", r.Volume)
	}
	others, err := m.records.publishesOf(ctx, r.Volume)
	if err != nil {
		return err
	}
	for _, o := range others {
		if o.Target != r.Target {
			return errs.Errorf(errs.Precondition, "inline ephemeral volume %s is already published at %s; it belongs to one pod and has one target", r.Volume, o.Target)
		}
	}
	return nil
}

func (m *Manager) mountInline(ctx context.Context, s source, r PublishRequest, rec publishRecord) error {
	if err := makeTarget(r.Target, false); err != nil {
		return err
	}
	crashpoint.Hit("publish.target-made")
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	attachment, err := s.attacher.Attach(ctx, s.target, Use{})
	if err != nil {
		return err
	}
	defer attachment.File.Close()
	crashpoint.Hit("publish.attached")
	fs := filesystem{attachment: attachment, path: r.Target, capability: r.Capability, readOnly: rec.ReadOnly, scratch: m.growScratch(r.Volume), log: m.log.With("volume", r.Volume)}
	notGrown, err := fs.mount(ctx)
	if err != nil {
		return explain(s.attacher, m.explainMissing(ctx, rec.Inline.Volume, attachment, err))
	}
	if notGrown != nil {
		m.log.WarnContext(ctx, "file system was not grown, mounted with its old size", "volume", r.Volume, "err", notGrown)
	}
	return nil
}

func (m *Manager) unmountInline(ctx context.Context, s source, target string) {
	ctx, cancel := rollbackContext(ctx)
	defer cancel()
	unlock, err := s.lock(ctx)
	if err == nil {
		defer unlock()
		err = errors.Join(s.unmount(ctx, target), s.detach(ctx))
	}
	if err != nil {
		m.log.WarnContext(ctx, "inline volume mount rollback failed", "target", target, "err", err)
	}
}

func (m *Manager) deleteInline(ctx context.Context, rec publishRecord) error {
	if m.config.Inline == nil {
		return errs.Errorf(errs.Unsupported, "inline ephemeral volume %s cannot be deleted: this driver process no longer serves the controller; start it with --services all", rec.Volume)
	}
	id, err := m.createdInline(ctx, rec)
	if err != nil {
		return err
	}
	s, ok, err := m.sourceOf(ctx, rec)
	if err != nil {
		return err
	}
	if ok {
		unlock, err := s.lock(ctx)
		if err != nil {
			return err
		}
		err = s.detach(ctx)
		unlock() // Delete locks it
		if err != nil {
			return err
		}
	}
	crashpoint.Hit("unpublish.detached")
	if id == "" {
		return nil
	}
	if err := m.config.Inline.Delete(ctx, id); err != nil {
		return err
	}
	crashpoint.Hit("unpublish.inline-deleted")
	return nil
}

// createdInline returns the engine's id. After a crash before the record,
// creating the volume again finds it by name (or creates it temporarily).
// Empty: the engine rejects the request, so never created it.
func (m *Manager) createdInline(ctx context.Context, rec publishRecord) (volume.ID, error) {
	if rec.Inline.Volume != "" {
		return rec.Inline.Volume, nil
	}
	v, err := m.config.Inline.Create(ctx, rec.Inline.request())
	if err == nil {
		return v.ID, nil
	}
	switch errs.KindOf(err) {
	case errs.Invalid, errs.OutOfRange, errs.Exhausted, errs.Exists, errs.NotFound, errs.Unsupported:
		return "", nil
	}
	return "", err
}
