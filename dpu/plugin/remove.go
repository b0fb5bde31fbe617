package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/op"
)

// Delete succeeds if the device does not exist or has another name. It cancels
// a Create of the volume and waits for its roll-back. errs.Precondition: a host
// can still see the device.
func (p *Plugin) Delete(ctx context.Context, r request.Device) error {
	if p.isOther(r) {
		p.log.InfoContext(ctx, "device name does not match, nothing deleted", "volume", r.Volume, "device", r.Name)
		return nil
	}
	_, err := p.bounded(ctx, op.Request{
		Keys: []string{volumeKey(r.Volume)}, Cancels: []string{volumeKey(r.Volume)}, Fingerprint: "DeleteDevice " + r.Name, What: "DeleteDevice",
	}, func(ctx context.Context) (string, error) {
		err := p.delete(ctx, r)
		if _, known := p.table.Device(r.Volume); err == nil && !known {
			err = p.table.ForgetIdentity(ctx, r.Volume)
		}
		return "", err
	})
	return err
}

// isOther reports whether the volume has a device of another name. A device
// being created might have no name yet, so it matches every name.
func (p *Plugin) isOther(r request.Device) bool {
	d, known := p.table.Device(r.Volume)
	return known && d.Phase == table.Ready && r.Name != "" && d.Name != r.Name
}

func (p *Plugin) delete(ctx context.Context, r request.Device) error {
	d, known := p.table.Device(r.Volume)
	if !known {
		return p.deleteUnrecorded(ctx, r)
	}
	if p.isOther(r) {
		return nil
	}
	if d.Phase == table.Ready {
		if err := p.checkHidden(ctx, d.Objects[len(d.Objects)-1].Kind, request.Device{Volume: d.Volume, Name: d.Name}); err != nil {
			return err
		}
		// A smaller record fits on a full disk.
		d.Phase, d.Since, d.Contexts = table.Removing, time.Now(), request.Contexts{}
		if err := p.table.Put(ctx, d); err != nil {
			return err
		}
		crashpoint.Hit("dpu-delete.recorded")
	}
	if err := p.removeDevice(ctx, d); err != nil {
		p.leave(ctx, d.Volume, err)
		return fmt.Errorf("volume %s: %w", d.Volume, err)
	}
	p.log.InfoContext(ctx, "device deleted", "volume", d.Volume, "device", d.Name)
	return nil
}

// checkHidden refuses a device that a host can still see.
func (p *Plugin) checkHidden(ctx context.Context, kind plan.Kind, r request.Device) error {
	where, err := p.objects.Exposed(ctx, kind, r.Name)
	if err != nil {
		return fmt.Errorf("volume %s: check whether a host can see the device: %w", r.Volume, err)
	}
	if where != "" {
		return errs.Errorf(errs.Precondition, "volume %s: device %s is still exposed to the host as %s: remove the exposure first (the node driver does this if GetSNAPProvider returns a name; manually: snap_rpc.py of SNAP)", r.Volume, r.Name, where)
	}
	return nil
}

// removeDevice removes a device's record and the objects that no other device
// needs.
func (p *Plugin) removeDevice(ctx context.Context, d table.Device) error {
	var objects []plan.Object
	for _, id := range d.Objects {
		if o, known := p.table.Object(id); known {
			objects = append(objects, o.Object)
		}
	}
	unlock, err := p.lock(ctx, objects...)
	if err != nil {
		return err
	}
	defer unlock()
	return p.removeDeviceLocked(ctx, d)
}

// removeDeviceLocked is removeDevice for a caller that has locked the objects.
// While an attach can still complete, the device stays on record and the error
// is an attachError.
func (p *Plugin) removeDeviceLocked(ctx context.Context, d table.Device) error {
	process, err := p.current(ctx)
	if err != nil {
		return err
	}
	var gone []plan.ID
	var pending error
	for _, id := range slices.Backward(d.Objects) {
		o, ok := p.table.Object(id)
		if !ok || slices.ContainsFunc(p.table.Users(id), func(v string) bool { return v != d.Volume }) {
			continue
		}
		removed, err := p.removeObject(ctx, o, process)
		if _, is := errors.AsType[*attachError](err); is {
			pending = err // the other objects are removed anyway
			continue
		}
		if err != nil {
			return err
		}
		crashpoint.Hit("dpu-delete.object")
		if removed {
			gone = append(gone, id)
		}
	}
	if pending != nil {
		return pending
	}
	if err := p.table.Drop(ctx, d.Volume, gone...); err != nil {
		return err
	}
	crashpoint.Hit("dpu-delete.forgotten")
	p.mu.Lock()
	delete(p.held, d.Volume)
	delete(p.left, d.Volume)
	p.mu.Unlock()
	if len(gone) < len(d.Objects) {
		notify(p.wakeCleanup)
	}
	return nil
}

// removeObject removes an unused object, unless it is foreign. forgettable: its
// record can be dropped. An attachError is returned while an attach can still
// complete.
func (p *Plugin) removeObject(ctx context.Context, o table.Object, process string) (forgettable bool, err error) {
	forgettable = !p.canAppear(o, process)
	if o.Foreign {
		return forgettable, nil
	}
	var pending error
	if !forgettable && o.Kind == plan.Controller {
		var exists bool
		if exists, pending, err = p.checkAttach(ctx, o); err != nil {
			return false, err
		}
		if !exists { // a late attach must be observed before its controller is removed
			return false, pending
		}
		forgettable = pending == nil
	}
	if err := p.objects.Remove(ctx, o.Actual()); err != nil {
		return false, fmt.Errorf("remove %s: %w", o.ID, err)
	}
	return forgettable, pending
}

