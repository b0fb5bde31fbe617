package node

import (
	"context"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
)

// PublishRequest asks to put a volume where a workload uses it.
type PublishRequest struct {
	Volume     volume.ID
	Staging    string // where it is staged; empty for an ephemeral volume
	Target     string // a directory, or a file for a block volume; made here
	Capability volume.Capability
	ReadOnly   bool
	// Ephemeral is set when the volume is to be made by this call.
	Ephemeral *Ephemeral
}

// Ephemeral describes a volume that lives as long as its one publish. It is part
// of stored records.
type Ephemeral struct {
	Size       volume.SizeRange  `json:"size"`             // empty: the engine's default
	FSType     string            `json:"fsType,omitempty"` // empty: the engine's choice
	Parameters map[string]string `json:"parameters,omitempty"`
}

func (r PublishRequest) readOnly() bool { return r.ReadOnly || wantsReadOnly(r.Capability) }

// Publish puts a volume at a target, or finds that it is there. Exists: it is
// there in another way. Precondition: it is not staged, the access mode does
// not admit another publish, or the target is not free. After an error nothing
// is left.
func (m *Manager) Publish(ctx context.Context, r PublishRequest) error {
	unlock, err := m.lock(ctx, r.Volume, r.Target)
	if err != nil {
		return err
	}
	defer unlock()
	capability, err := keep(r.Capability)
	if err != nil {
		return err
	}
	wanted := publishRecord{
		Volume: r.Volume, Staging: r.Staging, Capability: capability, ReadOnly: r.readOnly(), State: making,
		mounted: mounted{Boot: m.boot, Since: time.Now()},
	}
	if r.Ephemeral != nil {
		wanted.Ephemeral = newEphemeral(r.Volume, *r.Ephemeral)
	}
	next, err := m.settleEarlierPublish(ctx, r.Target, &wanted)
	if err != nil || next == nothing {
		return err
	}
	if err := m.checkPath("target_path", r.Target); err != nil {
		return err
	}
	switch {
	case next == mountAgain:
		return m.mountAgain(ctx, r, wanted)
	case wanted.Ephemeral != nil:
		return m.publishEphemeral(ctx, r, wanted)
	}
	return m.publishStaged(ctx, r, wanted)
}

// step is what is left to do for a publish.
type step int

const (
	nothing step = iota
	fromScratch
	// mountAgain: an ephemeral volume has lost its mount, by a reboot for
	// instance. Its data is acknowledged, so it is not made anew.
	mountAgain
)

// settleEarlierPublish deals with what an earlier publish left at the target,
// so that the wanted one can follow, and tells what is left to do.
func (m *Manager) settleEarlierPublish(ctx context.Context, target string, wanted *publishRecord) (step, error) {
	have, ok, err := m.records.publish(ctx, target)
	if err != nil || !ok {
		return fromScratch, err
	}
	if have.Volume != wanted.Volume {
		return nothing, errs.Errorf(errs.Precondition, "target_path %s is in use by volume %s; unpublish that first, or use another path", target, have.Volume)
	}
	live, err := m.isPublished(ctx, target, have)
	if err != nil {
		return nothing, err
	}
	difference := have.differs(*wanted)
	switch {
	case have.State == settled && difference != "" && (live || have.Ephemeral != nil):
		return nothing, errs.Errorf(errs.Exists, "volume %s is published at %s already with another %s; unpublish it first", have.Volume, target, difference)
	case have.State == settled && live:
		return nothing, nil
	case have.State == undoing && live && difference == "":
		// Its unpublish was refused before it had undone anything.
		have.State = settled
		return nothing, m.records.putPublish(ctx, target, have)
	case have.State == settled && have.Ephemeral != nil:
		wanted.Ephemeral, wanted.State = have.Ephemeral, settled
		return mountAgain, nil
	}
	// Cut half-way and never acknowledged, or nothing but a lost mount.
	return fromScratch, m.unpublish(ctx, target, have)
}

// differs says in what two publishes of a volume differ; empty: in nothing.
func (p publishRecord) differs(o publishRecord) string {
	switch {
	case !p.Capability.equal(o.Capability):
		return p.Capability.differs(o.Capability)
	case p.ReadOnly != o.ReadOnly:
		return "readonly flag"
	case p.Staging != o.Staging:
		return "staging_target_path"
	case (p.Ephemeral == nil) != (o.Ephemeral == nil):
		return "kind: one is ephemeral, the other is not"
	case p.Ephemeral != nil && !p.Ephemeral.same(*o.Ephemeral):
		return "size, file system or parameters"
	}
	return ""
}

// publishStaged publishes a volume that is staged.
func (m *Manager) publishStaged(ctx context.Context, r PublishRequest, rec publishRecord) (err error) {
	if err := checkApart(r.Target, r.Staging); err != nil {
		return err
	}
	v, err := m.admit(ctx, r, rec)
	if err != nil {
		return err
	}
	if err := checkTarget(ctx, r.Target, rec.Capability.Block, v.Device); err != nil {
		return err
	}
	rec.Device = v.Device
	if err := m.records.putPublish(ctx, r.Target, rec); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			m.rollBackPublish(ctx, r.Target)
		}
	}()
	crashpoint.Hit("publish.intent")
	if err := makeTarget(r.Target, rec.Capability.Block); err != nil {
		return err
	}
	crashpoint.Hit("publish.target-made")
	if rec.Capability.Block {
		err = m.bindNode(ctx, r.Target, v, rec)
	} else {
		err = bindDirectory(ctx, r, v.Device, rec.ReadOnly)
	}
	if err != nil {
		return err
	}
	crashpoint.Hit("publish.bound")
	rec.State = settled
	if err := m.records.putPublish(ctx, r.Target, rec); err != nil {
		return err
	}
	crashpoint.Hit("publish.recorded")
	return nil
}

