package spdk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go4.org/netipx"
	"golang.org/x/sync/errgroup"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/ledger"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// Apply implements volume.Fencer. The ledger has the fences: a fenced client is
// on the host list of no volume, as the exports are made what the records say. A
// host that is connected from a fenced address counts as its client. Unavailable:
// a target that has a volume of a fenced client does not answer.
func (e *Engine) Apply(ctx context.Context, desired volume.FenceSet) error {
	set, err := cidr.Set(desired.Blocks)
	if err != nil {
		return err
	}
	failed := make([]error, len(e.order))
	var all sync.WaitGroup
	for i, t := range e.order {
		all.Go(func() { failed[i] = e.applyAt(ctx, t, set) })
	}
	all.Wait()
	return errors.Join(failed...)
}

func (e *Engine) applyAt(ctx context.Context, t *target, set *netipx.IPSet) error {
	brief, cancel := context.WithTimeout(ctx, e.answerTime)
	defer cancel()
	unlisted := e.recordPeers(brief, t, set)
	fenced, err := e.fencedGrants(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(fenced, func(g ledger.Grant) bool { name, _, _ := parseID(string(g.Volume)); return name == t.Name }) {
		return errors.Join(unlisted, e.compare(ctx, t))
	}
	_ = e.compare(brief, t) // Run repeats it
	return nil
}

// fencedGrants returns the grants of fenced clients.
func (e *Engine) fencedGrants(ctx context.Context) ([]ledger.Grant, error) {
	all, err := e.config.Ledger.All(ctx, "", 0)
	if err != nil {
		return nil, err
	}
	admitted, err := e.config.Ledger.AllAdmitted(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(g ledger.Grant) bool {
		return slices.ContainsFunc(admitted[g.Volume], func(c volume.Client) bool { return c.Node == g.Client.Node })
	}), nil
}

// recordPeers records the fenced addresses from which clients of a target are
// connected, so that the fence covers them. Hosts that were adopted, which have
// no record as clients, are dropped.
func (e *Engine) recordPeers(ctx context.Context, t *target, set *netipx.IPSet) error {
	all, err := e.records(ctx)
	if err != nil {
		return err
	}
	admitted, err := e.config.Ledger.AllAdmitted(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(r record) bool {
		return r.Target != t.Name || !r.isVolume() || len(admitted[r.id()])+len(r.Hosts) == 0
	})
	ids := make([]volume.ID, len(all))
	for i, r := range all {
		ids[i] = r.id()
	}
	found, unread := e.connections(ctx, ids)
	for i, r := range all {
		for _, p := range found[i] {
			a, ok := parseAddress(p.Peer)
			if !ok || !set.Contains(a.Addr()) {
				continue
			}
			if err := e.recordPeer(ctx, r, admitted[r.id()], p.HostNQN, a.Addr()); err != nil {
				return err
			}
		}
	}
	return unread
}

func (e *Engine) recordPeer(ctx context.Context, r record, clients []volume.Client, host string, from netip.Addr) error {
	for _, c := range clients {
		if e.hostNQN(c) == host {
			return e.recordAddrs(ctx, c.Node, from)
		}
	}
	if !slices.Contains(r.Hosts, host) {
		return nil
	}
	return e.locked(ctx, r.id(), func(now record) error {
		without := now
		without.Hosts = slices.DeleteFunc(slices.Clone(now.Hosts), func(h string) bool { return h == host })
		return e.put(ctx, &now, without)
	})
}

// recordAddrs adds addresses to the record of a client.
func (e *Engine) recordAddrs(ctx context.Context, node string, addrs ...netip.Addr) error {
	c, _, err := e.config.Ledger.Client(ctx, node)
	if err != nil {
		return err
	}
	c.Node = node
	for _, a := range addrs {
		if !slices.Contains(c.Addrs, a) {
			c.Addrs = append(c.Addrs, a)
		}
	}
	return e.config.Ledger.RecordClient(ctx, c)
}

// pairs returns the connections of a subsystem, none if it does not exist.
func (t *target) pairs(ctx context.Context, nqn string) ([]rpc.QueuePair, error) {
	return noneIfMissing(ctx, t, nqn, t.Client.QueuePairs)
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
		if _, missing := t.Client.Subsystem(ctx, nqn); errors.Is(missing, rpc.NotFound) {
			return nil, nil
		}
	}
	return all, err
}

// Held implements volume.Fencer. It reads the host lists of the targets, and
// returns nothing while a fenced client is on one.
func (e *Engine) Held(ctx context.Context) ([]netip.Prefix, error) {
	fences, err := e.config.Ledger.Fences(ctx)
	if err != nil {
		return nil, err
	}
	var blocks []netip.Prefix
	for _, f := range fences {
		if f.IsDesired() {
			blocks = append(blocks, f.Block)
		}
	}
	if len(blocks) == 0 {
		return nil, nil
	}
	fenced, err := e.fencedGrants(ctx)
	if err != nil {
		return nil, err
	}
	lists := map[string]map[string]rpc.Subsystem{}
	for _, g := range fenced {
		name, uuid, _ := parseID(string(g.Volume))
		t, err := e.target(name)
		if err != nil {
			return nil, err
		}
		if lists[name] == nil {
			if lists[name], err = t.subsystems(ctx); err != nil {
				return nil, err
			}
		}
		if s := lists[name][nqnOf(uuid)]; s.AllowAnyHost || s.HasHost(e.hostNQN(g.Client)) {
			return nil, nil
		}
	}
	return cidr.Merge(blocks)
}

