package spdk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// Run compares the exports of all targets with the records at each interval,
// until the context ends: a target that has restarted gets all exports and hosts
// again. It records the addresses of clients without any in their node id, such
// as DPUs, for fences.
func (e *Engine) Run(ctx context.Context) error {
	var targets sync.WaitGroup
	for _, t := range e.order {
		targets.Go(func() { e.watch(ctx, t) })
	}
	targets.Wait()
	return nil
}

func (e *Engine) watch(ctx context.Context, t *target) {
	ticker := time.NewTicker(e.config.Interval)
	defer ticker.Stop()
	for {
		err := e.compare(ctx, t)
		if (err == nil || errors.Is(err, errLost) || errors.Is(err, errNoKey)) && t.unswept.Swap(false) {
			if swept := e.sweep(ctx, t); swept != nil {
				t.unswept.Store(true)
				err = errors.Join(err, swept)
			}
		}
		t.note(ctx, e, err)
		select {
		case <-ticker.C:
		case <-t.wake:
		case <-ctx.Done():
			return
		}
	}
}

func (t *target) wakeUp() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (e *Engine) wakeAll() {
	for _, t := range e.order {
		t.wakeUp()
	}
}

// note records the result of a comparison, and logs a new one.
func (t *target) note(ctx context.Context, e *Engine, err error) {
	if ctx.Err() != nil {
		return
	}
	t.mu.Lock()
	before := t.failure
	t.failure = err
	t.mu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		e.config.Logger.Warn("exports of an SPDK target are not as recorded", "target", t.Name, "err", err)
	case err == nil && before != nil:
		e.config.Logger.Info("exports of an SPDK target are as recorded again", "target", t.Name)
	}
}

// compare corrects the exports of one target that differ from the records.
func (e *Engine) compare(ctx context.Context, t *target) error {
	failed, err := e.compareEach(ctx, t)
	var all []error
	for _, id := range slices.Sorted(maps.Keys(failed)) {
		all = append(all, failed[id])
	}
	return joinFirst(append(all, err))
}

// compareEach is compare, with the errors of single volumes in failed.
func (e *Engine) compareEach(ctx context.Context, t *target) (failed map[volume.ID]error, err error) {
	absent := map[hostAt]absence{}
	defer func() { t.setAbsent(absent) }()
	seen, err := t.subsystems(ctx) // first: a volume is recorded before it is exported
	if err != nil {
		return nil, err
	}
	s, isRecalled, err := e.recentState(ctx)
	foreign, known := e.unknown(t, seen, s)
	if err == nil && isRecalled && (len(foreign) > 0 || known != s.compared[t.Name]) {
		s, err = e.state(ctx) // another controller has perhaps just recorded them
		foreign, known = e.unknown(t, seen, s)
	}
	if err != nil {
		return nil, err
	}
	ring, err := t.keyringFor(ctx, s.volumes)
	if err == nil {
		err = t.readTLS(ctx, s.volumes, seen)
	}
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	failed = map[volume.ID]error{}
	var volumes errgroup.Group
	volumes.SetLimit(parallelRequests)
	for _, r := range s.at(t.Name) {
		grants := s.Admitted(r.id())
		volumes.Go(func() (err error) {
			if r.isVolume() && t.differs(seen, ring, r, e.hostNQNs(r, clientsOf(grants))) {
				err = e.repair(ctx, r.id())
			}
			var hosts []string
			var connected map[string][]netip.Addr
			isLost := errors.Is(err, errLost)
			if err == nil || isLost || errors.Is(err, errNoKey) {
				var failure error
				hosts, connected, failure = e.learn(ctx, t, r, grants)
				err = cmp.Or(err, failure)
			}
			mu.Lock()
			defer mu.Unlock()
			t.addAbsent(absent, r.nqn(), hosts, connected, seen[r.nqn()].NQN == "" && !isLost)
			if err != nil {
				failed[r.id()] = err
			}
			return nil
		})
	}
	_ = volumes.Wait() // its errors are in failed
	if recorded := s.at(t.Name); len(recorded) > 0 && !slices.ContainsFunc(recorded, func(r record) bool { return seen[r.nqn()].NQN != "" }) {
		t.unswept.Store(true) // the target has restarted, and lvols are perhaps lost
	}
	t.noteForeign(foreign, e.config.Logger)
	if known == s.compared[t.Name] {
		return failed, nil
	}
	return failed, e.noteCompared(ctx, t, known)
}

func (e *Engine) repair(ctx context.Context, id volume.ID) error {
	err := e.locked(ctx, id, func(r record) error { return e.enforce(ctx, r, false) })
	if errs.KindOf(err) == errs.NotFound { // deleted meanwhile
		return nil
	}
	return err
}