// deleteUnrecorded removes the device of a volume that is not on record, if SNAP has
// it under a name that this plugin or NVIDIA's sample plugin assigns. Without a name
// it looks up those that depend on the volume. Another name is that of a device that
// this plugin would not remove, but a host must not see.
func (p *Plugin) deleteUnrecorded(ctx context.Context, r request.Device) error {
	if r.Name == "" {
		for _, name := range p.config.Settings.Names(r.Volume) {
			if err := p.deleteNamed(ctx, request.Device{Volume: r.Volume, Name: name}); err != nil {
				return err
			}
		}
		return p.checkControllers(ctx, r.Volume)
	}
	sameName := func(d table.Device) bool { return d.Name == r.Name }
	if others, _ := p.table.List("", 1, sameName); len(others) > 0 {
		return nil
	}
	for _, kind := range []plan.Kind{plan.Controller, plan.AIOFsdev} {
		if err := p.checkHidden(ctx, kind, r); err != nil {
			return err
		}
	}
	return p.deleteNamed(ctx, r)
}

// checkControllers refuses a controller of NVIDIA's sample plugin for the volume that
// no device on record uses. The names of this plugin's controllers do not depend on
// the volume, and one without a record can belong to another plugin of this kind.
func (p *Plugin) checkControllers(ctx context.Context, volumeID string) error {
	names, err := p.objects.Controllers(ctx)
	if err != nil {
		return fmt.Errorf("volume %s: look for its controller in SNAP: %w", volumeID, err)
	}
	if sample := plan.SampleController(volumeID); slices.Contains(names, sample) {
		if _, used := p.foreign(sample); !used {
			return errs.Errorf(errs.Precondition, "volume %s has no record, and SNAP has controller %s, which NVIDIA's sample plugin attaches for this volume: detach it with bdev_nvme_detach_controller, or call DeleteDevice with the name of its bdev", volumeID, sample)
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		_, known := p.table.Object(plan.ID{Kind: plan.Controller, Name: name})
		return known || !plan.IsController(name)
	})
	if len(names) > 0 {
		p.log.WarnContext(ctx, "unrecorded controllers stay, one can be of a device deleted without a name", "volume", volumeID, "controllers", names)
	}
	return nil
}

// deleteNamed removes a device by its name. Shared objects are removed with the last
// volume that uses them.
func (p *Plugin) deleteNamed(ctx context.Context, r request.Device) error {
	planned, err := p.objects.Find(ctx, p.config.Settings.Named(r.Volume, r.Name))
	if err != nil {
		return fmt.Errorf("volume %s: look up device %s, which is not on record, in SNAP: %w", r.Volume, r.Name, err)
	}
	if len(planned) == 0 {
		return nil
	}
	unlock, err := p.lock(ctx, planned...)
	if err != nil {
		return err
	}
	defer unlock()
	d, objects, err := p.removal(ctx, r, planned)
	if err != nil {
		return err
	}
	if err := p.checkHidden(ctx, planned[len(planned)-1].Kind, r); err != nil {
		return err
	}
	if used, err := p.inherit(ctx, r.Volume, planned); used || err != nil {
		return err
	}
	if err := p.table.Put(ctx, d, objects...); err != nil {
		return err
	}
	crashpoint.Hit("dpu-delete.recorded")
	if err := p.removeDeviceLocked(ctx, d); err != nil {
		p.leave(ctx, d.Volume, err)
		return fmt.Errorf("volume %s: %w", d.Volume, err)
	}
	p.log.WarnContext(ctx, "unrecorded device deleted", "volume", d.Volume, "device", d.Name)
	return nil
}

// inherit keeps a controller of NVIDIA's sample plugin that other volumes use,
// until the last of them is removed.
func (p *Plugin) inherit(ctx context.Context, volumeID string, planned []plan.Object) (used bool, err error) {
	name := planned[len(planned)-1].Name
	if name != plan.SampleController(volumeID) {
		return false, nil
	}
	o, used := p.foreign(name)
	if !used {
		return false, nil
	}
	o.Foreign = false
	return true, p.table.PutObject(ctx, o)
}

// foreign returns the record of another program's controller that a device uses.
func (p *Plugin) foreign(name string) (o table.Object, used bool) {
	all := p.table.Objects()
	i := slices.IndexFunc(all, func(o table.Object) bool { return o.ForeignName == name && len(p.table.Users(o.ID)) > 0 })
	if i < 0 {
		return table.Object{}, false
	}
	return all[i], true
}

// removal returns the records of a device to remove and of its objects.
// Existing object records are kept.
func (p *Plugin) removal(ctx context.Context, r request.Device, planned []plan.Object) (table.Device, []table.Object, error) {
	process, err := p.current(ctx)
	if err != nil {
		return table.Device{}, nil, err
	}
	d := table.Device{Volume: r.Volume, Name: r.Name, Phase: table.Removing, Mode: request.Block, Process: process, Since: time.Now()}
	var objects []table.Object
	for _, o := range planned {
		if o.Kind == plan.AIOFsdev {
			d.Mode = request.Filesystem
		}
		have, known := p.table.Object(o.ID)
		if !known {
			have = table.Object{Object: o, Process: process}
		}
		d.Objects, objects = append(d.Objects, o.ID), append(objects, have)
	}
	return d, objects, nil
}
