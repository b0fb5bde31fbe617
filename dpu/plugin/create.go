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

// Create creates the device of a volume and returns its name; an existing device
// is kept. A failed call is rolled back. ErrUnserved: the SNAP process does not
// support the volume mode.
func (p *Plugin) Create(ctx context.Context, q request.Create) (string, error) {
	// The fingerprint has no contexts: a retry with other ones is for the same device.
	return p.bounded(ctx, op.Request{
		Keys: []string{q.Volume}, Fingerprint: fmt.Sprint("CreateDevice ", q.Mode, q.Modes), What: "CreateDevice",
	}, func(ctx context.Context) (string, error) {
		name, err := p.create(ctx, q)
		// A DeleteDevice can come too late to stop this call, and deletes the device next.
		if cause := context.Cause(ctx); err == nil && errors.Is(cause, op.ErrUndone) {
			err = errs.Errorf(errs.Busy, "CreateDevice: %w", cause)
		}
		return name, err
	})
}

func (p *Plugin) create(ctx context.Context, q request.Create) (string, error) {
	var left error           // why an earlier device of the volume is not removed
	var pending *attachError // the reason, if it is that
	if d, known := p.table.Device(q.Volume); known {
		held, err := p.reuse(ctx, d, q)
		if err != nil {
			return "", err
		}
		if held {
			return d.Name, nil
		}
		if err := p.removeDevice(ctx, d); err != nil {
			left = fmt.Errorf("volume %s: what is left of its device has to be removed first: %w", q.Volume, err)
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
		return "", fmt.Errorf("volume_mode %s: %w", q.Mode, ErrUnserved)
	}
	if keys := q.Misspelt(); len(keys) > 0 {
		p.log.WarnContext(ctx, "context keys are not read, and may be misspelt", "volume", q.Volume, "keys", keys)
	}
	if err := q.Locate(); err != nil {
		return "", err
	}
	planned, err := p.config.Settings.Make(q)
	if err != nil {
		return "", err
	}
	// While an attach for this volume can still complete, the device must use the
	// same controller, or DeleteDevice would not wait for the end of the attach.
	if pending != nil && !slices.ContainsFunc(planned.Objects, func(o plan.Object) bool { return o.ID == pending.id }) {
		return "", left
	}
	return p.make(ctx, q, planned)
}

// reuse reports whether SNAP still holds the recorded device, and returns an error
// if q is for another one.
func (p *Plugin) reuse(ctx context.Context, d table.Device, q request.Create) (held bool, err error) {
	switch {
	case d.Phase != table.Made: // not finished by an earlier call
		return false, nil
	case d.Mode != q.Mode:
		return false, errs.Errorf(errs.Precondition, "volume %s has a device with volume_mode %s, and is asked for with %s: delete the device first", q.Volume, d.Mode, q.Mode)
	case !slices.Equal(d.Modes, q.Modes):
		return false, errs.Errorf(errs.Precondition, "volume %s has a device with access_modes %s, and is asked for with %s: delete the device first", q.Volume, modeNames(d.Modes), modeNames(q.Modes))
	}
	held, err = p.stillHeld(ctx, d, q)
	if keys := d.Contexts.Differing(q.Contexts); held && len(keys) > 0 {
		p.log.WarnContext(ctx, "CreateDevice came with other contexts than those that the device was made with; it is kept as it is",
			"volume", d.Volume, "device", d.Name, "differ", keys)
	}
	return held, err
}

// checkIdentity returns an error for a namespace with another UUID than the volume
// had before: it can hold other data.
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
	return errs.Errorf(errs.Precondition, "volume %s: the namespace has UUID %s, and had UUID %s before: it was replaced, or its target gave it another one at a restart; delete the device, or set acceptUuidChange to true in the volume context if it holds the volume's data", q.Volume, uuid, before)
}

