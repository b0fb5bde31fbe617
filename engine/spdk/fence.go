package spdk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/internal/store"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// fencing is one call of Apply. It repeats: read the records, read the targets,
// plan, act. The fences are proved at the targets whose plan has no step. This is
// why:
//
//   - The fences are recorded before Apply begins, and no grant of a fenced client is
//     recorded afterwards. So a process that reads the records afterwards admits no such client.
//   - One that has read them before can still admit one. In this process, such a call holds
//     the lock of the volume: Apply has had these locks, and reads records and targets
//     after that. A process that was replaced by this one sends no request later than
//     takeOverTime after this one has started: before that, nothing is proved.
//   - A target is read after the records. It admits no host that the records do not,
//     and has no session of one. A session of an admitted host does not come from a
//     fenced address: otherwise the address is recorded, and the host fenced with it.
//   - What is not known counts as a session: connections that cannot be read, exports
//     without a record, hosts and clients without an address.
//
// All requests of one step are sent to all targets at once, and a target that fails
// is not asked again by this call: the blocks with clients there wait.
type fencing struct {
	*Engine
	state   state
	targets []*fencedTarget
}

// fencedTarget is a target during a call of Apply.
type fencedTarget struct {
	*target
	failed error // no further requests in this call
	plan   steps // the last one
	locked map[volume.ID]bool
	unlock func()
}

func (t *fencedTarget) release() {
	t.unlock()
	t.unlock, t.locked = func() {}, nil
}

// Apply implements volume.Fencer. The records have the fences: a fenced client is
// on the host list of no volume, as the exports are made what the records say. A
// host that is connected from a fenced address counts as its client. NotEnforced:
// a target that has a volume of a fenced client does not answer, or is not
// configured.
func (e *Engine) Apply(ctx context.Context, desired volume.FenceSet) error {
	f := &fencing{Engine: e}
	for _, t := range e.order {
		f.targets = append(f.targets, &fencedTarget{target: t, unlock: func() {}})
	}
	defer func() {
		for _, t := range f.targets {
			t.release()
		}
	}()
	for range maxFenceRounds {
		read, tookOver := time.Now(), e.hasTakenOver() // before the targets are read
		var err error
		if f.state, err = e.state(ctx); err != nil {
			return err
		}
		if len(f.state.Fenced) == 0 { // clients of lifted fences are admitted again
			e.wakeAll()
			return nil
		}
		if f.lock(ctx) {
			continue // a call that had a lock has perhaps changed the records
		}
		f.each(func(t *fencedTarget) error { return f.observe(ctx, t) })
		if f.act(ctx, read) {
			continue
		}
		if !tookOver {
			if err := e.takeOver(ctx); err != nil {
				return &volume.NotEnforced{Blocks: desired.Blocks, Err: err}
			}
			continue
		}
		return f.result(desired.Blocks)
	}
	return errs.Errorf(errs.Busy, "the clients of fenced volumes change all the time, retry")
}

// maxFenceRounds is more than any fence needs whose records do not change meanwhile:
// adoption, lock, learning, forgetting, correction and proof have one each.
const maxFenceRounds = 12

// ProvesFences says that Apply has read back what it promises, also that no session
// of a fenced client is left.
func (e *Engine) ProvesFences() {}

// each calls fn for the targets that have not failed, all at once.
func (f *fencing) each(fn func(t *fencedTarget) error) {
	var all sync.WaitGroup
	for _, t := range f.targets {
		if t.failed == nil {
			all.Go(func() { t.failed = fn(t) })
		}
	}
	all.Wait()
}

// part returns a context with a part of the time that is left.
func part(ctx context.Context, of time.Duration) (context.Context, context.CancelFunc) {
	deadline, has := ctx.Deadline()
	if !has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/of)
}

// lock waits for calls on volumes that fences concern, or whose exports are to be
// corrected, and keeps further ones waiting. It reports whether it has waited.
func (f *fencing) lock(ctx context.Context) (again bool) {
	ctx, cancel := part(ctx, 4)
	defer cancel()
	var waited atomic.Bool
	f.each(func(t *fencedTarget) error {
		needed, hasAll := map[volume.ID]bool{}, true
		var keys []string
		for _, r := range f.state.at(t.Name) {
			if f.state.isConcerned(r) || slices.Contains(t.plan.correct, r.id()) || t.locked[r.id()] {
				needed[r.id()], keys = true, append(keys, volumeKey(r.Name))
				hasAll = hasAll && t.locked[r.id()]
			}
		}
		if hasAll {
			return nil
		}
		waited.Store(true)
		t.release()
		unlock, err := f.Engine.lock(ctx, keys...)
		if err == nil {
			t.unlock, t.locked = unlock, needed
		}
		return err
	})
	return waited.Load()
}

