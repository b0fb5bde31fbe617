package plugin

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/spdk"
)

// Paths that a target lacks are tried again after a while, and after twice as
// long each time: while one is tried, which takes up to two minutes when its
// packets are lost, no other volume of the subsystem is made or deleted.
const (
	mendFirst = 30 * time.Second
	mendMost  = 10 * time.Minute
)

// later is when a controller's paths are tried again.
type later struct {
	at    time.Time
	pause time.Duration
}

// keepMending attaches missing paths until ctx ends.
func (p *Plugin) keepMending(ctx context.Context) {
	waiting := map[plan.ID]later{}
	for {
		maps.DeleteFunc(waiting, func(id plan.ID, _ later) bool { return len(p.table.Users(id)) == 0 })
		for _, o := range p.table.Objects() {
			if o.Controller == nil || o.Foreign || o.As != "" || len(o.Controller.Paths) < 2 || time.Now().Before(waiting[o.ID].at) {
				continue
			}
			if p.mend(ctx, o.ID) {
				delete(waiting, o.ID)
				continue
			}
			pause := min(max(2*waiting[o.ID].pause, mendFirst), mendMost)
			waiting[o.ID] = later{at: time.Now().Add(pause), pause: pause}
		}
		if !sleep(ctx, mendFirst, p.unmended) {
			return
		}
	}
}

// mend attaches the paths that one controller lacks; whole: it has all now, or
// is not there.
func (p *Plugin) mend(ctx context.Context, id plan.ID) (whole bool) {
	o, known := p.table.Object(id)
	if !known {
		return true
	}
	unlock, err := p.locks.Lock(ctx, lockKeys([]plan.Object{o.Object})...)
	if err != nil {
		return false
	}
	defer unlock()
	if o, known = p.table.Object(id); !known || len(p.table.Users(id)) == 0 {
		return true
	}
	missing, err := p.objects.Unmended(ctx, o.Object)
	if err == nil && !missing {
		return true
	}
	if err == nil {
		err = p.mendRecorded(ctx, o)
	}
	if err != nil && ctx.Err() == nil {
		p.log.WarnContext(ctx, "A path to a subsystem is still missing", "subsystem", o.Controller.SubNQN, "error", err)
	}
	return err == nil
}

// mendRecorded attaches missing paths. Each is on record before: an attach goes
// on when the plugin does not, and must not bring back a controller that is
// removed meanwhile.
func (p *Plugin) mendRecorded(ctx context.Context, o table.Object) error {
	err := p.objects.Mend(ctx, o.Object, p.attaching(&o))
	if !errors.Is(err, spdk.Unanswered) {
		p.answered(ctx, []table.Object{o})
	}
	return err
}