func modeNames(modes []storagev1.AccessMode) (names []string) {
	for _, m := range modes {
		names = append(names, strings.TrimPrefix(m.String(), "ACCESS_MODE_"))
	}
	return names
}

// stillHeld reports whether SNAP still holds a device. A failed controller is
// reconnected; if that fails it is an error, since a host can use the device.
func (p *Plugin) stillHeld(ctx context.Context, d table.Device, q request.Create) (bool, error) {
	state, err := p.look(ctx, d)
	if err == nil && state.UUID != "" {
		err = p.checkIdentity(q, state.UUID)
	}
	if err != nil || !state.Failed {
		if err == nil && !state.Held {
			p.log.WarnContext(ctx, "SNAP does not hold the device any more; it is made again", "volume", d.Volume, "device", d.Name, "why", state.Why)
		}
		return state.Held, err
	}
	o, known := p.shown(d)
	if !known || o.Foreign || o.As != "" {
		return false, errs.Errorf(errs.Precondition, "volume %s: %s, and it was not attached by this plugin: reset it with bdev_nvme_reset_controller", d.Volume, state.Why)
	}
	unlock, err := p.lock(ctx, o.Object)
	if err != nil {
		return false, err
	}
	defer unlock()
	_, err = p.objects.Make(ctx, o.Object, p.attaching(&o))
	if !errors.Is(err, spdk.Unanswered) {
		p.answered(ctx, o)
	}
	return err == nil, err
}

// make creates the objects of a plan, and records the device.
func (p *Plugin) make(ctx context.Context, q request.Create, planned plan.Device) (string, error) {
	process, err := p.current(ctx)
	if err != nil {
		return "", err
	}
	d := table.Device{
		Volume: q.Volume, Name: planned.Name, Phase: table.Making, Mode: q.Mode, Modes: q.Modes,
		Contexts: q.Contexts, Process: process, Since: time.Now(),
	}
	for _, o := range planned.Objects {
		d.Objects = append(d.Objects, o.ID)
	}
	got, err := p.makeObjects(ctx, d, planned.Objects)
	if err != nil {
		return "", err
	}
	// The objects are not locked, so other volumes of the subsystem do not wait for
	// this namespace. They are not removed, since the record of d needs them.
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
	p.log.InfoContext(ctx, "The device is made", "volume", made.Volume, "device", made.Name, "mode", made.Mode, "kind", planned.Shown().Kind)
	return made.Name, nil
}

// intent returns the record of an object before it is created for d; first: it is
// not recorded as ours yet. An object that other volumes use keeps their paths. An
// attach is recorded when it is sent; an earlier unanswered one stays on record.
func (p *Plugin) intent(ctx context.Context, o plan.Object, d table.Device) (next table.Object, first bool) {
	have, known := p.table.Object(o.ID)
	if !slices.ContainsFunc(p.table.Users(o.ID), func(v string) bool { return v != d.Volume }) {
		next = table.Object{Object: o, Process: d.Process}
		switch {
		case o.Kind != plan.Controller:
			next.Doubt = p.config.Now().Add(doubt(o.Kind))
		case p.canAppear(have, d.Process):
			next.Doubt, next.Asked = have.Doubt, have.Asked
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
		p.log.WarnContext(ctx, "The subsystem is attached with other settings than this volume asks for; they stay as they are", "subsystem", have.Controller.SubNQN, "controller", o.Name)
	}
	return have, false
}

// sameSettings compares what volumes of one subsystem can ask for differently.
func sameSettings(a, b plan.ControllerSpec) bool {
	return a.Transport == b.Transport && a.Timeouts == b.Timeouts && a.IOQueues == b.IOQueues &&
		a.HeaderDigest == b.HeaderDigest && a.DataDigest == b.DataDigest &&
		a.DHChap == b.DHChap && a.DHChapCtrlr == b.DHChapCtrlr && a.TLS == b.TLS
}

// created is what is known once the objects of a device exist.
type created struct {
	bdevs  []string      // of the controller that was attached
	spared []plan.Object // existed before, and are not removed if the device is not made
}

// makeObjects records the objects, creates them in their order, and records the
// results. A failed call is rolled back.
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

// makeObject creates an object, and sets the results in its record. first: it is
// the first request for the object.
func (p *Plugin) makeObject(ctx context.Context, volumeID string, o *table.Object, first bool, got *created) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	outcome, err := p.objects.Make(ctx, o.Object, p.attaching(o))
	spared := outcome.Found && first
	if spared || errors.Is(err, object.ErrTaken) { // must not be removed if this call fails
		foreign := *o
		foreign.Foreign = true
		if err := p.table.PutObject(context.WithoutCancel(ctx), foreign); err != nil {
			p.log.ErrorContext(ctx, "object that existed before cannot be recorded as foreign", "object", o.ID.String(), "error", err)
		}
	}
	if err != nil {
		return err
	}
	if spared || outcome.Foreign && outcome.As == plan.SampleController(volumeID) {
		got.spared = append(got.spared, o.Object)
	}
	if outcome.PathsMissing {
		notify(p.wakePaths)
	}
	got.bdevs = outcome.Bdevs
	inherited := outcome.As != "" && o.As == outcome.As && !o.Foreign // another volume's, see commit
	o.Foreign, o.As = outcome.Foreign && !inherited || spared, outcome.As
	if o.Kind != plan.Controller { // the record of a controller has unanswered calls only
		o.Doubt = time.Time{}
	}
	return nil
}