// observe reads a target, and plans.
func (f *fencing) observe(ctx context.Context, t *fencedTarget) error {
	o, err := f.Engine.observe(ctx, t.target, f.state)
	if err != nil {
		return err
	}
	if t.plan = f.plan(f.state, t.Name, o); t.plan.behind {
		t.wakeUp()
	}
	return nil
}

// act executes the plans, and reports whether any had a step.
func (f *fencing) act(ctx context.Context, read time.Time) (again bool) {
	ctx, cancel := part(ctx, 2)
	defer cancel()
	var acted atomic.Bool
	f.each(func(t *fencedTarget) error {
		switch {
		case t.plan.changesRecords():
			acted.Store(true)
			return f.record(ctx, t)
		case len(t.plan.correct) > 0:
			acted.Store(true)
			return f.correct(ctx, t, read)
		}
		return t.plan.unproved
	})
	return acted.Load()
}

// record changes the records as a plan says.
func (f *fencing) record(ctx context.Context, t *fencedTarget) error {
	if len(t.plan.adopt) > 0 {
		// An adoption locks the volume, which can have any name.
		t.release()
		if err := f.noteCompared(ctx, t.target, false); err != nil { // until it is compared
			return err
		}
	}
	for _, uuid := range t.plan.adopt {
		err := f.locked(ctx, volumeID(t.Name, uuid), func(record) error { return nil })
		if err != nil && errs.KindOf(err) != errs.NotFound {
			t.plan.unknown = true
			return err
		}
	}
	for node, addrs := range t.plan.learn {
		if err := f.config.Grants.Learn(ctx, node, addrs); err != nil {
			t.plan.unknown = true
			return err
		}
	}
	if len(t.plan.forget) == 0 {
		return nil
	}
	return f.config.Database.Update(ctx, func(tx *store.Tx) error {
		for _, r := range t.plan.forget {
			i := slices.IndexFunc(f.state.volumes, func(now record) bool { return now.id() == r.id() })
			err := replace(tx, volumes(), r.Name, &f.state.volumes[i], r)
			if err != nil && errs.KindOf(err) != errs.Busy { // another controller has changed it: the next plan has the step again
				return err
			}
		}
		return nil
	})
}

// correct makes exports what the records said when they were read. The locks are held
// since before that.
func (f *fencing) correct(ctx context.Context, t *fencedTarget, read time.Time) error {
	var exports errgroup.Group
	exports.SetLimit(parallelRequests)
	for _, r := range f.state.at(t.Name) {
		if !slices.Contains(t.plan.correct, r.id()) || !t.locked[r.id()] { // without the lock: in the next round
			continue
		}
		exports.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, f.enforceTime)
			defer cancel()
			x := export{engine: f.Engine, target: t.target, record: r, readAt: read}
			err := x.apply(ctx, f.hostNQNs(r, clientsOf(f.state.Admitted(r.id()))))
			if errors.Is(err, errLost) {
				return x.deleteSubsystem(ctx)
			}
			if err == nil {
				err = x.note(ctx, false, false)
			}
			return t.explain(err, "correct the export of volume %s", r.id())
		})
	}
	return exports.Wait()
}

