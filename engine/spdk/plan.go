package spdk

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/store"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// state is what the database says, of one moment.
type state struct {
	volume.Records
	volumes  []record        // in the order of ids
	compared map[string]bool // targets that were found without unknown exports
	fenced   *netipx.IPSet   // the addresses of Records.Fenced
}

func (e *Engine) state(ctx context.Context) (s state, err error) {
	err = e.config.Database.View(ctx, s.readIn(ctx, e.config.Grants))
	return s, err
}

// recentState is state without a read, if a watch shows that the last one still counts.
// It serves to find out that there is nothing to do: what decides reads.
func (e *Engine) recentState(ctx context.Context) (s state, isRecalled bool, err error) {
	db, ok := e.config.Database.(interface {
		Recent(context.Context, func(*store.Tx) error) (bool, error)
	})
	if !ok {
		s, err = e.state(ctx)
		return s, false, err
	}
	isRecalled, err = db.Recent(ctx, s.readIn(ctx, e.config.Grants))
	return s, isRecalled, err
}

// readIn returns a transaction that reads the state.
func (s *state) readIn(ctx context.Context, grants volume.Grants) func(*store.Tx) error {
	return func(tx *store.Tx) (err error) {
		*s = state{compared: map[string]bool{}}
		if s.volumes, err = recordsIn(tx); err != nil {
			return err
		}
		for entry, err := range compared().Range(tx, "") {
			if err != nil {
				return err
			}
			s.compared[entry.Key] = true
		}
		if s.Records, err = grants.Records(store.Join(ctx, tx)); err == nil {
			s.fenced, err = cidr.Set(s.Fenced)
		}
		return err
	}
}

// at returns the complete volumes of a target.
func (s state) at(target string) (all []record) {
	for _, r := range s.volumes {
		if r.Target == target && r.UUID != "" {
			all = append(all, r)
		}
	}
	return all
}

// hasUnrecordedHosts reports whether hosts without a grant can have sessions.
func (r record) hasUnrecordedHosts() bool { return r.Evicting || len(r.Hosts) > 0 }

// isConcerned reports whether a volume has, or perhaps has, a client that fences
// shut out.
func (s state) isConcerned(r record) bool {
	return r.hasUnrecordedHosts() || slices.ContainsFunc(s.Of(r.id()), func(g volume.RecordedGrant) bool { return len(g.Fenced) > 0 })
}

// waiting returns the blocks that are not proved while a target is not: those with a
// client of its volumes, or all if it perhaps has clients that no record names, or
// one without a known address, as a DPU that was not seen connected yet.
func (s state) waiting(target string, all []netip.Prefix) (blocks []netip.Prefix) {
	unknown := func(r record) bool { return r.Target == target && r.hasUnrecordedHosts() }
	if !s.compared[target] || slices.ContainsFunc(s.volumes, unknown) {
		return all
	}
	for _, g := range s.Grants {
		if name, _, _ := parseID(string(g.Volume)); name != target {
			continue
		}
		if len(g.Client.Addrs) == 0 {
			return all
		}
		blocks = append(blocks, g.Fenced...)
	}
	return blocks
}

// observed is what a target shows.
type observed struct {
	exports map[string]rpc.Subsystem // by NQN
	// pairs are the connections of the volumes that have, or can have, clients; readErrors
	// has why they are not known.
	pairs      map[volume.ID][]rpc.QueuePair
	readErrors map[volume.ID]error
	gone       map[hostAt]bool // hosts without a session that do not come back
}

// steps lead a target to where the fences are proved: without any they are. What
// changes records comes first; the exports are corrected as the new ones say.
type steps struct {
	adopt  []string                // UUIDs of exported volumes that no record has
	learn  map[string][]netip.Addr // addresses of clients that are connected from fenced ones, by node
	forget []record                // without hosts admitted before the adoption that are fenced, or come from nowhere known
	// correct are the volumes whose exports admit a host that the records do not, or
	// have a session of such a host.
	correct []volume.ID
	// unproved is why the fences are not proved, and no step helps; unknown: a
	// client of any block can have a session there.
	unproved error
	unknown  bool
	// behind: an export does not admit a host that it should, which does not matter to
	// a fence.
	behind bool
}

