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

// Create makes the device of a volume and returns its name, or returns that of
// the one that is there. What fails is taken back. ErrUnserved: SNAP can have no
// device of that mode.
func (p *Plugin) Create(ctx context.Context, q request.Create) (string, error) {
	// Contexts are left out: a retry with other ones is for the same device.
	return p.bounded(ctx, op.Request{
		Keys: []string{q.Volume}, Fingerprint: fmt.Sprint("CreateDevice ", q.Mode, q.Modes), What: "CreateDevice",
	}, func(ctx context.Context) (string, error) {
		name, err := p.create(ctx, q)
		if err == nil {
			// A DeleteDevice may have come too late to stop it: it is deleted
			// next, so it is not answered.
			err = undone(ctx)
		}
		return name, err
	})
}

func undone(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, op.ErrUndone) {
		return errs.Errorf(errs.Busy, "CreateDevice: %w", cause)
	}
	return nil
}

func (p *Plugin) create(ctx context.Context, q request.Create) (string, error) {
	var left error           // why what an earlier call began is not removed
	var pending *attachError // the reason, if it is that
	if d, known := p.table.Device(q.Volume); known {
		there, err := p.keep(ctx, d, q)
		if err != nil {
			return "", err
		}
		if there {
			return d.Name, nil
		}
		if err := p.takeBack(ctx, d); err != nil {
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
	// The controller of an attach that can still complete is this volume's: it
	// must be asked for again, or DeleteDevice would not wait for its end.
	if pending != nil && !slices.ContainsFunc(planned.Objects, func(o plan.Object) bool { return o.ID == pending.id }) {
		return "", left
	}
	return p.make(ctx, q, planned)
}

// keep tells whether the device on record is there and is what is asked for.
func (p *Plugin) keep(ctx context.Context, d table.Device, q request.Create) (bool, error) {
	if d.Phase != table.Made { // an earlier process of the plugin began it, or could not end it
		return false, nil
	}
	if err := sameKind(d, q); err != nil {
		return false, err
	}
	there, err := p.stillThere(ctx, d, q)
	if there {
		p.tellDifference(ctx, d, q)
	}
	return there, err
}

// sameKind refuses a retry that is for another device than the one that is there.
func sameKind(d table.Device, q request.Create) error {
	if d.Mode != q.Mode {
		return errs.Errorf(errs.Precondition, "volume %s has a device with volume_mode %s, and is asked for with %s: delete the device first", q.Volume, d.Mode, q.Mode)
	}
	if !slices.Equal(d.Modes, q.Modes) {
		return errs.Errorf(errs.Precondition, "volume %s has a device with access_modes %s, and is asked for with %s: delete the device first", q.Volume, modeWords(d.Modes), modeWords(q.Modes))
	}
	return nil
}

// checkIdentity refuses a namespace that has another UUID than the one that the
// volume had before: it may hold the data of somebody else.
func (p *Plugin) checkIdentity(q request.Create, uuid string) error {
	before := p.table.Identity(q.Volume)
	if before == "" || uuid == "" || uuid == before {
		return nil
	}
	if q.Access == nil {
		_ = q.Locate() // without a locator it accepts nothing
	}
	if a, ok := q.Access.(access.NVMe); ok && a.AcceptUUIDChange {
		return nil
	}
	return errs.Errorf(errs.Precondition, "volume %s: the namespace has UUID %s, and had UUID %s before: it was replaced, or its target gave it another one at a restart; delete the device, or set acceptUuidChange to true in the volume context if it holds the volume's data", q.Volume, uuid, before)
}

func modeWords(modes []storagev1.AccessMode) string {
	words := make([]string, len(modes))
	for i, m := range modes {
		words[i] = strings.TrimPrefix(m.String(), "ACCESS_MODE_")
	}
	return "[" + strings.Join(words, " ") + "]"
}

// stillThere tells whether SNAP holds a device that was made. One whose
// controller has failed is woken, or else it is an error: a host may use it.
func (p *Plugin) stillThere(ctx context.Context, d table.Device, q request.Create) (bool, error) {
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
	shown := d.Objects[len(d.Objects)-1]
	o, ok := p.table.Object(shown)
	if !ok || o.Foreign || o.As != "" {
		return false, errs.Errorf(errs.Precondition, "volume %s: %s, and it was not attached by this plugin: reset it with bdev_nvme_reset_controller", d.Volume, state.Why)
	}
	unlock, err := p.locks.Lock(ctx, lockKeys([]plan.Object{o.Object})...)
	if err != nil {
		return false, err
	}
	defer unlock()
	_, err = p.objects.Make(ctx, o.Object, p.attaching(&o))
	if !errors.Is(err, spdk.Unanswered) {
		p.answered(ctx, []table.Object{o})
	}
	return err == nil, err
}

// tellDifference logs that a retry came with other contexts, by their keys.
func (p *Plugin) tellDifference(ctx context.Context, d table.Device, q request.Create) {
	if keys := d.Contexts.Differing(q.Contexts); len(keys) > 0 {
		p.log.WarnContext(ctx, "CreateDevice came with other contexts than those that the device was made with; it is kept as it is",
			"volume", d.Volume, "device", d.Name, "differ", keys)
	}
}

// make makes all the objects of a plan, and then the device.
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
	// No lock is held: other volumes of the subsystem need not wait for this
	// one's namespace, and what this one uses is not removed.
	made, err := p.findDevice(ctx, d, planned.Choice, got.bdevs)
	if err == nil {
		err = p.checkIdentity(q, made.Namespace.UUID)
	}
	if err == nil {
		crashpoint.Hit("dpu-create.made")
		err = p.commit(ctx, made, got.spared)
	}
	if err != nil {
		return "", p.abandon(ctx, d, err, p.takeBack)
	}
	crashpoint.Hit("dpu-create.committed")
	p.log.InfoContext(ctx, "The device is made", "volume", made.Volume, "device", made.Name, "mode", made.Mode, "kind", planned.Shown().Kind)
	return made.Name, nil
}

// intent is the record of an object that d asks for next, and whether it is not
// on record as ours yet. One that other volumes use keeps the paths that they
// gave it. An attach is recorded when it is sent; one that was not answered before
// stays on record.
func (p *Plugin) intent(ctx context.Context, o plan.Object, d table.Device) (next table.Object, first bool) {
	have, known := p.table.Object(o.ID)
	if !slices.ContainsFunc(p.table.Users(o.ID), func(v string) bool { return v != d.Volume }) {
		next = table.Object{Object: o, Process: d.Process}
		switch {
		case o.Kind != plan.Controller:
			next.Doubt = p.config.Now().Add(doubt(o.Kind))
		case p.mayCome(have, d.Process):
			next.Doubt, next.Asked = have.Doubt, have.Asked
		}
		return next, !known || have.Foreign
	}
	if o.Controller == nil {
		return have, false
	}
	merged := *have.Controller
	merged.Paths = slices.Clone(merged.Paths)
	for _, path := range o.Controller.Paths {
		if !slices.Contains(merged.Paths, path) {
			merged.Paths = append(merged.Paths, path)
		}
	}
	if !sameSettings(merged, *o.Controller) {
		p.log.WarnContext(ctx, "The subsystem is attached with other settings than this volume asks for; they stay as they are", "subsystem", merged.SubNQN, "controller", o.Name)
	}
	have.Controller = &merged
	return have, false
}

// sameSettings compares all but the paths.
func sameSettings(a, b plan.ControllerSpec) bool {
	return a.Transport == b.Transport && a.Timeouts == b.Timeouts && a.IOQueues == b.IOQueues &&
		a.HeaderDigest == b.HeaderDigest && a.DataDigest == b.DataDigest &&
		a.DHChap == b.DHChap && a.DHChapCtrlr == b.DHChapCtrlr && a.TLS == b.TLS
}

// learnt is what is known once the objects of a device are there.
type learnt struct {
	bdevs  []string      // of the controller that was attached
	spared []plan.Object // were there before, and stay if the device is not made
}

// makeObjects puts the intent on record, makes the objects in their order, and
// records that they are there. What fails is taken back.
func (p *Plugin) makeObjects(ctx context.Context, d table.Device, planned []plan.Object) (learnt, error) {
	unlock, err := p.locks.Lock(ctx, lockKeys(planned)...)
	if err != nil {
		return learnt{}, err
	}
	defer unlock()
	objects, first := make([]table.Object, len(planned)), make([]bool, len(planned))
	for i, o := range planned {
		objects[i], first[i] = p.intent(ctx, o, d)
	}
	if err := p.table.Put(ctx, d, objects...); err != nil {
		return learnt{}, err
	}
	crashpoint.Hit("dpu-create.recorded")
	var got learnt
	for i := range objects {
		if err := p.makeObject(ctx, d.Volume, &objects[i], first[i], &got); err != nil {
			if !errors.Is(err, spdk.Unanswered) {
				p.answered(ctx, objects)
			}
			return learnt{}, p.abandon(ctx, d, fmt.Errorf("volume %s: %w", d.Volume, err), p.takeBackLocked)
		}
		crashpoint.Hit("dpu-create.object")
	}
	if err := p.table.Put(ctx, d, objects...); err != nil {
		return learnt{}, p.abandon(ctx, d, err, p.takeBackLocked)
	}
	return got, nil
}

// makeObject makes one, and notes in its record what SNAP answered. first: no
// call of ours asked for it before.
func (p *Plugin) makeObject(ctx context.Context, volumeID string, o *table.Object, first bool, got *learnt) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	outcome, err := p.objects.Make(ctx, o.Object, p.attaching(o))
	spared := outcome.Found && first // when this call fails it stays
	if spared || errors.Is(err, object.ErrTaken) {
		p.spare(ctx, *o)
	}
	if err != nil {
		return err
	}
	if spared || outcome.Foreign && outcome.As == plan.SampleController(volumeID) {
		got.spared = append(got.spared, o.Object)
	}
	if outcome.Unmended {
		wakeUp(p.unmended)
	}
	got.bdevs = outcome.Bdevs
	inherited := outcome.As != "" && o.As == outcome.As && !o.Foreign // another volume's, see commit
	o.Foreign, o.As = outcome.Foreign && !inherited || spared, outcome.As
	if o.Kind != plan.Controller { // whose record has no call that was answered
		o.Doubt = time.Time{}
	}
	return nil
}