// result returns NotEnforced with the blocks that wait for targets.
func (f *fencing) result(all []netip.Prefix) error {
	var blocks []netip.Prefix
	var failed []error
	wait := func(in []netip.Prefix, err error) {
		if len(in) > 0 {
			blocks, failed = append(blocks, in...), append(failed, err)
		}
	}
	for _, t := range f.targets {
		switch {
		case t.failed != nil && t.plan.unknown:
			wait(all, t.failed)
		case t.failed != nil:
			wait(f.state.waiting(t.Name, all), t.failed)
		}
	}
	for _, h := range f.shutOut(f.state) {
		if _, err := f.target(h.target); err != nil {
			wait(h.blocks, err)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return &volume.NotEnforced{Blocks: blocks, Err: joinFirst(failed)}
}

// takeOverTime after its start, a controller proves no fence: until then a request of
// the one that it has replaced can admit a client. Such a request is sent at most
// admitTime after the records were read, and lost if the target has not got it
// within the time for its delivery.
const (
	takeOverTime = admitTime + rpc.DeliveryTimeout
	admitTime    = 10 * time.Second
)

// takeOver waits until the requests of an earlier controller have arrived. They can
// have changed what the targets show: they are to be read again.
func (e *Engine) takeOver(ctx context.Context) error {
	select {
	case <-e.tookOver:
		return nil
	case <-ctx.Done():
		return errs.Errorf(errs.Unavailable, "a request of an earlier controller can arrive until %s after the start of this one: %w", takeOverTime, context.Cause(ctx))
	}
}

func (e *Engine) hasTakenOver() bool {
	select {
	case <-e.tookOver:
		return true
	default:
		return false
	}
}

// observe reads the exports of a target, and the connections of its volumes. A target
// that does not answer is not asked again.
func (e *Engine) observe(ctx context.Context, t *target, s state) (o observed, err error) {
	brief, cancel := context.WithTimeout(ctx, e.answerTime)
	defer cancel()
	if o.exports, err = t.subsystems(brief); err != nil {
		return o, err
	}
	var ids []volume.ID
	for _, r := range s.at(t.Name) {
		if _, exported := o.exports[r.nqn()]; exported && (r.hasUnrecordedHosts() || len(s.Of(r.id())) > 0) {
			ids = append(ids, r.id())
		}
	}
	o.pairs, o.readErrors = e.connections(ctx, t, ids)
	o.gone = t.gone(e.returnTime)
	return o, nil
}

// parallelRequests is the limit of volumes of a fence, or of a comparison, with
// requests at once. SPDK looks for requests every few milliseconds only, and
// executes them on a core that also moves data.
const parallelRequests = 8

func (e *Engine) connections(ctx context.Context, t *target, ids []volume.ID) (found map[volume.ID][]rpc.QueuePair, readErrors map[volume.ID]error) {
	found, readErrors = map[volume.ID][]rpc.QueuePair{}, map[volume.ID]error{}
	var mu sync.Mutex
	var silent error
	var reads errgroup.Group
	reads.SetLimit(parallelRequests)
	for _, id := range ids {
		reads.Go(func() error {
			mu.Lock()
			pairs, err := []rpc.QueuePair(nil), silent
			mu.Unlock()
			if err == nil {
				pairs, err = e.connectionsOf(ctx, t, id)
			}
			mu.Lock()
			defer mu.Unlock()
			if found[id] = pairs; err != nil {
				readErrors[id] = err
			}
			if errs.KindOf(err) == errs.Unavailable {
				silent = err
			}
			return nil
		})
	}
	_ = reads.Wait() // its errors are in readErrors
	return found, readErrors
}

func (e *Engine) connectionsOf(ctx context.Context, t *target, id volume.ID) ([]rpc.QueuePair, error) {
	ctx, cancel := context.WithTimeout(ctx, e.answerTime)
	defer cancel()
	_, uuid, _ := parseID(string(id))
	found, err := t.pairs(ctx, nqnOf(uuid))
	return found, t.explain(err, "list the connections of volume %s", id)
}

// pairs returns the connections of a subsystem, none if it does not exist. Releases
// before 24.09 do not show their hosts, which are those of the sessions.
func (t *target) pairs(ctx context.Context, nqn string) ([]rpc.QueuePair, error) {
	pairs, err := noneIfMissing(ctx, t, nqn, t.Client.QueuePairs)
	if !slices.ContainsFunc(pairs, func(p rpc.QueuePair) bool { return p.HostNQN == "" }) {
		return pairs, err
	}
	sessions, err := t.sessions(ctx, nqn)
	if err != nil {
		return nil, err
	}
	host := map[int]string{}
	for _, c := range sessions {
		host[c.ControllerID] = c.HostNQN
	}
	for i := range pairs {
		pairs[i].HostNQN = cmp.Or(pairs[i].HostNQN, host[pairs[i].ControllerID])
	}
	return slices.DeleteFunc(pairs, func(p rpc.QueuePair) bool { return p.HostNQN == "" }), nil // it has ended since
}

// sessions returns the controllers of a subsystem, none if it does not exist.
func (t *target) sessions(ctx context.Context, nqn string) ([]rpc.SubsystemController, error) {
	return noneIfMissing(ctx, t, nqn, t.Client.SubsystemControllers)
}

// noneIfMissing reads the subsystem after an error, which does not say whether
// it exists in releases before 26.05.
func noneIfMissing[T any](ctx context.Context, t *target, nqn string, list func(context.Context, string) ([]T, error)) ([]T, error) {
	all, err := list(ctx, nqn)
	if err != nil {
		switch _, missing := t.Client.Subsystem(ctx, nqn); {
		case errors.Is(missing, rpc.NotFound):
			return nil, nil
		case errors.Is(err, rpc.NotFound): // it was not there when the target began to export again
			err = errs.Errorf(errs.Unavailable, "subsystem %s has appeared meanwhile, repeat the call: %v", nqn, err)
		}
	}
	return all, err
}

// pollInterval of waiting for the end of sessions.
const pollInterval = 50 * time.Millisecond

// awaitEnd waits until the list has no such session, and returns it. Releases before 26.05
// remove a host before its sessions have ended.
func awaitEnd[T any](ctx context.Context, isSession func(T) bool, list func() ([]T, error)) (left []T, err error) {
	for {
		if left, err = list(); err != nil || !slices.ContainsFunc(left, isSession) {
			return left, err
		}
		if err := backoff.Sleep(ctx, pollInterval); err != nil {
			return nil, errs.Errorf(errs.Unavailable, "its session has not ended: %w", err)
		}
	}
}

func sessionID(target, uuid string, controller int) string {
	return fmt.Sprintf("%s:%d", formatID(target, uuid), controller)
}
