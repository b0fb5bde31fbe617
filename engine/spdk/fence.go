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
	"github.com/cleatproject/cleat/internal/store"
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
	unread := e.recordPeers(brief, t, set)
	ids, concerned, err := e.concerned(ctx, t, set)
	if err != nil {
		return err
	}
	if !concerned {
		_ = e.compare(brief, t) // Run repeats it
		return nil
	}
	return errors.Join(unread, e.awaitCalls(ctx, ids), e.compareSome(ctx, t, ids))
}

// concerned returns the volumes of a target that have a client to shut out: a
// fenced one, or one without a grant. concerned also reports a target whose
// volumes are perhaps not all recorded.
func (e *Engine) concerned(ctx context.Context, t *target, set *netipx.IPSet) (ids []volume.ID, concerned bool, err error) {
	fenced, err := e.config.Ledger.Fenced(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, g := range fenced {
		if name, _, _ := parseID(string(g.Volume)); name == t.Name {
			ids = append(ids, g.Volume)
		}
	}
	if len(set.Prefixes()) == 0 {
		return ids, len(ids) > 0, nil
	}
	all, err := e.records(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, r := range all {
		if r.Target == t.Name && (r.Evicting || len(r.Hosts) > 0) {
			ids = append(ids, r.id())
		}
	}
	var known bool
	err = e.config.Database.View(ctx, func(tx *store.Tx) error {
		_, known, err = compared().Get(tx, t.Name)
		return err
	})
	return ids, len(ids) > 0 || !known, err
}

// compareSome is compare, but returns only the errors that concern some volumes:
// another one that cannot be exported does not matter to a fence.
func (e *Engine) compareSome(ctx context.Context, t *target, ids []volume.ID) error {
	failed, err := e.compareEach(ctx, t)
	for _, id := range ids {
		err = errors.Join(err, failed[id])
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
	if err := e.adoptAll(ctx, t); err != nil {
		return err
	}
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
		if unread[i] != nil {
			continue
		}
		from := addrsOf(found[i])
		for _, g := range admitted[r.id()] {
			if now := from[e.hostNQN(g.Client)]; slices.ContainsFunc(now, set.Contains) {
				if err := e.recordAddrs(ctx, g.Client.Node, now...); err != nil {
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
	return few(unread)
}

// adoptAll adopts the volumes that a target exports without a record, as after
// the loss of the records: their clients are unknown, and can come back from a
// fenced address.
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
	for nqn, s := range seen {
		uuid, ours := strings.CutPrefix(nqn, nqnPrefix)
		if !ours || len(s.Namespaces) == 0 {
			continue
		}
		err := e.locked(ctx, volumeID(t.Name, uuid), func(record) error { return nil })
		if err != nil && errs.KindOf(err) != errs.NotFound {
			return err
		}
	}
	return nil
}

// maxLearnt addresses of a client are its present ones.
const maxLearnt = 16

// recordAddrs adds addresses to the record of a client. If they are too many, as
// of a client that got new ones again and again, the earlier ones become former
// ones, which fences cover as well.
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
	if len(c.Addrs) > maxLearnt {
		c.Addrs = addrs
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
	blocks, err := e.fencedBlocks(ctx)
	if err != nil || len(blocks) == 0 {
		return nil, err
	}
	hosts, err := e.fencedHosts(ctx, blocks)
	if err != nil {
		return nil, err
	}
	lists := map[string]map[string]rpc.Subsystem{}
	for id, fenced := range hosts {
		name, uuid, _ := parseID(string(id))
		t, err := e.target(name)
		if err != nil {
			return nil, err
		}
		if lists[name] == nil {
			if lists[name], err = t.subsystems(ctx); err != nil {
				return nil, err
			}
		}
		if s := lists[name][nqnOf(uuid)]; s.AllowAnyHost || slices.ContainsFunc(fenced, s.HasHost) {
			return nil, nil
		}
	}
	return cidr.Merge(blocks)
}

// fencedHosts returns the host NQNs, by volume, that no list is allowed to have.
func (e *Engine) fencedHosts(ctx context.Context, blocks []netip.Prefix) (map[volume.ID][]string, error) {
	set, err := cidr.Set(blocks)
	if err != nil {
		return nil, err
	}
	fenced, err := e.config.Ledger.Fenced(ctx)
	if err != nil {
		return nil, err
	}
	all, err := e.records(ctx)
	if err != nil {
		return nil, err
	}
	hosts := map[volume.ID][]string{}
	for _, g := range fenced {
		hosts[g.Volume] = append(hosts[g.Volume], e.hostNQN(g.Client))
	}
	for _, r := range all {
		for host, addrs := range r.Hosts {
			if slices.ContainsFunc(addrs, set.Contains) {
				hosts[r.id()] = append(hosts[r.id()], host)
			}
		}
	}
	return hosts, nil
}

// fencedBlocks returns the blocks of all fences.
func (e *Engine) fencedBlocks(ctx context.Context) (blocks []netip.Prefix, err error) {
	fences, err := e.config.Ledger.Fences(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range fences {
		if f.IsDesired() {
			blocks = append(blocks, f.Block)
		}
	}
	return blocks, nil
}

// anyHost stands for the hosts of a volume that has some without a grant.
const anyHost = "any"

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
	records, err := e.records(ctx)
	if err != nil {
		return nil, err
	}
	hosts := map[volume.ID][]string{} // of clients in the blocks
	for _, r := range records {
		if r.Evicting || len(r.Hosts) > 0 {
			hosts[r.id()] = append(hosts[r.id()], anyHost)
		}
	}
	for _, g := range grants {
		hosts[g.Volume] = append(hosts[g.Volume], "")
		if slices.ContainsFunc(inside, func(c volume.Client) bool { return c.Node == g.Client.Node }) {
			hosts[g.Volume] = append(hosts[g.Volume], e.hostNQN(g.Client))
		}
	}
	ids := slices.Sorted(maps.Keys(hosts))
	found, unread := e.connections(ctx, ids)
	for i, id := range ids {
		// A target without a client in the blocks does not matter, as in Apply.
		if unread[i] != nil && slices.ContainsFunc(hosts[id], func(host string) bool { return host != "" }) {
			return nil, unread[i]
		}
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

// connections returns the connections of volumes, and errors, in their order;
// none for those of a target that is not configured, which Held reports. A target
// that does not answer is not asked again.
func (e *Engine) connections(ctx context.Context, ids []volume.ID) (found [][]rpc.QueuePair, unread []error) {
	found, unread = make([][]rpc.QueuePair, len(ids)), make([]error, len(ids))
	var silent sync.Map // targets, with their errors
	var reads errgroup.Group
	reads.SetLimit(parallelRequests)
	for i, id := range ids {
		name, uuid, _ := parseID(string(id))
		t := e.targets[name]
		if t == nil {
			continue
		}
		reads.Go(func() (err error) {
			if earlier, is := silent.Load(t); is {
				unread[i] = earlier.(error)
				return nil
			}
			found[i], err = t.pairs(ctx, nqnOf(uuid))
			if unread[i] = t.explain(err, "list the connections of volume %s", id); errs.KindOf(err) == errs.Unavailable {
				silent.Store(t, unread[i])
			}
			return nil
		})
	}
	_ = reads.Wait() // its errors are in unread
	return found, unread
}

func sessionID(target, uuid string, controller int) string {
	return fmt.Sprintf("%s:%d", formatID(target, uuid), controller)
}

// End implements volume.Fencer. Apply has removed the hosts, which ends their
// sessions, but a client can have connected from a fenced address since.
func (e *Engine) End(ctx context.Context, sessions []volume.Session) error {
	blocks, err := e.fencedBlocks(ctx)
	if err != nil {
		return err
	}
	set, err := cidr.Set(blocks)
	if err != nil {
		return err
	}
	corrected := map[*target]bool{}
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
		if !corrected[t] {
			corrected[t] = true
			if err := e.applyAt(ctx, t, set); err != nil {
				return err
			}
		}
		// After a restart of the target another client can have the number.
		isSession := func(p rpc.QueuePair) bool {
			peer, _ := parseAddress(p.Peer)
			return p.ControllerID == controller && peer.Addr() == s.Client.Addr()
		}
		if err := awaitEnd(ctx, isSession, func() ([]rpc.QueuePair, error) { return t.pairs(ctx, nqnOf(uuid)) }); err != nil {
			return t.explain(err, "end session %s of client %s", s.ID, s.Client)
		}
	}
	return nil
}

// pollInterval of waiting for the end of sessions.
const pollInterval = 50 * time.Millisecond

// awaitEnd waits until the list has no such session. Releases before 26.05
// remove a host before its sessions have ended.
func awaitEnd[T any](ctx context.Context, isSession func(T) bool, list func() ([]T, error)) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		left, err := list()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(left, isSession) {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errs.Errorf(errs.Unavailable, "its session has not ended: %w", context.Cause(ctx))
		}
	}
}
