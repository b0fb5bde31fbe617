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

// Delete removes the device of a volume; one that is not there is removed, and
// so is one of another name. It cancels a Create of the volume and waits for its
// roll-back. errs.Precondition: a host can still see the device.
func (p *Plugin) Delete(ctx context.Context, r request.Device) error {
	if p.isOther(r) {
		p.log.InfoContext(ctx, "DeleteDevice names a device that the volume does not have; nothing is deleted", "volume", r.Volume, "device", r.Name)
		return nil
	}
	_, err := p.bounded(ctx, op.Request{
		Keys: []string{r.Volume}, Cancels: []string{r.Volume}, Fingerprint: "DeleteDevice " + r.Name, What: "DeleteDevice",
	}, func(ctx context.Context) (string, error) {
		err := p.delete(ctx, r)
		if _, known := p.table.Device(r.Volume); err == nil && !known {
			err = p.table.ForgetIdentity(ctx, r.Volume)
		}
		return "", err
	})
	return err
}

// isOther tells whether a name is not that of the volume's device. While one is
// made its name may not be known yet, and whatever is made is meant.
func (p *Plugin) isOther(r request.Device) bool {
	d, known := p.table.Device(r.Volume)
	return known && d.Phase == table.Made && r.Name != "" && d.Name != r.Name
}

func (p *Plugin) delete(ctx context.Context, r request.Device) error {
	d, known := p.table.Device(r.Volume)
	if !known {
		return p.deleteUnrecorded(ctx, r)
	}
	if p.isOther(r) {
		return nil
	}
	if d.Phase == table.Made {
		if err := p.checkHidden(ctx, d); err != nil {
			return err
		}
		// The contexts are of no use any more, and a record that shrinks has room
		// on a full disk.
		d.Phase, d.Since, d.Contexts = table.Removing, time.Now(), request.Contexts{}
		if err := p.table.Put(ctx, d); err != nil {
			return err
		}
		crashpoint.Hit("dpu-delete.recorded")
	}
	if err := p.takeBack(ctx, d); err != nil {
		p.leave(ctx, d.Volume, err)
		return fmt.Errorf("volume %s: %w", d.Volume, err)
	}
	p.log.InfoContext(ctx, "The device is removed", "volume", d.Volume, "device", d.Name)
	return nil
}

// checkHidden refuses to take a device away from under a host.
func (p *Plugin) checkHidden(ctx context.Context, d table.Device) error {
	where, err := p.objects.Exposed(ctx, d.Objects[len(d.Objects)-1].Kind, d.Name)
	if err != nil {
		return fmt.Errorf("volume %s: whether a host can see its device is not known: %w", d.Volume, err)
	}
	if where != "" {
		return errs.Errorf(errs.Precondition, "volume %s: device %s is still shown to the host, as %s: hide it first (the node driver does, if GetSNAPProvider gives it a name; by hand: SNAP's own snap_rpc.py)", d.Volume, d.Name, where)
	}
	return nil
}

// takeBack removes what only this device needs, and forgets it.
func (p *Plugin) takeBack(ctx context.Context, d table.Device) error {
	unlock, err := p.locks.Lock(ctx, lockKeys(p.recorded(d))...)
	if err != nil {
		return err
	}
	defer unlock()
	return p.takeBackLocked(ctx, d)
}

func (p *Plugin) recorded(d table.Device) []plan.Object {
	var all []plan.Object
	for _, id := range d.Objects {
		if o, ok := p.table.Object(id); ok {
			all = append(all, o.Object)
		}
	}
	return all
}

// takeBackLocked is takeBack for a caller that holds the locks of the objects.
// While an attach can still complete, the device stays on record and the error
// is an attachError.
func (p *Plugin) takeBackLocked(ctx context.Context, d table.Device) error {
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
			pending = err // the other objects are removed all the same
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
	p.forget(d.Volume)
	if len(gone) < len(d.Objects) {
		p.nudge() // some may be in doubt
	}
	return nil
}

// removeObject removes an object that no device needs, if it is ours, and
// reports whether it can be forgotten. attachError: its controller cannot.
func (p *Plugin) removeObject(ctx context.Context, o table.Object, process string) (forgettable bool, err error) {
	forgettable = !p.mayCome(o, process)
	if o.Foreign {
		return forgettable, nil
	}
	var pending error
	if !forgettable && o.Kind == plan.Controller {
		var exists bool
		if exists, pending, err = p.checkAttach(ctx, o); err != nil {
			return false, err
		}
		if !exists { // an attach that completes now must be seen before its controller is removed
			return false, pending
		}
		forgettable = pending == nil
	}
	if err := p.objects.Remove(ctx, o.There()); err != nil {
		return false, fmt.Errorf("%s cannot be removed: %w", o.ID, err)
	}
	return forgettable, pending
}

// forget drops what is known in memory of a volume without a device.
func (p *Plugin) forget(volumeID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.good, volumeID)
	delete(p.left, volumeID)
}