// findDevice finds the name of the device, which of a controller follows from
// the namespace.
func (p *Plugin) findDevice(ctx context.Context, d table.Device, choice plan.Choice, bdevs []string) (table.Device, error) {
	shown, known := p.table.Object(d.Objects[len(d.Objects)-1])
	if !known || shown.Kind != plan.Controller {
		return d, nil
	}
	name := shown.Name
	if shown.As != "" {
		name = shown.As
	}
	var err error
	if d.Name, d.Namespace, err = p.objects.Namespace(ctx, name, choice, bdevs); err != nil {
		return d, fmt.Errorf("volume %s: subsystem %s: %w", d.Volume, shown.Controller.SubNQN, err)
	}
	return d, nil
}

// spare notes that an object is not to be removed, for as long as its device is
// being made.
func (p *Plugin) spare(ctx context.Context, o table.Object) {
	o.Foreign = true
	if err := p.table.PutObject(context.WithoutCancel(ctx), o); err != nil {
		p.log.ErrorContext(ctx, "What was there before cannot be noted", "object", o.ID.String(), "error", err)
	}
}

// commit records a device as made, unless SNAP is another process by now. What
// was spared is the device's from then on; so is what NVIDIA's sample plugin
// attached for its volume.
func (p *Plugin) commit(ctx context.Context, d table.Device, spared []plan.Object) error {
	unlock, err := p.locks.Lock(ctx, lockKeys(spared)...)
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
	p.sawHeld(d)
	return nil
}

// abandon takes back what a call began that failed, and returns why it failed.
func (p *Plugin) abandon(ctx context.Context, d table.Device, why error, takeBack func(context.Context, table.Device) error) error {
	if errors.Is(context.Cause(ctx), op.ErrClosed) {
		return why // the next start does it
	}
	if err := takeBack(context.WithoutCancel(ctx), d); err != nil {
		p.leave(ctx, d.Volume, err)
		return errors.Join(why, fmt.Errorf("and it could not be taken back yet: %w", err))
	}
	return why
}

// leave hands a volume to the keeper.
func (p *Plugin) leave(ctx context.Context, volumeID string, why error) {
	p.log.WarnContext(ctx, "What a call began could not be taken back; it will be tried again", "volume", volumeID, "error", why)
	p.mu.Lock()
	p.left[volumeID] = why
	p.mu.Unlock()
	p.nudge()
}
