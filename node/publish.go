package node

import (
	"context"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
)

// PublishRequest requests to publish a volume at a workload's target.
type PublishRequest struct {
	Volume     volume.ID
	Staging    string // empty for an inline volume
	Target     string // directory, or file for a block volume; created
	Capability volume.Capability
	ReadOnly   bool
	// Set if this call creates the volume.
	Inline *InlineVolume
	// Secrets of the request, to stage the volume again: never stored or logged.
	Secrets map[string]string
}

func (r PublishRequest) readOnly() bool { return r.ReadOnly || requestsReadOnly(r.Capability) }

// Publish publishes a volume at a target. It is idempotent. Exists: it is
// published there differently. Precondition: it is not staged, the access mode
// forbids another publish, or the target is not free. A stage whose device is
// Lost is replaced first. After an error all effects are rolled back.
func (m *Manager) Publish(ctx context.Context, r PublishRequest) error {
	ctx, done, err := m.change(ctx, r.Volume)
	if err != nil {
		return err
	}
	defer done()
	capability, err := newStoredCapability(r.Capability)
	if err != nil {
		return err
	}
	desired := publishRecord{
		Volume: r.Volume, Staging: r.Staging, Capability: capability, ReadOnly: r.readOnly(), State: ready,
		mounted: mounted{Boot: m.boot, Since: time.Now()},
	}
	if r.Inline != nil {
		desired.State, desired.Inline = creating, newInline(r.Volume, *r.Inline)
	} else if err := m.restageLost(ctx, r, capability); err != nil {
		return err
	}
	adopted, err := m.adoptPublish(ctx, r.Target, &desired)
	if err != nil || adopted {
		return err
	}
	if err := m.checkPath("target_path", r.Target); err != nil {
		return err
	}
	if r.Inline != nil {
		return m.publishInline(ctx, r, desired)
	}
	return m.publishStaged(ctx, r, desired)
}

// adoptPublish reports whether an earlier publish at the target is the desired
// one. An inline volume that lost its mount, as by a reboot, is mounted again:
// desired then describes it.
func (m *Manager) adoptPublish(ctx context.Context, target string, desired *publishRecord) (done bool, err error) {
	have, ok, err := m.records.publish(ctx, target)
	if err != nil || !ok {
		return false, err
	}
	if have.Volume != desired.Volume {
		return false, errs.Errorf(errs.Precondition, "target_path %s is in use by volume %s; unpublish that volume first, or use another path", target, have.Volume)
	}
	live, err := m.isPublished(ctx, target, have)
	if err != nil {
		return false, err
	}
	difference := have.differs(*desired)
	switch {
	case have.State == ready && difference != "" && (live || have.Inline != nil):
		return false, errs.Errorf(errs.Exists, "volume %s is already published at %s with a different %s; unpublish it first", have.Volume, target, difference)
	case have.State == ready && live:
		return true, nil
	case have.State == deleting && live && difference == "": // unpublish failed: in use
		have.State = ready
		return true, m.records.putPublish(ctx, target, have)
	case have.State == ready && have.Inline != nil:
		desired.Inline, desired.State = have.Inline, ready
		return false, nil
	}
	return false, m.unpublish(ctx, target, have)
}

func (p publishRecord) differs(o publishRecord) string {
	switch {
	case !p.Capability.equal(o.Capability):
		return p.Capability.differs(o.Capability)
	case p.ReadOnly != o.ReadOnly:
		return "readonly flag"
	case p.Staging != o.Staging:
		return "staging_target_path"
	case (p.Inline == nil) != (o.Inline == nil):
		return "kind (one is ephemeral, the other is not)"
	case p.Inline != nil && !p.Inline.same(*o.Inline):
		return "size, file system or parameters"
	}
	return ""
}

// The bind mount is publishStaged's last effect.
func (m *Manager) publishStaged(ctx context.Context, r PublishRequest, rec publishRecord) (err error) {
	if err := checkApart(r.Target, r.Staging); err != nil {
		return err
	}
	at, stage, err := m.admit(ctx, r, rec)
	if err != nil {
		return err
	}
	if err := checkTarget(ctx, r.Target, rec.Capability.Block, at.info.Device); err != nil {
		return err
	}
	rec.Device = at.info.Device
	stage.Device, stage.FSType, stage.Boot = at.info.Device, at.entry.FSType, m.boot
	if err := m.records.putPublishAndStage(ctx, r.Target, rec, stage); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			m.rollBackPublish(ctx, r.Target)
		}
	}()
	crashpoint.Hit("publish.recorded")
	if err := makeTarget(r.Target, rec.Capability.Block); err != nil {
		return err
	}
	crashpoint.Hit("publish.target-made")
	if rec.Capability.Block {
		err = bindNode(ctx, r.Target, at, rec.ReadOnly)
	} else {
		err = bindDirectory(ctx, r, at.info.Device, rec.ReadOnly)
	}
	if err != nil {
		return err
	}
	crashpoint.Hit("publish.bound")
	return nil
}

