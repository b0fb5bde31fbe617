package plugin

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/spdk"
)

const (
	// cleanupInterval applies when nothing is left to remove.
	cleanupInterval = 30 * time.Second
	// readyAfter bounds how long the first cleanup keeps the plugin from being
	// ready: one unreachable target must not block all volumes of a DPU.
	readyAfter = 10 * time.Second

	// Missing paths are retried with exponential backoff: an attach takes up to
	// two minutes and blocks other volumes of the subsystem.
	minPathBackoff = 30 * time.Second
	maxPathBackoff = 10 * time.Minute
)

// Run removes what crashes and failed calls left, and attaches missing paths,
// until ctx ends or the plugin is closed. These are two loops: an attach must
// not delay the cleanup.
func (p *Plugin) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.closing, func() { cancel(op.ErrClosed) })() // the only cause that ends an attach
	var paths sync.WaitGroup
	defer paths.Wait()
	paths.Go(func() {
		backoffs := map[plan.ID]backoff{}
		repeat(ctx, p.wakePaths, func() time.Duration {
			p.attachMissingPaths(ctx, backoffs)
			return minPathBackoff
		})
	})
	repeat(ctx, p.wakeCleanup, func() time.Duration { return p.cleanUp(ctx) })
	return nil
}

// repeat calls work until ctx ends, after the returned pause or when woken.
func repeat(ctx context.Context, wake <-chan struct{}, work func() (pause time.Duration)) {
	for {
		pause := time.After(work())
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-pause:
		}
	}
}

func notify(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// cleanUp removes what no device needs, and returns the pause until the next
// run.
func (p *Plugin) cleanUp(ctx context.Context) (pause time.Duration) {
	if p.rpc.WaitReady(ctx) != nil {
		return p.config.RetryEvery
	}
	process, err := p.current(ctx)
	if err != nil {
		return p.config.RetryEvery
	}
	defer time.AfterFunc(readyAfter, func() { p.cleanedUp.Store(true) }).Stop()
	p.mu.Lock()
	volumes := slices.Sorted(maps.Keys(p.left))
	p.mu.Unlock()
	complete := forEach(volumes, func(v string) bool { return p.removeLeft(ctx, v) })
	complete = forEach(p.table.Unused(), func(o table.Object) bool { return p.removeUnused(ctx, o, process) }) && complete
	if ctx.Err() == nil {
		p.cleanedUp.Store(true)
	}
	if complete {
		return cleanupInterval
	}
	return p.config.RetryEvery
}

// forEach runs 16 at a time, and reports whether all are done.
func forEach[T any](all []T, work func(T) (done bool)) (complete bool) {
	var left atomic.Bool
	var running sync.WaitGroup
	limit := make(chan struct{}, 16)
	for _, one := range all {
		limit <- struct{}{}
		running.Go(func() {
			defer func() { <-limit }()
			if !work(one) {
				left.Store(true)
			}
		})
	}
	running.Wait()
	return !left.Load()
}

func (p *Plugin) removeLeft(ctx context.Context, volumeID string) (done bool) {
	_, err := op.Do(ctx, p.ops, op.Request{Keys: []string{volumeKey(volumeID)}, What: "cleanup"}, func(ctx context.Context) (string, error) {
		d, known := p.table.Device(volumeID)
		if !known || d.Phase == table.Ready { // a call removed it, or created it again
			return "", nil
		}
		return "", p.removeDevice(ctx, d)
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.left, volumeID)
	} else if !errors.Is(err, errs.Busy) && ctx.Err() == nil && setReason(p.left, volumeID, err) {
		p.log.WarnContext(ctx, "device cannot be removed yet, will retry", "volume", volumeID, "err", err)
	}
	return err == nil
}

// removeUnused removes an unneeded object, and its record once no unanswered
// call can create the object.
func (p *Plugin) removeUnused(ctx context.Context, o table.Object, process string) (done bool) {
	unlock, err := p.lock(ctx, o.Object)
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
	}
	if ctx.Err() == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if err == nil {
			delete(p.stuck, o.ID)
		} else if setReason(p.stuck, o.ID, err) {
			p.log.WarnContext(ctx, "unused object cannot be removed yet, will retry", "object", o.ID.String(), "err", err)
		}
	}
	return forgettable && err == nil
}

// setReason records an error, and reports whether it is new and must be logged.
func setReason[K comparable](reasons map[K]error, key K, err error) (changed bool) {
	before := reasons[key]
	reasons[key] = err
	return before == nil || before.Error() != err.Error()
}

type backoff struct {
	until time.Time
	pause time.Duration
}

func (p *Plugin) attachMissingPaths(ctx context.Context, backoffs map[plan.ID]backoff) {
	maps.DeleteFunc(backoffs, func(id plan.ID, _ backoff) bool { return len(p.table.Users(id)) == 0 })
	for _, o := range p.table.Objects() {
		if o.Controller == nil || o.Foreign || o.ForeignName != "" || len(o.Controller.Paths) < 2 || time.Now().Before(backoffs[o.ID].until) {
			continue
		}
		if p.attachMissing(ctx, o) {
			delete(backoffs, o.ID)
			continue
		}
		pause := min(max(2*backoffs[o.ID].pause, minPathBackoff), maxPathBackoff)
		backoffs[o.ID] = backoff{until: time.Now().Add(pause), pause: pause}
	}
}

// attachMissing reports whether all paths are attached, or the controller does
// not exist.
func (p *Plugin) attachMissing(ctx context.Context, o table.Object) (done bool) {
	unlock, err := p.lock(ctx, o.Object)
	if err != nil {
		return false
	}
	defer unlock()
	o, known := p.table.Object(o.ID)
	if !known || len(p.table.Users(o.ID)) == 0 {
		return true
	}
	// Each attach is recorded before it is sent: if SNAP completes it after a
	// crash of the plugin, it must not bring back a controller that was removed
	// meanwhile.
	if err = p.objects.AttachMissing(ctx, o.Object, p.attaching(&o)); !errors.Is(err, spdk.Unanswered) {
		p.answered(ctx, o)
	}
	if err != nil && ctx.Err() == nil {
		p.log.WarnContext(ctx, "path to subsystem still missing, will retry", "subsystem", o.Controller.SubNQN, "err", err)
	}
	return err == nil
}