// joinFirst joins errors, of which the volumes of a target have many of one cause.
func joinFirst(list []error) error {
	const most = 3
	list = slices.DeleteFunc(list, func(err error) bool { return err == nil })
	if len(list) > most {
		return errors.Join(append(list[:most:most], fmt.Errorf("and %d more", len(list)-most))...)
	}
	return errors.Join(list...)
}

func (t *target) subsystems(ctx context.Context) (map[string]rpc.Subsystem, error) {
	list, err := t.Client.Subsystems(ctx)
	if err != nil {
		return nil, t.explain(err, "list the exports")
	}
	seen := make(map[string]rpc.Subsystem, len(list))
	for _, s := range list {
		seen[s.NQN] = s
	}
	return seen, nil
}

// differs reports whether an export is not as recorded.
func (t *target) differs(seen map[string]rpc.Subsystem, ring keyring, r record, desired []string) bool {
	s, found := seen[r.nqn()]
	if !found || !t.listensFor(r, s) || s.AllowAnyHost || r.Evicting || r.LimitsDue || len(s.Namespaces) != 1 || s.Namespaces[0].Bdev != r.UUID {
		return true
	}
	return !slices.Equal(admittedBy(s), desired) || r.requiresKeys() && slices.ContainsFunc(s.Hosts, func(h rpc.AllowedHost) bool {
		return h.HostKeys != r.keysOf(h.NQN) || ring.isReplaced(h.HostKeys)
	})
}

func clientsOf(grants []volume.RecordedGrant) (clients []volume.Client) {
	for _, g := range grants {
		clients = append(clients, g.Client)
	}
	return clients
}

func admittedBy(s rpc.Subsystem) (hosts []string) {
	for _, h := range s.Hosts {
		hosts = append(hosts, h.NQN)
	}
	slices.Sort(hosts)
	return hosts
}

// learn records the addresses of connected clients whose node id has none, and of
// hosts admitted before the adoption. It returns these hosts, and those that are
// connected.
func (e *Engine) learn(ctx context.Context, t *target, r record, admitted []volume.RecordedGrant) (hosts []string, from map[string][]netip.Addr, err error) {
	named := slices.DeleteFunc(slices.Clone(admitted), func(g volume.RecordedGrant) bool { return !g.NameOnly })
	if len(named)+len(r.Hosts) == 0 {
		return nil, nil, nil
	}
	pairs, err := t.pairs(ctx, r.nqn())
	if err != nil {
		return nil, nil, t.explain(err, "list the connections of volume %s", r.id())
	}
	from, hosts = addrsOf(pairs), e.hostNQNs(r, clientsOf(named))
	for _, g := range named {
		isNew := func(a netip.Addr) bool { return !slices.Contains(g.Client.Addrs, a) }
		if now := from[e.hostNQN(g.Client)]; slices.ContainsFunc(now, isNew) {
			if err := e.config.Grants.Learn(ctx, g.Client.Node, now); err != nil {
				return nil, nil, err
			}
		}
	}
	if !addHostAddrs(maps.Clone(r.Hosts), from) {
		return hosts, from, nil
	}
	return hosts, from, e.locked(ctx, r.id(), func(now record) error {
		next := now
		next.Hosts = maps.Clone(now.Hosts)
		addHostAddrs(next.Hosts, from)
		return e.put(ctx, &now, next)
	})
}

// unknown returns the subsystems with the names of volumes that no record has, and
// that are not of another release, and whether all that have an lvol are known. They
// are left alone, also without an lvol: the records do not say to whom they belong.
func (e *Engine) unknown(t *target, seen map[string]rpc.Subsystem, s state) (foreign []string, known bool) {
	owned := map[string]bool{}
	for _, r := range s.at(t.Name) {
		owned[r.nqn()] = true
	}
	known = true
	for _, nqn := range slices.Sorted(maps.Keys(seen)) {
		if x := seen[nqn]; strings.HasPrefix(nqn, nqnPrefix) && !owned[nqn] && !e.isOfOther(x) {
			foreign = append(foreign, nqn)
			known = known && len(x.Namespaces) == 0
		}
	}
	return foreign, known
}

func (t *target) noteForeign(foreign []string, logger *slog.Logger) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(foreign) > 0 && !slices.Equal(foreign, t.foreign) {
		logger.Warn("a target has exports of volumes that no record has, and they are left alone", "target", t.Name, "subsystems", foreign)
	}
	t.foreign = foreign
}

// noteCompared records whether all exports of a target have records.
func (e *Engine) noteCompared(ctx context.Context, t *target, known bool) error {
	return e.config.Database.Update(ctx, func(tx *store.Tx) error {
		if known {
			return compared().Put(tx, t.Name, struct{}{})
		}
		return compared().Delete(tx, t.Name)
	})
}
