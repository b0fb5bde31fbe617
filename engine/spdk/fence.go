package spdk

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go4.org/netipx"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/volume"
)

// Apply implements volume.Fencer. The ledger has the fences: a fenced client is
// on the host list of no volume, as the exports are made what the records say. A
// host that is connected from a fenced address counts as its client. NotEnforced:
// a target that has a volume of a fenced client does not answer, or is not
// configured.
func (e *Engine) Apply(ctx context.Context, desired volume.FenceSet) error {
	set, err := cidr.Set(desired.Blocks)
	if err != nil {
		return err
	}
	failed := e.applyAll(ctx, set)
	hosts, err := e.fencedHosts(ctx)
	if err != nil {
		return errors.Join(err, errors.Join(failed...))
	}
	var blocks []netip.Prefix
	for i, t := range e.order {
		if failed[i] == nil {
			continue
		}
		at, err := e.blocksAt(ctx, t, hosts, desired.Blocks)
		if err != nil {
			return errors.Join(err, errors.Join(failed...))
		}
		blocks = append(blocks, at...)
	}
	for _, h := range hosts {
		if _, err := e.target(h.target); err != nil {
			failed, blocks = append(failed, err), append(blocks, h.blocks...)
		}
	}
	if err := errors.Join(failed...); err != nil {
		return &volume.NotEnforced{Blocks: blocks, Err: err}
	}
	return nil
}

// applyAll leaves a part of the time, as a target that does not answer needs all
// of its own.
func (e *Engine) applyAll(ctx context.Context, set *netipx.IPSet) []error {
	if deadline, has := ctx.Deadline(); has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	failed := make([]error, len(e.order))
	var all sync.WaitGroup
	for i, t := range e.order {
		all.Go(func() { failed[i] = e.applyAt(ctx, t, set) })
	}
	all.Wait()
	return failed
}

func (e *Engine) applyAt(ctx context.Context, t *target, set *netipx.IPSet) error {
	brief, cancel := context.WithTimeout(ctx, e.answerTime)
	defer cancel()
	unread := e.recordPeers(brief, t, set)
	ids, concerned, err := e.concerned(ctx, t, set)
	if err != nil {
		return err
	}
	if !concerned {
		_ = e.compare(brief, t) // Run repeats it
		return nil
	}
	if errs.KindOf(unread) == errs.Unavailable { // fences without a client there wait as well
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, e.answerTime)
		defer cancel()
	}
	return errors.Join(unread, e.awaitCalls(ctx, ids), e.compareSome(ctx, t, ids))
}

// blocksAt returns the fenced blocks with a host of a target's volumes: all of
// them if it can have hosts that no record names.
func (e *Engine) blocksAt(ctx context.Context, t *target, hosts []fencedHost, all []netip.Prefix) ([]netip.Prefix, error) {
	_, unknown, err := e.unknownHosts(ctx, t)
	if err != nil || unknown {
		return all, err
	}
	var blocks []netip.Prefix
	for _, h := range hosts {
		if h.target == t.Name {
			blocks = append(blocks, h.blocks...)
		}
	}
	return blocks, nil
}