// admit checks a publish against the stage and the other publishes, and
// returns what the volume is attached as.
func (m *Manager) admit(ctx context.Context, r PublishRequest, rec publishRecord) (View, error) {
	stage, ok, err := m.records.stage(ctx, r.Volume)
	if err != nil {
		return View{}, err
	}
	if !ok || stage.State != settled {
		return View{}, errs.Errorf(errs.Precondition, "volume %s is not staged; stage it first", r.Volume)
	}
	if stage.Staging != r.Staging {
		return View{}, errs.Errorf(errs.Precondition, "volume %s is staged at %s, not at %s", r.Volume, stage.Staging, r.Staging)
	}
	live, err := m.isStaged(ctx, stage)
	if err != nil {
		return View{}, err
	}
	if !live {
		return View{}, errs.Errorf(errs.Precondition, "volume %s is not staged any more (a reboot, or somebody unmounted it); stage it again", r.Volume)
	}
	if err := stage.Capability.admits(rec.Capability, rec.ReadOnly); err != nil {
		return View{}, err
	}
	if err := m.admitBeside(ctx, r, rec); err != nil {
		return View{}, err
	}
	s, err := m.source(stage.Locator, stage.mounted)
	if err != nil {
		return View{}, err
	}
	return s.look(ctx)
}

// admitBeside holds the table of the specification for a second publish of one
// volume at another target, and that a block device, which is writable or not
// as a whole, is not published both ways.
func (m *Manager) admitBeside(ctx context.Context, r PublishRequest, rec publishRecord) error {
	others, err := m.livePublishes(ctx, r.Volume)
	if err != nil {
		return err
	}
	for _, o := range others {
		switch {
		case !multi(o.Capability.Mode, rec.Capability.Mode):
			return errs.Errorf(errs.Precondition, "volume %s is published at %s already, and access mode %s allows one publish; only %s allows more", r.Volume, o.Target, rec.Capability.Mode.CSIName(), volume.SingleNodeMultiWriter.CSIName())
		case rec.Capability.Block && o.ReadOnly != rec.ReadOnly:
			return errs.Errorf(errs.Precondition, "block volume %s is published at %s with readonly %t, which must be the same for all publishes of a block volume", r.Volume, o.Target, o.ReadOnly)
		}
	}
	return nil
}

func bindDirectory(ctx context.Context, r PublishRequest, d Device, readOnly bool) error {
	perMount, _, err := mount.SplitOptions(r.Capability.MountFlags)
	if err != nil {
		return err
	}
	// A bind that no record knows, as after the store was lost, is not
	// stacked upon.
	if err := unmountAll(ctx, r.Target, d); err != nil {
		return err
	}
	return mount.Bind(ctx, r.Staging, r.Target, mount.BindOptions{ReadOnly: readOnly, Options: perMount})
}

// bindNode puts the node of a block device at a target.
func (m *Manager) bindNode(ctx context.Context, target string, v View, rec publishRecord) error {
	if rec.ReadOnly != v.ReadOnly {
		s, err := m.sourceOf(ctx, rec)
		if err != nil {
			return err
		}
		if err := s.attacher.Protect(ctx, s.target, rec.ReadOnly); err != nil {
			return err
		}
	}
	crashpoint.Hit("publish.protected")
	there, err := nodeAt(ctx, target, v.Device)
	if err != nil || there {
		return err
	}
	return mount.Bind(ctx, v.Device.Path, target, mount.BindOptions{})
}

// rollBackPublish undoes a publish that failed.
func (m *Manager) rollBackPublish(ctx context.Context, target string) {
	ctx, cancel := rollBackContext(ctx)
	defer cancel()
	rec, ok, err := m.records.publish(ctx, target)
	if err == nil && ok {
		err = m.unpublish(ctx, target, rec)
	}
	if err != nil {
		m.log.WarnContext(ctx, "a failed publish could not be undone; unpublish or start-up will", "target", target, "error", err)
	}
}

// livePublishes returns the publishes of a volume that the kernel still has.
func (m *Manager) livePublishes(ctx context.Context, id volume.ID) ([]placed, error) {
	all, err := m.records.publishesOf(ctx, id)
	if err != nil {
		return nil, err
	}
	var live []placed
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

// isPublished asks the kernel whether a volume is at a target.
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

// deviceOf returns what a publish was made from, or what the volume is
// attached as now.
func (m *Manager) deviceOf(ctx context.Context, rec publishRecord) (Device, error) {
	s, err := m.sourceOf(ctx, rec)
	if err != nil || s.attacher == nil {
		return m.remembered(rec), err
	}
	v, err := s.look(ctx)
	if err != nil || !v.Device.IsZero() {
		return v.Device, err
	}
	if rec.Capability.Block {
		return m.remembered(rec), nil // the bind stays when the device has lost its file
	}
	return Device{}, nil
}

func (m *Manager) remembered(rec publishRecord) Device {
	if rec.Boot != m.boot {
		return Device{}
	}
	return rec.Device
}

// sourceOf finds the volume behind a publish; a source without an attacher
// when nothing is on record of it.
func (m *Manager) sourceOf(ctx context.Context, rec publishRecord) (source, error) {
	if rec.Ephemeral != nil {
		if rec.Ephemeral.Locator == nil {
			return source{}, nil
		}
		return m.source(rec.Ephemeral.Locator, rec.mounted)
	}
	stage, ok, err := m.records.stage(ctx, rec.Volume)
	if err != nil || !ok {
		return source{}, err
	}
	return m.source(stage.Locator, stage.mounted)
}