// admit checks stage and other publishes.
func (m *Manager) admit(ctx context.Context, r PublishRequest, rec publishRecord) (staged, stageRecord, error) {
	stage, ok, err := m.records.stage(ctx, r.Volume)
	if err != nil {
		return staged{}, stage, err
	}
	if !ok || stage.State != ready {
		return staged{}, stage, errs.Errorf(errs.Precondition, "volume %s is not staged; stage it first", r.Volume)
	}
	if stage.Staging != r.Staging {
		return staged{}, stage, errs.Errorf(errs.Precondition, "volume %s is staged at %s, not at %s", r.Volume, stage.Staging, r.Staging)
	}
	at, err := m.findStage(ctx, stage)
	if err != nil {
		return at, stage, err
	}
	if !at.live {
		return at, stage, errs.Errorf(errs.Precondition, "volume %s is no longer staged (after a reboot, or an unmount by another program); stage it again", r.Volume)
	}
	if err := stage.Capability.admits(rec.Capability, rec.ReadOnly); err != nil {
		return at, stage, err
	}
	return at, stage, m.admitBeside(ctx, r, rec)
}

// admitBeside enforces the CSI specification's table for a second publish, and
// one read-only setting per block device, as it applies to the whole device.
func (m *Manager) admitBeside(ctx context.Context, r PublishRequest, rec publishRecord) error {
	others, err := m.livePublishes(ctx, r.Volume)
	if err != nil {
		return err
	}
	for _, o := range others {
		switch {
		case !multi(o.Capability.Mode, rec.Capability.Mode):
			return errs.Errorf(errs.Precondition, "volume %s is already published at %s, and access mode %s allows only one publish; only %s allows more", r.Volume, o.Target, rec.Capability.Mode.CSIName(), volume.SingleNodeMultiWriter.CSIName())
		case rec.Capability.Block && o.ReadOnly != rec.ReadOnly:
			return errs.Errorf(errs.Precondition, "block volume %s is published at %s with readonly %t, which must be the same for all its publishes", r.Volume, o.Target, o.ReadOnly)
		}
	}
	return nil
}

func bindDirectory(ctx context.Context, r PublishRequest, d Device, readOnly bool) error {
	perMount, _, err := mount.SplitOptions(r.Capability.MountFlags)
	if err != nil {
		return err
	}
	// A bind mount without a record, as after the loss of the store.
	if err := unmountAll(ctx, r.Target, d); err != nil {
		return err
	}
	return mount.Bind(ctx, r.Staging, r.Target, mount.BindOptions{ReadOnly: readOnly, Options: perMount})
}

func bindNode(ctx context.Context, target string, at staged, readOnly bool) error {
	if readOnly != at.info.ReadOnly {
		if err := at.attacher.SetReadOnly(ctx, at.target, readOnly); err != nil {
			return err
		}
	}
	crashpoint.Hit("publish.read-only-set")
	there, err := nodeAt(ctx, target, at.info.Device)
	if err != nil || there {
		return err
	}
	return mount.Bind(ctx, at.info.Device.Path, target, mount.BindOptions{})
}

func (m *Manager) rollBackPublish(ctx context.Context, target string) {
	ctx, cancel := rollbackContext(ctx)
	defer cancel()
	rec, ok, err := m.records.publish(ctx, target)
	if err == nil && ok {
		err = m.unpublish(ctx, target, rec)
	}
	if err != nil {
		m.log.WarnContext(ctx, "publish rollback failed, will retry on unpublish or restart", "target", target, "err", err)
	}
}

// livePublishes exist in the kernel.
func (m *Manager) livePublishes(ctx context.Context, id volume.ID) ([]publication, error) {
	all, err := m.records.publishesOf(ctx, id)
	if err != nil {
		return nil, err
	}
	var live []publication
	for _, p := range all {
		there, err := m.isPublished(ctx, p.Target, p.publishRecord)
		if err != nil {
			return nil, err
		}
		if there {
			live = append(live, p)
		}
	}
	return live, nil
}

func (m *Manager) isPublished(ctx context.Context, target string, rec publishRecord) (bool, error) {
	d, err := m.deviceOf(ctx, rec)
	if err != nil || d.IsZero() {
		return false, err
	}
	var there bool
	if rec.Capability.Block {
		there, err = nodeAt(ctx, target, d)
	} else {
		_, there, err = mountAt(ctx, target, d)
	}
	return there, ignoreForeign(err)
}

// deviceOf returns the recorded device of a volume that its attacher does not have:
// mounts of it can still exist.
func (m *Manager) deviceOf(ctx context.Context, rec publishRecord) (Device, error) {
	s, ok, err := m.sourceOf(ctx, rec)
	if err != nil || !ok {
		return m.recordedDevice(rec), err
	}
	info, err := s.inspect(ctx)
	if err != nil || !info.Device.IsZero() {
		return info.Device, err
	}
	return m.recordedDevice(rec), nil
}

// recordedDevice is of this boot.
func (m *Manager) recordedDevice(rec publishRecord) Device {
	if rec.Boot != m.boot {
		return Device{}
	}
	return rec.Device
}

// sourceOf returns false if nothing is recorded.
func (m *Manager) sourceOf(ctx context.Context, rec publishRecord) (source, bool, error) {
	if rec.Inline != nil {
		if rec.Inline.Locator == nil {
			return source{}, false, nil
		}
		s, err := m.source(rec.Inline.Locator, rec.mounted)
		return s, true, err
	}
	stage, ok, err := m.records.stage(ctx, rec.Volume)
	if err != nil || !ok {
		return source{}, false, err
	}
	s, err := m.source(stage.Locator, stage.mounted)
	return s, true, err
}