// concerned returns the volumes of a target that have a client to shut out: a
// fenced one, or one without a grant. concerned also reports a target whose
// volumes are perhaps not all recorded.
func (e *Engine) concerned(ctx context.Context, t *target, set *netipx.IPSet) (ids []volume.ID, concerned bool, err error) {
	recorded, err := e.config.Grants.Records(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, g := range recorded.Grants {
		if name, _, _ := parseID(string(g.Volume)); name == t.Name && len(g.Fenced) > 0 {
			ids = append(ids, g.Volume)
		}
	}
	if len(set.Prefixes()) == 0 {
		return ids, len(ids) > 0, nil
	}
	more, unknown, err := e.unknownHosts(ctx, t)
	ids = append(ids, more...)
	return ids, unknown || len(ids) > 0, err
}

// unknownHosts returns the volumes of a target with hosts without a grant. unknown
// is also true for a target whose volumes are perhaps not all recorded, or that
// has a client without an address, as a DPU that was not seen connected yet.
func (e *Engine) unknownHosts(ctx context.Context, t *target) (ids []volume.ID, unknown bool, err error) {
	all, err := e.records(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, r := range all {
		if r.Target == t.Name && (r.Evicting || len(r.Hosts) > 0) {
			ids = append(ids, r.id())
		}
	}
	known, err := e.isCompared(ctx, t)
	if err != nil || !known || len(ids) > 0 {
		return ids, true, err
	}
	unknown, err = e.hasUnseenClient(ctx, t)
	return nil, unknown, err
}

func (e *Engine) hasUnseenClient(ctx context.Context, t *target) (bool, error) {
	recorded, err := e.config.Grants.Records(ctx)
	return slices.ContainsFunc(recorded.Grants, func(g volume.RecordedGrant) bool {
		name, _, _ := parseID(string(g.Volume))
		return name == t.Name && len(g.Client.Addrs) == 0
	}), err
}

// compareSome is compare, but returns only the errors that concern some volumes:
// another one that cannot be exported does not matter to a fence.
func (e *Engine) compareSome(ctx context.Context, t *target, ids []volume.ID) error {
	failed, err := e.compareEach(ctx, t)
	for _, id := range ids {
		if !errors.Is(failed[id], errLost) && !errors.Is(failed[id], errNoKey) { // not exported any more; hosts that are not admitted
			err = errors.Join(err, failed[id])
		}
	}
	return err
}

// awaitCalls waits for calls on volumes: one that has read the records before the
// fence can still admit the client.
func (e *Engine) awaitCalls(ctx context.Context, ids []volume.ID) error {
	all, err := e.records(ctx)
	if err != nil {
		return err
	}
	affected := map[volume.ID]bool{}
	for _, id := range ids {
		affected[id] = true
	}
	for _, r := range all {
		if r.UUID == "" || !affected[r.id()] {
			continue
		}
		unlock, err := e.lock(ctx, volumeKey(r.Name))
		if err != nil {
			return err
		}
		unlock()
	}
	return nil
}

// recordPeers records the fenced addresses from which clients of a target are
// connected, so that the fence covers them. Hosts of before the adoption leave
// the record, and compare ends their sessions: those of fenced addresses, and
// those of no known address.
func (e *Engine) recordPeers(ctx context.Context, t *target, set *netipx.IPSet) error {
	if len(set.Prefixes()) == 0 {
		return nil
	}
	unowned := e.adoptAll(ctx, t)
	if unowned != nil && errs.KindOf(unowned) != errs.Precondition {
		return unowned
	}
	all, err := e.records(ctx)
	if err != nil {
		return err
	}
	recorded, err := e.config.Grants.Records(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(r record) bool {
		return r.Target != t.Name || !r.isVolume() || len(recorded.Admitted(r.id()))+len(r.Hosts) == 0
	})
	ids := make([]volume.ID, len(all))
	for i, r := range all {
		ids[i] = r.id()
	}
	found, unread := e.connections(ctx, ids)
	for i, r := range all {
		if unread[i] != nil {
			continue
		}
		from := addrsOf(found[i])
		for _, g := range recorded.Admitted(r.id()) {
			if now := from[e.hostNQN(g.Client)]; slices.ContainsFunc(now, set.Contains) {
				if err := e.config.Grants.Learn(ctx, g.Client.Node, now); err != nil {
					return err
				}
			}
		}
		leaves := func(host string, addrs []netip.Addr) bool {
			return slices.ContainsFunc(slices.Concat(addrs, from[host]), set.Contains) || len(addrs)+len(from[host]) == 0
		}
		stay := maps.Clone(r.Hosts)
		if maps.DeleteFunc(stay, leaves); len(stay) == len(r.Hosts) {
			continue // the lock of another volume must not delay the fence
		}
		if err := e.locked(ctx, r.id(), func(now record) error {
			_, err := e.withoutHosts(ctx, now, leaves)
			return err
		}); err != nil && errs.KindOf(err) != errs.NotFound {
			return err
		}
	}
	return few(append(unread, unowned))
}

// adoptAll adopts the volumes that a target exports without a record, as after
// the loss of the records: their clients are unknown, and can come back from a
// fenced address. Volumes of another release are left alone. Precondition: of a
// volume it is not known which release has it.
func (e *Engine) adoptAll(ctx context.Context, t *target) error {
	seen, err := t.subsystems(ctx)
	if err != nil {
		return err
	}
	all, err := e.records(ctx)
	if err != nil {
		return err
	}
	for _, r := range all {
		delete(seen, r.nqn())
	}
	var failed []error
	for _, nqn := range slices.Sorted(maps.Keys(seen)) {
		s := seen[nqn]
		uuid, ours := strings.CutPrefix(nqn, nqnPrefix)
		if !ours || len(s.Namespaces) == 0 || e.isOfOther(s) {
			continue
		}
		if err := e.noteCompared(ctx, t, false); err != nil { // until it is compared
			return err
		}
		if !e.isAdoptable(s) {
			failed = append(failed, errs.Errorf(errs.Precondition, "target %s exports %s, which no record has and which does not name its release; delete this subsystem: the release that has the volume exports it again", t.Name, nqn))
			continue
		}
		err := e.locked(ctx, volumeID(t.Name, uuid), func(record) error { return nil })
		if err != nil && errs.KindOf(err) != errs.NotFound {
			return err
		}
	}
	return few(failed)
}
