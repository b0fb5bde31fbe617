package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume/access"
)

// Create creates the device of a volume and returns its name. It is idempotent,
// and rolls back on failure. ErrUnsupported: SNAP does not support the volume
// mode.
func (p *Plugin) Create(ctx context.Context, q request.Create) (string, error) {
	// A retry with other contexts is for the same device: the fingerprint omits
	// them.
	return p.bounded(ctx, op.Request{
		Keys: []string{volumeKey(q.Volume)}, Fingerprint: fmt.Sprint("CreateDevice ", q.Mode, q.Modes), What: "CreateDevice",
	}, func(ctx context.Context) (string, error) {
		name, err := p.create(ctx, q)
		// A DeleteDevice that was too late to cancel this call deletes the
		// device next.
		if cause := context.Cause(ctx); err == nil && errors.Is(cause, op.ErrUndone) {
			err = errs.Errorf(errs.Busy, "CreateDevice: %w", cause)
		}
		return name, err
	})
}

func (p *Plugin) create(ctx context.Context, q request.Create) (string, error) {
	var left error           // why an earlier device of the volume is not removed yet
	var pending *attachError // set if the reason is an unanswered attach
	if d, known := p.table.Device(q.Volume); known {
		held, err := p.reuse(ctx, d, q)
		if err != nil {
			return "", err
		}
		if held {
			return d.Name, nil
		}
		if err := p.removeDevice(ctx, d); err != nil {
			left = fmt.Errorf("volume %s: its left-over device must be removed first: %w", q.Volume, err)
			if !errors.As(err, &pending) {
				return "", left
			}
		}
	}
	offer, err := p.Offer(ctx)
	if err != nil {
		return "", err
	}
	if q.Mode == request.Block && !offer.Block || q.Mode == request.Filesystem && !offer.Filesystem {
		return "", fmt.Errorf("volume_mode %s: %w", q.Mode, ErrUnsupported)
	}
	if keys := q.Misspelt(); len(keys) > 0 {
		p.log.WarnContext(ctx, "ignored context keys, possibly misspelled", "volume", q.Volume, "keys", keys)
	}
	if err := q.Locate(); err != nil {
		return "", err
	}
	planned, err := p.config.Settings.Make(q)
	if err != nil {
		return "", err
	}
	// While an attach for this volume can still complete, the device must use
	// the same controller: DeleteDevice waits for the end of the attach.
	if pending != nil && !slices.ContainsFunc(planned.Objects, func(o plan.Object) bool { return o.ID == pending.id }) {
		return "", left
	}
	return p.make(ctx, q, planned)
}

// reuse reports whether SNAP still holds the recorded device, or refuses other
// modes.
func (p *Plugin) reuse(ctx context.Context, d table.Device, q request.Create) (held bool, err error) {
	switch {
	case d.Phase != table.Ready: // interrupted or failed
		return false, nil
	case d.Mode != q.Mode:
		return false, errs.Errorf(errs.Precondition, "volume %s already has a device with volume_mode %s, but volume_mode %s is requested: delete the device first", q.Volume, d.Mode, q.Mode)
	case !slices.Equal(d.Modes, q.Modes):
		return false, errs.Errorf(errs.Precondition, "volume %s already has a device with access_modes %s, but access_modes %s are requested: delete the device first", q.Volume, modeNames(d.Modes), modeNames(q.Modes))
	}
	held, err = p.stillHeld(ctx, d, q)
	if keys := d.Contexts.Differing(q.Contexts); held && len(keys) > 0 {
		p.log.WarnContext(ctx, "contexts differ from those of the existing device, which is kept unchanged",
			"volume", d.Volume, "device", d.Name, "keys", keys)
	}
	return held, err
}

// checkIdentity refuses a namespace whose UUID differs from the recorded one:
// it can hold other data.
func (p *Plugin) checkIdentity(q request.Create, uuid string) error {
	before := p.table.Identity(q.Volume)
	if before == "" || uuid == "" || uuid == before {
		return nil
	}
	if q.Access == nil {
		_ = q.Locate() // without a locator no change of the UUID is accepted
	}
	if a, ok := q.Access.(access.NVMe); ok && a.AcceptUUIDChange {
		return nil
	}
	return errs.Errorf(errs.Precondition, "volume %s: the namespace has UUID %s, but had UUID %s before: it was replaced, or its target assigned a new UUID at a restart. Delete the device, or set acceptUuidChange to true in the volume context if the namespace holds the volume's data", q.Volume, uuid, before)
}

func modeNames(modes []storagev1.AccessMode) (names []string) {
	for _, m := range modes {
		names = append(names, strings.TrimPrefix(m.String(), "ACCESS_MODE_"))
	}
	return names
}

