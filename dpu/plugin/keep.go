package plugin

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
)

// keepSlow is how often the keeper looks when nothing is left to do.
const keepSlow = 30 * time.Second

// Run keeps SNAP and the record together until ctx ends or the plugin is closed: it
// takes back what crashes and failures left, and attaches paths that were missing.
func (p *Plugin) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.closing, func() { cancel(op.ErrClosed) })()
	var mending sync.WaitGroup
	mending.Go(func() { p.keepMending(ctx) })
	defer mending.Wait()
	for {
		pause := keepSlow
		if p.workOff(ctx) {
			pause = p.config.KeepEvery
		}
		if !sleep(ctx, pause, p.wake) {
			return nil
		}
	}
}

// sleep waits until it is woken or the time is over; false: ctx ended.
func sleep(ctx context.Context, pause time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-timer.C:
	}
	return true
}

// workOff takes back what nobody needs, and tells whether something is left.
func (p *Plugin) workOff(ctx context.Context) (left bool) {
	if err := p.rpc.WaitReady(ctx); err != nil {
		return ctx.Err() == nil
	}
	process, err := p.current(ctx)
	if err != nil {
		return ctx.Err() == nil
	}
	patience := time.AfterFunc(readyAfter, p.setBegun)
	defer patience.Stop()
	p.mu.Lock()
	volumes := slices.Sorted(maps.Keys(p.left))
	p.mu.Unlock()
	left = atOnce(volumes, func(v string) bool { return p.finish(ctx, v) })
	left = atOnce(p.table.Unused(), func(o table.Object) bool { return p.dropUnused(ctx, o, process) }) || left
	if ctx.Err() == nil {
		p.setBegun()
	}
	return left
}

// readyAfter is how long the plugin is not ready for what an earlier process of
// it left: one target that is away must not keep all volumes of a DPU waiting.
const readyAfter = 10 * time.Second

func (p *Plugin) setBegun() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = true
}

// atOnce works on all, some at a time, and tells whether one was not done.
func atOnce[T any](all []T, work func(T) (done bool)) (left bool) {
	const workers = 16
	var mu sync.Mutex
	var running sync.WaitGroup
	turns := make(chan struct{}, workers)
	for _, one := range all {
		turns <- struct{}{}
		running.Go(func() {
			defer func() { <-turns }()
			done := work(one)
			mu.Lock()
			defer mu.Unlock()
			left = left || !done
		})
	}
	running.Wait()
	return left
}

// finish takes back the device of a volume that was left; done: it is.
func (p *Plugin) finish(ctx context.Context, volumeID string) (done bool) {
	_, err := op.Do(ctx, p.ops, op.Request{Keys: []string{volumeID}, What: "taking back"}, func(ctx context.Context) (string, error) {
		d, known := p.table.Device(volumeID)
		if !known || d.Phase == table.Made { // somebody was here before
			return "", nil
		}
		return "", p.takeBack(ctx, d)
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.left, volumeID)
		return true
	}
	if !errors.Is(err, errs.Busy) && ctx.Err() == nil {
		before := p.left[volumeID]
		p.left[volumeID] = err
		if before == nil || before.Error() != err.Error() { // once, not every second
			p.log.WarnContext(ctx, "What was left of a device cannot be taken back yet", "volume", volumeID, "error", err)
		}
	}
	return false
}

// dropUnused removes an object that no device needs, and forgets it once it
// cannot come any more.
func (p *Plugin) dropUnused(ctx context.Context, o table.Object, process string) (done bool) {
	unlock, err := p.locks.Lock(ctx, lockKeys([]plan.Object{o.Object})...)
	if err != nil {
		return false
	}
	defer unlock()
	o, known := p.table.Object(o.ID)
	if !known || len(p.table.Users(o.ID)) > 0 {
		return true
	}
	forgettable, err := p.removeObject(ctx, o, process)
	if forgettable {
		err = p.table.Drop(ctx, "", o.ID)
		done = err == nil
	}
	p.noteStuck(ctx, o.ID, err)
	return done
}

// noteStuck keeps why an object cannot be removed, and logs it once.
func (p *Plugin) noteStuck(ctx context.Context, id plan.ID, err error) {
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.stuck[id]
	delete(p.stuck, id)
	if err == nil {
		return
	}
	p.stuck[id] = err
	if before == nil || before.Error() != err.Error() {
		p.log.WarnContext(ctx, "What no device needs cannot be removed yet", "object", id.String(), "error", err)
	}
}