// findDevice finds the namespace of a device on a controller, and so its name.
func (p *Plugin) findDevice(ctx context.Context, d table.Device, choice plan.Choice, bdevs []string) (table.Device, error) {
	shown, known := p.shown(d)
	if !known || shown.Kind != plan.Controller {
		return d, nil
	}
	var err error
	if d.Name, d.Namespace, err = p.objects.Namespace(ctx, shown.There().Name, choice, bdevs); err != nil {
		return d, fmt.Errorf("volume %s: subsystem %s: %w", d.Volume, shown.Controller.SubNQN, err)
	}
	return d, nil
}

// shown returns the record of the object that a host sees as the device.
func (p *Plugin) shown(d table.Device) (table.Object, bool) {
	return p.table.Object(d.Objects[len(d.Objects)-1])
}

// commit records a device as made, unless SNAP was restarted. The device then owns
// the spared objects, and what NVIDIA's sample plugin attached for its volume.
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
		return errs.Errorf(errs.Unavailable, "volume %s: SNAP was restarted while the device was made: ask again", d.Volume)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	var ours []table.Object
	for _, o := range spared {
		if have, known := p.table.Object(o.ID); known && (have.As == "" || have.As == plan.SampleController(d.Volume)) {
			have.Foreign = false
			ours = append(ours, have)
		}
	}
	d.Phase, d.Since = table.Made, time.Now()
	if err := p.table.Put(ctx, d, ours...); err != nil {
		return err
	}
	p.recordHeld(d)
	return nil
}

// rollBack removes what a failed call created, and returns the error of the call.
func (p *Plugin) rollBack(ctx context.Context, d table.Device, why error, remove func(context.Context, table.Device) error) error {
	if errors.Is(context.Cause(ctx), op.ErrClosed) {
		return why // the next start does it
	}
	if err := remove(context.WithoutCancel(ctx), d); err != nil {
		p.leave(ctx, d.Volume, err)
		return errors.Join(why, fmt.Errorf("and it could not be taken back yet: %w", err))
	}
	return why
}

// leave leaves the device of a volume to the cleanup.
func (p *Plugin) leave(ctx context.Context, volumeID string, why error) {
	p.log.WarnContext(ctx, "device not removed, will retry", "volume", volumeID, "error", why)
	p.mu.Lock()
	p.left[volumeID] = why
	p.mu.Unlock()
	notify(p.wakeCleanup)
}