// stillHeld also reconnects a failed controller. If that fails, it returns an
// error, since a host can be using the device.
func (p *Plugin) stillHeld(ctx context.Context, d table.Device, q request.Create) (bool, error) {
	state, err := p.look(ctx, d)
	if err == nil && state.UUID != "" {
		err = p.checkIdentity(q, state.UUID)
	}
	if err != nil || !state.Failed {
		if err == nil && !state.Held {
			p.log.WarnContext(ctx, "device not found in SNAP, creating it again", "volume", d.Volume, "device", d.Name, "why", state.Why)
		}
		return state.Held, err
	}
	o, known := p.shown(d)
	if !known || o.Foreign || o.ForeignName != "" {
		return false, errs.Errorf(errs.Precondition, "volume %s: %s; this plugin did not attach the controller: reset it with bdev_nvme_reset_controller", d.Volume, state.Why)
	}
	unlock, err := p.lock(ctx, o.Object)
	if err != nil {
		return false, err
	}
	defer unlock()
	_, err = p.objects.Ensure(ctx, o.Object, p.attaching(&o))
	if !errors.Is(err, spdk.Unanswered) {
		p.answered(ctx, o)
	}
	return err == nil, err
}

func (p *Plugin) make(ctx context.Context, q request.Create, planned plan.Device) (string, error) {
	process, err := p.current(ctx)
	if err != nil {
		return "", err
	}
	d := table.Device{
		Volume: q.Volume, Name: planned.Name, Phase: table.Creating, Mode: q.Mode, Modes: q.Modes,
		Contexts: q.Contexts, Process: process, Since: time.Now(),
	}
	for _, o := range planned.Objects {
		d.Objects = append(d.Objects, o.ID)
	}
	got, err := p.makeObjects(ctx, d, planned.Objects)
	if err != nil {
		return "", err
	}
	// The objects are not locked: a slow namespace must not block other
	// volumes. The record of d keeps the objects.
	made, err := p.findDevice(ctx, d, planned.Choice, got.bdevs)
	if err == nil {
		err = p.checkIdentity(q, made.Namespace.UUID)
	}
	if err == nil {
		crashpoint.Hit("dpu-create.made")
		err = p.commit(ctx, made, got.spared)
	}
	if err != nil {
		return "", p.rollBack(ctx, d, err, p.removeDevice)
	}
	crashpoint.Hit("dpu-create.committed")
	p.log.InfoContext(ctx, "device created", "volume", made.Volume, "device", made.Name, "mode", made.Mode, "kind", planned.Shown().Kind)
	return made.Name, nil
}

// intent returns the record of an object before it is created for d. first:
// this plugin has no record of it. A shared object keeps the paths of other
// volumes. An attach is recorded when it is sent; an earlier unanswered one
// stays on record.
func (p *Plugin) intent(ctx context.Context, o plan.Object, d table.Device) (next table.Object, first bool) {
	have, known := p.table.Object(o.ID)
	if !slices.ContainsFunc(p.table.Users(o.ID), func(v string) bool { return v != d.Volume }) {
		next = table.Object{Object: o, Process: d.Process}
		switch {
		case o.Kind != plan.Controller:
			next.UnansweredUntil = p.config.Now().Add(unansweredTimeout(o.Kind))
		case p.canAppear(have, d.Process):
			next.UnansweredUntil, next.UnansweredPath = have.UnansweredUntil, have.UnansweredPath
		}
		return next, !known || have.Foreign
	}
	if o.Controller == nil {
		return have, false
	}
	for _, path := range o.Controller.Paths {
		if !slices.Contains(have.Controller.Paths, path) {
			have.Controller.Paths = append(have.Controller.Paths, path)
		}
	}
	if !sameSettings(*have.Controller, *o.Controller) {
		p.log.WarnContext(ctx, "subsystem already attached with other settings, which are kept", "subsystem", have.Controller.SubNQN, "controller", o.Name)
	}
	return have, false
}

// sameSettings compares what can differ between volumes of one subsystem.
func sameSettings(a, b plan.ControllerSpec) bool {
	return a.Transport == b.Transport && a.Timeouts == b.Timeouts && a.IOQueues == b.IOQueues &&
		a.HeaderDigest == b.HeaderDigest && a.DataDigest == b.DataDigest &&
		a.DHChap == b.DHChap && a.DHChapCtrlr == b.DHChapCtrlr && a.TLS == b.TLS
}

type created struct {
	bdevs  []string      // of a newly attached controller
	spared []plan.Object // existed before; kept if the call fails
}

