package spdk

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/cleatproject/cleat/errs"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// foreign returns the record of a volume that the database does not have: one
// of spdk-csi, or of a database that was lost. NotFound: it does not exist.
func (e *Engine) foreign(ctx context.Context, id volume.ID) (record, error) {
	t, uuid, err := e.targetOf("volume", string(id))
	if err != nil {
		return record{}, err
	}
	l, err := e.foreignLvol(ctx, t, uuid)
	if err != nil {
		return record{}, err
	}
	if l.snapshot {
		return record{}, noVolume(id)
	}
	// Whether it has a file system, and which, only its user knows.
	return record{
		Name: l.name, Target: t.Name, Store: l.store, StoreName: l.storeName, UUID: uuid, Size: l.size, FirstSize: l.size, Content: volume.Filesystem,
	}, nil
}

// adopt records such a volume. A subsystem of spdk-csi admits every host: the
// hosts that are connected now, or that are admitted by name, stay admitted, so
// that no pod loses its volume.
func (e *Engine) adopt(ctx context.Context, r *record) error {
	t, err := e.target(r.Target)
	if err != nil {
		return err
	}
	s, err := t.Client.Subsystem(ctx, r.nqn())
	switch {
	case err == nil && e.isOfOther(s):
		return errs.Errorf(errs.Precondition, "volume %s is exported by another release with the owner %s, and this one is %s; if no other release has it, delete subsystem %s at target %s",
			r.id(), s.Serial, e.serial(), s.NQN, t.Name)
	case err == nil:
		if _, err := t.Client.Secure(ctx, map[string]rpc.Subsystem{s.NQN: s}); err != nil {
			return t.explain(err, "read the keys of volume %s", r.id())
		}
		if err := r.adoptKeys(s); err != nil {
			return err
		}
		r.Hosts, r.Evicting, err = t.presentHosts(ctx, s)
	case errors.Is(err, rpc.NotFound): // not exported
		err = nil
	}
	if err != nil {
		return t.explain(err, "read the hosts of volume %s", r.id())
	}
	r.Adopted = true
	if err := e.put(ctx, nil, *r); err != nil {
		return err
	}
	e.config.Logger.Info("volume adopted", "volume", r.id(), "hosts", slices.Sorted(maps.Keys(r.Hosts)))
	return nil
}

// presentHosts returns the hosts that are admitted by name, or connected where
// every host is admitted, with their addresses.
func (t *target) presentHosts(ctx context.Context, s rpc.Subsystem) (hosts map[string][]netip.Addr, anyHost bool, err error) {
	hosts = map[string][]netip.Addr{}
	for _, h := range s.Hosts {
		hosts[h.NQN] = nil
	}
	if s.AllowAnyHost {
		sessions, err := t.Client.SubsystemControllers(ctx, s.NQN)
		if err != nil {
			return nil, false, err
		}
		for _, c := range sessions {
			hosts[c.HostNQN] = nil
		}
	}
	pairs, err := t.pairs(ctx, s.NQN)
	if err != nil {
		return nil, false, err
	}
	addHostAddrs(hosts, addrsOf(pairs))
	return hosts, s.AllowAnyHost, nil
}

// addrsOf returns the addresses of connected hosts, by host NQN. SPDK before 24.05 does
// not show them.
func addrsOf(pairs []rpc.QueuePair) map[string][]netip.Addr {
	from := map[string][]netip.Addr{}
	for _, p := range pairs {
		from[p.HostNQN] = slices.Clip(from[p.HostNQN]) // connected, also without an address
		if a, ok := parseAddress(p.Peer); ok && !slices.Contains(from[p.HostNQN], a.Addr()) {
			from[p.HostNQN] = append(from[p.HostNQN], a.Addr())
		}
	}
	return from
}

// addHostAddrs adds missing addresses of known hosts, and reports whether there
// were any.
func addHostAddrs(hosts, from map[string][]netip.Addr) (changed bool) {
	for host, known := range hosts {
		for _, a := range from[host] {
			if !slices.Contains(known, a) {
				known, changed = append(slices.Clip(known), a), true
			}
		}
		hosts[host] = known
	}
	return changed
}

// forgetHosts forgets the hosts admitted before the adoption that lose the volume, are
// gone, or have a grant: from now on, a host gets the volume by a grant.
func (e *Engine) forgetHosts(ctx context.Context, r record, loses func(host string) bool) (record, error) {
	if len(r.Hosts) == 0 {
		return r, nil
	}
	t, err := e.target(r.Target)
	if err != nil {
		return r, err
	}
	recorded, err := e.config.Grants.Records(ctx)
	if err != nil {
		return r, err
	}
	granted := recorded.Of(r.id())
	sessions, err := t.sessions(ctx, r.nqn())
	if err != nil {
		return r, t.explain(err, "list the clients of volume %s", r.id())
	}
	gone := t.gone(e.returnTime)
	return e.withoutHosts(ctx, r, func(host string, _ []netip.Addr) bool {
		return loses(host) || slices.ContainsFunc(granted, func(g volume.RecordedGrant) bool { return e.hostNQN(g.Client) == host }) ||
			gone[hostAt{r.nqn(), host}] && !slices.ContainsFunc(sessions, func(c rpc.SubsystemController) bool { return c.HostNQN == host })
	})
}

// withoutHosts removes some hosts admitted before the adoption from the record.
func (e *Engine) withoutHosts(ctx context.Context, r record, leaves func(host string, addrs []netip.Addr) bool) (record, error) {
	left := r.without(leaves)
	if len(left.Hosts) == len(r.Hosts) {
		return r, nil
	}
	return left, e.put(ctx, &r, left)
}

func (r record) without(leaves func(host string, addrs []netip.Addr) bool) record {
	left := r
	left.Hosts = maps.Clone(r.Hosts)
	maps.DeleteFunc(left.Hosts, leaves)
	left.Evicting = r.Evicting || len(left.Hosts) < len(r.Hosts)
	return left
}

// own returns the record of a volume, which is adopted if it has no record. It
// runs under the lock of the volume's name.
func (e *Engine) own(ctx context.Context, id volume.ID) (record, error) {
	r, found, err := e.recorded(ctx, id)
	if err != nil || found {
		return r, err
	}
	if r, err = e.foreign(ctx, id); err == nil {
		err = e.adopt(ctx, &r)
	}
	return r, err
}

// locked finds a volume, locks its name, and calls change with its record.
func (e *Engine) locked(ctx context.Context, id volume.ID, change func(r record) error) error {
	r, err := e.find(ctx, id)
	if err != nil {
		return err
	}
	unlock, err := e.lock(ctx, volumeKey(r.Name))
	if err != nil {
		return err
	}
	defer unlock()
	if r, err = e.own(ctx, id); err != nil {
		return err
	}
	return change(r)
}