// Sessions implements volume.Fencer: the connected hosts that are clients in the
// blocks, or come from an address in them.
func (e *Engine) Sessions(ctx context.Context, blocks []netip.Prefix) (all []volume.Session, err error) {
	set, err := cidr.Set(blocks)
	if err != nil {
		return nil, err
	}
	grants, err := e.config.Ledger.All(ctx, "", 0)
	if err != nil {
		return nil, err
	}
	inside, err := e.config.Ledger.ClientsIn(ctx, blocks)
	if err != nil {
		return nil, err
	}
	hosts := map[volume.ID][]string{} // of clients in the blocks
	for _, g := range grants {
		hosts[g.Volume] = append(hosts[g.Volume], "")
		if slices.ContainsFunc(inside, func(c volume.Client) bool { return c.Node == g.Client.Node }) {
			hosts[g.Volume] = append(hosts[g.Volume], e.hostNQN(g.Client))
		}
	}
	ids := slices.Sorted(maps.Keys(hosts))
	found, err := e.connections(ctx, ids)
	if err != nil {
		return nil, err
	}
	for i, id := range ids {
		all = append(all, e.sessionsOf(id, found[i], hosts[id], set)...)
	}
	slices.SortFunc(all, func(a, b volume.Session) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

func (e *Engine) sessionsOf(id volume.ID, pairs []rpc.QueuePair, hosts []string, set *netipx.IPSet) (all []volume.Session) {
	name, uuid, _ := parseID(string(id))
	for _, p := range pairs {
		peer, _ := parseAddress(p.Peer)
		if !set.Contains(peer.Addr()) && !slices.Contains(hosts, p.HostNQN) {
			continue
		}
		s := volume.Session{ID: sessionID(name, uuid, p.ControllerID), Client: peer, Holder: "target " + name}
		s.Server, _ = parseAddress(p.Local)
		if !slices.ContainsFunc(all, func(x volume.Session) bool { return x.ID == s.ID }) {
			all = append(all, s)
		}
	}
	return all
}

// parallelRequests is the limit of volumes of a fence, or of a comparison, with
// requests at once. SPDK looks for requests every few milliseconds only, and
// executes them on a core that also moves data.
const parallelRequests = 8

// connections returns the connections of volumes, in their order; none for those
// of a target that is not configured, which Held reports. After an error the
// others can be missing.
func (e *Engine) connections(ctx context.Context, ids []volume.ID) ([][]rpc.QueuePair, error) {
	found := make([][]rpc.QueuePair, len(ids))
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(parallelRequests)
	for i, id := range ids {
		name, uuid, _ := parseID(string(id))
		t := e.targets[name]
		if t == nil {
			continue
		}
		reads.Go(func() (err error) {
			found[i], err = t.pairs(ctx, nqnOf(uuid))
			return t.explain(err, "list the connections of volume %s", id)
		})
	}
	return found, reads.Wait()
}

func sessionID(target, uuid string, controller int) string {
	return fmt.Sprintf("%s:%d", formatID(target, uuid), controller)
}

// End implements volume.Fencer. Apply has removed the hosts, which ends their
// sessions.
func (e *Engine) End(ctx context.Context, sessions []volume.Session) error {
	for _, s := range sessions {
		end := strings.LastIndexByte(s.ID, ':')
		name, uuid, ok := parseID(s.ID[:max(end, 0)])
		controller, err := strconv.Atoi(s.ID[end+1:])
		if !ok || err != nil {
			return errs.Errorf(errs.Invalid, "session id %s is not one of this driver", errs.Quote(s.ID))
		}
		t, err := e.target(name)
		if err != nil {
			return err
		}
		if err := t.awaitEnd(ctx, nqnOf(uuid), func(c rpc.SubsystemController) bool { return c.ControllerID == controller }); err != nil {
			return t.explain(err, "end session %s of client %s", s.ID, s.Client)
		}
	}
	return nil
}

// pollInterval of waiting for the end of sessions.
const pollInterval = 50 * time.Millisecond

// awaitEnd waits until a subsystem has no such session. Releases before 26.05
// remove a host before its sessions have ended.
func (t *target) awaitEnd(ctx context.Context, nqn string, is func(rpc.SubsystemController) bool) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		left, err := t.sessions(ctx, nqn)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(left, is) {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errs.Errorf(errs.Unavailable, "its session has not ended: %w", context.Cause(ctx))
		}
	}
}