func (p steps) changesRecords() bool { return len(p.adopt)+len(p.learn)+len(p.forget) > 0 }

// plan decides about one target. It is pure.
func (e *Engine) plan(s state, target string, o observed) (p steps) {
	p.learn = map[string][]netip.Addr{}
	recorded := map[string]bool{}
	for _, r := range s.at(target) {
		recorded[r.nqn()] = true
		e.planUnseen(s, r, o, &p)
		if x, exported := o.exports[r.nqn()]; exported {
			e.planVolume(s, r, x, o, &p)
		}
	}
	for nqn, x := range o.exports {
		uuid, ours := strings.CutPrefix(nqn, nqnPrefix)
		switch {
		case !ours || recorded[nqn] || len(x.Namespaces) == 0 || e.isOfOther(x):
		case e.isAdoptable(x):
			p.adopt = append(p.adopt, uuid)
		default:
			p.unknown = true
			p.unproved = errors.Join(p.unproved, errs.Errorf(errs.Precondition, "target %s exports %s, which no record has and which does not name its release; delete this subsystem: the release that has the volume exports it again", target, nqn))
		}
	}
	return p
}

// planUnseen lets the fences wait for clients whose addresses are not known, until they
// have connected or are gone. The volume need not be exported: after a restart of the
// target they connect as soon as it is.
func (e *Engine) planUnseen(s state, r record, o observed, p *steps) {
	from := addrsOf(o.pairs[r.id()])
	for _, g := range s.Admitted(r.id()) {
		host := e.hostNQN(g.Client)
		if g.NameOnly && len(g.Client.Addrs)+len(from[host]) == 0 && !o.gone[hostAt{r.nqn(), host}] {
			p.unproved = errors.Join(p.unproved, errs.Errorf(errs.Unavailable, "the addresses of %s, which has volume %s, are not known before it has connected (to SPDK 24.05 or newer, which shows them), or was not connected for %s", g.Client.Node, r.id(), e.returnTime))
		}
	}
}

// planVolume adds the steps for one volume that is exported.
func (e *Engine) planVolume(s state, r record, x rpc.Subsystem, o observed, p *steps) {
	id, desired := r.id(), []string(nil)
	if r.isVolume() {
		desired = e.hostNQNs(r, clientsOf(s.Admitted(id)))
	}
	if err := o.readErrors[id]; err != nil {
		p.unproved = errors.Join(p.unproved, err)
		p.unknown = p.unknown || errs.KindOf(err) != errs.Unavailable // the target answers
	}
	from := addrsOf(o.pairs[id])
	isFenced := func(host string) bool { return slices.ContainsFunc(from[host], s.fenced.Contains) }
	concerned := s.isConcerned(r) || x.AllowAnyHost
	wrong := x.AllowAnyHost
	for _, h := range x.Hosts {
		wrong = wrong || concerned && !slices.Contains(desired, h.NQN)
	}
	for host := range from {
		wrong = wrong || !slices.Contains(desired, host) && (concerned || isFenced(host))
	}
	switch {
	case wrong && r.Deleting:
		p.unproved = errors.Join(p.unproved, errs.Errorf(errs.Unavailable, "volume %s is being deleted, and still admits a host", id))
	case wrong:
		p.correct = append(p.correct, id)
	}
	p.behind = p.behind || len(x.Hosts) < len(desired)
	for _, g := range s.Admitted(id) {
		if host := e.hostNQN(g.Client); isFenced(host) {
			p.learn[g.Client.Node] = append(p.learn[g.Client.Node], from[host]...)
		}
	}
	left := r.without(func(host string, addrs []netip.Addr) bool {
		return isFenced(host) || slices.ContainsFunc(addrs, s.fenced.Contains) || len(addrs)+len(from[host]) == 0
	})
	if r.isVolume() && len(left.Hosts) < len(r.Hosts) {
		p.forget = append(p.forget, left)
	}
}
