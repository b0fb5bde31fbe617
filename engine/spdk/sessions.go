package spdk

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go4.org/netipx"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// shutOutHost is a host that is not allowed on the list of a volume.
type shutOutHost struct {
	target, nqn string // of the export
	host        string
	blocks      []netip.Prefix // fenced ones with an address of the host
}

// shutOut returns the fenced hosts of volumes, without those at retired targets.
func (e *Engine) shutOut(s state) (hosts []shutOutHost) {
	add := func(id volume.ID, host string, in []netip.Prefix) {
		if name, uuid, _ := parseID(string(id)); !e.isRetired(name) && len(in) > 0 {
			hosts = append(hosts, shutOutHost{name, nqnOf(uuid), host, in})
		}
	}
	for _, g := range s.Grants {
		add(g.Volume, e.hostNQN(g.Client), g.Fenced)
	}
	for _, r := range s.volumes {
		for host, addrs := range r.Hosts {
			add(r.id(), host, slices.DeleteFunc(slices.Clone(s.Fenced), func(b netip.Prefix) bool { return !slices.ContainsFunc(addrs, b.Contains) }))
		}
	}
	return hosts
}

// Held implements volume.Fencer. It reads the host lists of the targets, and
// omits the blocks of a host that is on one, or whose target does not answer.
func (e *Engine) Held(ctx context.Context) ([]netip.Prefix, error) {
	s, isRecalled, err := e.recentState(ctx)
	if err != nil || len(s.Fenced) == 0 {
		return nil, err
	}
	if isRecalled {
		if s, err = e.state(ctx); err != nil {
			return nil, err
		}
	}
	hosts := e.shutOut(s)
	lists := e.hostLists(ctx, hosts)
	if ctx.Err() != nil {
		return nil, errs.Errorf(errs.Unavailable, "read the host lists of the targets: %w", context.Cause(ctx))
	}
	var open []netip.Prefix
	for _, h := range hosts {
		list := lists[h.target]
		if x := list[h.nqn]; list == nil || x.AllowAnyHost || x.HasHost(h.host) {
			open = append(open, h.blocks...)
		}
	}
	return cidr.Missing(open, s.Fenced)
}

// hostLists returns the subsystems, by NQN, of the targets of hosts, by name; nil
// for one that does not answer or is not configured.
func (e *Engine) hostLists(ctx context.Context, hosts []shutOutHost) map[string]map[string]rpc.Subsystem {
	ctx, cancel := context.WithTimeout(ctx, e.answerTime)
	defer cancel()
	var mu sync.Mutex
	var reads sync.WaitGroup
	named := map[string]map[string]rpc.Subsystem{}
	for _, t := range e.order {
		if !slices.ContainsFunc(hosts, func(h shutOutHost) bool { return h.target == t.Name }) {
			continue
		}
		reads.Go(func() {
			if all, err := t.subsystems(ctx); err == nil {
				mu.Lock()
				defer mu.Unlock()
				named[t.Name] = all
			}
		})
	}
	reads.Wait()
	return named
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
	s, err := e.state(ctx)
	if err != nil {
		return nil, err
	}
	hosts := map[volume.ID][]string{} // of clients in the blocks
	for _, r := range s.volumes {
		if r.hasUnrecordedHosts() {
			hosts[r.id()] = append(hosts[r.id()], anyHost)
		}
	}
	inside := map[string]bool{}
	for _, c := range s.ClientsIn(set.Contains) {
		inside[c.Node] = true
	}
	for _, g := range s.Grants {
		hosts[g.Volume] = append(hosts[g.Volume], "")
		if inside[g.Client.Node] {
			hosts[g.Volume] = append(hosts[g.Volume], e.hostNQN(g.Client))
		}
	}
	at := map[*target][]volume.ID{} // none of a target that is not configured, which Apply reports
	for _, id := range slices.Sorted(maps.Keys(hosts)) {
		name, _, _ := parseID(string(id))
		if t := e.targets[name]; t != nil {
			at[t] = append(at[t], id)
		}
	}
	var mu sync.Mutex
	var reads sync.WaitGroup
	for t, ids := range at {
		reads.Go(func() {
			found, readErrors := e.connections(ctx, t, ids)
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				// A target without a client in the blocks does not matter, as in Apply.
				if failed := readErrors[id]; failed != nil && (errs.KindOf(failed) != errs.Unavailable || slices.ContainsFunc(hosts[id], func(host string) bool { return host != "" })) {
					err = failed
				}
				all = append(all, e.sessionsOf(id, found[id], hosts[id], set)...)
			}
		})
	}
	reads.Wait()
	slices.SortFunc(all, func(a, b volume.Session) int { return strings.Compare(a.ID, b.ID) })
	return all, err
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

// End implements volume.Fencer. Apply has removed the hosts, which ends their
// sessions, but a client can have connected from a fenced address since.
func (e *Engine) End(ctx context.Context, sessions []volume.Session) error {
	err := e.Apply(ctx, volume.FenceSet{})
	if _, waits := errors.AsType[*volume.NotEnforced](err); err != nil && !waits {
		return err
	}
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
