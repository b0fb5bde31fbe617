package plugin

import (
	"context"
	"fmt"
	"time"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/internal/crashpoint"
)

// deleteUnrecorded removes a device of which nothing is on record, as after the
// record was lost, when SNAP has it and its name is one that this plugin gives, or NVIDIA's sample.
// What other volumes on record use stays, and goes with the last of them.
func (p *Plugin) deleteUnrecorded(ctx context.Context, r request.Device) error {
	sameName := func(d table.Device) bool { return d.Name == r.Name }
	if others, _ := p.table.List("", 1, sameName); len(others) > 0 || r.Name == "" {
		return nil
	}
	planned, err := p.objects.Find(ctx, p.config.Settings.Named(r.Volume, r.Name))
	if err != nil {
		return fmt.Errorf("volume %s: whether SNAP holds device %s, which is not on record, is not known: %w", r.Volume, r.Name, err)
	}
	if len(planned) == 0 {
		return nil
	}
	unlock, err := p.locks.Lock(ctx, lockKeys(planned)...)
	if err != nil {
		return err
	}
	defer unlock()
	d, objects, err := p.removal(ctx, r, planned)
	if err != nil {
		return err
	}
	if err := p.checkHidden(ctx, d); err != nil {
		return err
	}
	if used, err := p.inherit(ctx, r.Volume, planned); used || err != nil {
		return err
	}
	if err := p.table.Put(ctx, d, objects...); err != nil {
		return err
	}
	crashpoint.Hit("dpu-delete.recorded")
	if err := p.takeBackLocked(ctx, d); err != nil {
		p.leave(ctx, d.Volume, err)
		return fmt.Errorf("volume %s: %w", d.Volume, err)
	}
	p.log.WarnContext(ctx, "device removed that was not on record", "volume", d.Volume, "device", d.Name)
	return nil
}

// inherit leaves a controller that NVIDIA's sample plugin attached for a volume
// to the other volumes that use it, if there are any: it goes with the last.
func (p *Plugin) inherit(ctx context.Context, volumeID string, planned []plan.Object) (used bool, err error) {
	name := planned[len(planned)-1].Name
	if name != plan.SampleController(volumeID) {
		return false, nil
	}
	for _, o := range p.table.Objects() {
		if o.As == name && len(p.table.Users(o.ID)) > 0 {
			o.Foreign = false
			return true, p.table.PutObject(ctx, o)
		}
	}
	return false, nil
}

// removal is the record of a device that is about to be removed. Objects that
// are on record stay as they are.
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
