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
	"sync/atomic"
	"time"

	"go4.org/netipx"
	"golang.org/x/sync/errgroup"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

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
// omits the blocks of a host that is on one, or whose target does not answer.
func (e *Engine) Held(ctx context.Context) ([]netip.Prefix, error) {
	blocks, err := e.fencedBlocks(ctx)
	if err != nil || len(blocks) == 0 {
		return nil, err
	}
	hosts, err := e.fencedHosts(ctx)
	if err != nil {
		return nil, err
	}
	lists := e.hostLists(ctx, hosts)
	if ctx.Err() != nil {
		return nil, errs.Errorf(errs.Unavailable, "read the host lists of the targets: %w", context.Cause(ctx))
	}
	var open []netip.Prefix
	for _, h := range hosts {
		list := lists[h.target]
		if s := list[nqnOf(h.uuid)]; list == nil || s.AllowAnyHost || s.HasHost(h.nqn) {
			open = append(open, h.blocks...)
		}
	}
	return cidr.Missing(open, blocks)
}

// hostLists returns the subsystems, by NQN, of the targets of hosts, by name; nil
// for one that does not answer or is not configured.
func (e *Engine) hostLists(ctx context.Context, hosts []fencedHost) map[string]map[string]rpc.Subsystem {
	ctx, cancel := context.WithTimeout(ctx, e.answerTime)
	defer cancel()
	lists := make([]map[string]rpc.Subsystem, len(e.order))
	var reads sync.WaitGroup
	for i, t := range e.order {
		if slices.ContainsFunc(hosts, func(h fencedHost) bool { return h.target == t.Name }) {
			reads.Go(func() {
				if all, err := t.subsystems(ctx); err == nil {
					lists[i] = all
				}
			})
		}
	}
	reads.Wait()
	named := map[string]map[string]rpc.Subsystem{}
	for i, t := range e.order {
		named[t.Name] = lists[i]
	}
	return named
}

// fencedHost is a host that is not allowed on the list of a volume.
type fencedHost struct {
	target, uuid string // of the volume
	nqn          string
	blocks       []netip.Prefix // fenced ones with an address of the host
}

func (e *Engine) fencedHosts(ctx context.Context) (hosts []fencedHost, err error) {
	recorded, err := e.config.Grants.Records(ctx)
	if err != nil {
		return nil, err
	}
	all, err := e.records(ctx)
	if err != nil {
		return nil, err
	}
	add := func(id volume.ID, nqn string, in []netip.Prefix) {
		if name, uuid, _ := parseID(string(id)); !e.isRetired(name) && len(in) > 0 {
			hosts = append(hosts, fencedHost{name, uuid, nqn, in})
		}
	}
	for _, g := range recorded.Grants {
		add(g.Volume, e.hostNQN(g.Client), g.Fenced)
	}
	for _, r := range all {
		for host, addrs := range r.Hosts {
			add(r.id(), host, slices.DeleteFunc(slices.Clone(recorded.Fenced), func(b netip.Prefix) bool { return !slices.ContainsFunc(addrs, b.Contains) }))
		}
	}
	return hosts, nil
}

// fencedBlocks returns the blocks of all fences.
func (e *Engine) fencedBlocks(ctx context.Context) (blocks []netip.Prefix, err error) {
	recorded, err := e.config.Grants.Records(ctx)
	return recorded.Fenced, err
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
	recorded, err := e.config.Grants.Records(ctx)
	if err != nil {
		return nil, err
	}
	inside := recorded.ClientsIn(set.Contains)
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
	for _, g := range recorded.Grants {
		hosts[g.Volume] = append(hosts[g.Volume], "")
		if slices.ContainsFunc(inside, func(c volume.Client) bool { return c.Node == g.Client.Node }) {
			hosts[g.Volume] = append(hosts[g.Volume], e.hostNQN(g.Client))
		}
	}
	ids := slices.Sorted(maps.Keys(hosts))
	found, unread := e.connections(ctx, ids)
	for i, id := range ids {
		// A target without a client in the blocks does not matter, as in Apply.
		if unread[i] != nil && (errs.KindOf(unread[i]) != errs.Unavailable || slices.ContainsFunc(hosts[id], func(host string) bool { return host != "" })) {
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
// none for those of a target that is not configured, which Apply reports. A target
// that does not answer is not asked again, and does not delay the others.
func (e *Engine) connections(ctx context.Context, ids []volume.ID) (found [][]rpc.QueuePair, unread []error) {
	found, unread = make([][]rpc.QueuePair, len(ids)), make([]error, len(ids))
	at := map[*target][]int{}
	for i, id := range ids {
		name, _, _ := parseID(string(id))
		if t := e.targets[name]; t != nil {
			at[t] = append(at[t], i)
		}
	}
	var all sync.WaitGroup
	for t, indices := range at {
		all.Go(func() {
			var reads errgroup.Group
			reads.SetLimit(parallelRequests)
			var silent atomic.Pointer[error]
			for _, i := range indices {
				reads.Go(func() error {
					if err := silent.Load(); err != nil {
						unread[i] = *err
						return nil
					}
					if found[i], unread[i] = e.connectionsOf(ctx, t, ids[i]); errs.KindOf(unread[i]) == errs.Unavailable {
						silent.Store(&unread[i])
					}
					return nil
				})
			}
			_ = reads.Wait() // its errors are in unread
		})
	}
	all.Wait()
	return found, unread
}

func (e *Engine) connectionsOf(ctx context.Context, t *target, id volume.ID) ([]rpc.QueuePair, error) {
	ctx, cancel := context.WithTimeout(ctx, e.answerTime)
	defer cancel()
	_, uuid, _ := parseID(string(id))
	found, err := t.pairs(ctx, nqnOf(uuid))
	return found, t.explain(err, "list the connections of volume %s", id)
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
		if _, err := awaitEnd(ctx, isSession, func() ([]rpc.QueuePair, error) { return t.pairs(ctx, nqnOf(uuid)) }); err != nil {
			return t.explain(err, "end session %s of client %s", s.ID, s.Client)
		}
	}
	return nil
}

// pollInterval of waiting for the end of sessions.
const pollInterval = 50 * time.Millisecond

// awaitEnd waits until the list has no such session, and returns it. Releases before 26.05
// remove a host before its sessions have ended.
func awaitEnd[T any](ctx context.Context, isSession func(T) bool, list func() ([]T, error)) (left []T, err error) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if left, err = list(); err != nil || !slices.ContainsFunc(left, isSession) {
			return left, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, errs.Errorf(errs.Unavailable, "its session has not ended: %w", context.Cause(ctx))
		}
	}
}