// makeObjects records and creates objects in their order. A failed call is
// rolled back.
func (p *Plugin) makeObjects(ctx context.Context, d table.Device, planned []plan.Object) (created, error) {
	unlock, err := p.lock(ctx, planned...)
	if err != nil {
		return created{}, err
	}
	defer unlock()
	objects, first := make([]table.Object, len(planned)), make([]bool, len(planned))
	for i, o := range planned {
		objects[i], first[i] = p.intent(ctx, o, d)
	}
	if err := p.table.Put(ctx, d, objects...); err != nil {
		return created{}, err
	}
	crashpoint.Hit("dpu-create.recorded")
	var got created
	for i := range objects {
		if err := p.makeObject(ctx, d.Volume, &objects[i], first[i], &got); err != nil {
			if !errors.Is(err, spdk.Unanswered) {
				p.answered(ctx, objects...)
			}
			return created{}, p.rollBack(ctx, d, fmt.Errorf("volume %s: %w", d.Volume, err), p.removeDeviceLocked)
		}
		crashpoint.Hit("dpu-create.object")
	}
	if err := p.table.Put(ctx, d, objects...); err != nil {
		return created{}, p.rollBack(ctx, d, err, p.removeDeviceLocked)
	}
	return got, nil
}

// makeObject creates an object and updates its record.
func (p *Plugin) makeObject(ctx context.Context, volumeID string, o *table.Object, first bool, got *created) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	outcome, err := p.objects.Ensure(ctx, o.Object, p.attaching(o))
	spared := outcome.Found && first
	if spared || errors.Is(err, object.ErrNameConflict) { // must not be removed if this call fails
		foreign := *o
		foreign.Foreign = true
		if err := p.table.PutObject(context.WithoutCancel(ctx), foreign); err != nil {
			p.log.ErrorContext(ctx, "object that existed before cannot be recorded as foreign", "object", o.ID.String(), "err", err)
		}
	}
	if err != nil {
		return err
	}
	if spared || outcome.Foreign && outcome.ForeignName == plan.SampleController(volumeID) {
		got.spared = append(got.spared, o.Object)
	}
	if outcome.PathsMissing {
		notify(p.wakePaths)
	}
	got.bdevs = outcome.Bdevs
	inherited := outcome.ForeignName != "" && o.ForeignName == outcome.ForeignName && !o.Foreign // another volume's, see commit
	o.Foreign, o.ForeignName = outcome.Foreign && !inherited || spared, outcome.ForeignName
	if o.Kind != plan.Controller { // the record of a controller has unanswered calls only
		o.UnansweredUntil = time.Time{}
	}
	return nil
}

func (p *Plugin) findDevice(ctx context.Context, d table.Device, choice plan.Choice, bdevs []string) (table.Device, error) {
	shown, known := p.shown(d)
	if !known || shown.Kind != plan.Controller {
		return d, nil
	}
	var err error
	if d.Name, d.Namespace, err = p.objects.Namespace(ctx, shown.Actual().Name, choice, bdevs); err != nil {
		return d, fmt.Errorf("volume %s: subsystem %s: %w", d.Volume, shown.Controller.SubNQN, err)
	}
	return d, nil
}

func (p *Plugin) shown(d table.Device) (table.Object, bool) {
	return p.table.Object(d.Objects[len(d.Objects)-1])
}

// commit records a device as created, unless SNAP was restarted meanwhile. The
// device then owns the spared objects, and the controller of NVIDIA's sample
// plugin.
func (p *Plugin) commit(ctx context.Context, d table.Device, spared []plan.Object) error {
	unlock, err := p.lock(ctx, spared...)
	if err != nil {
		return err
	}
	defer unlock()
	process, err := p.current(ctx)
	if err != nil {
		return err
	}
	if process != d.Process {
		return errs.Errorf(errs.Unavailable, "volume %s: SNAP was restarted while the device was created: retry", d.Volume)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	var ours []table.Object
	for _, o := range spared {
		if have, known := p.table.Object(o.ID); known && (have.ForeignName == "" || have.ForeignName == plan.SampleController(d.Volume)) {
			have.Foreign = false
			ours = append(ours, have)
		}
	}
	d.Phase, d.Since = table.Ready, time.Now()
	if err := p.table.Put(ctx, d, ours...); err != nil {
		return err
	}
	p.recordHeld(d)
	return nil
}

// rollBack returns the error of the call.
func (p *Plugin) rollBack(ctx context.Context, d table.Device, why error, remove func(context.Context, table.Device) error) error {
	if errors.Is(context.Cause(ctx), op.ErrClosed) {
		return why // the next start removes it
	}
	if err := remove(context.WithoutCancel(ctx), d); err != nil {
		p.leave(ctx, d.Volume, err)
		return errors.Join(why, fmt.Errorf("roll-back failed, will retry: %w", err))
	}
	return why
}

func (p *Plugin) leave(ctx context.Context, volumeID string, why error) {
	p.log.WarnContext(ctx, "device not removed, will retry", "volume", volumeID, "err", why)
	p.mu.Lock()
	p.left[volumeID] = why
	p.mu.Unlock()
	notify(p.wakeCleanup)
}
