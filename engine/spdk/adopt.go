package spdk

import (
	"context"
	"errors"
	"slices"

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
	if r.Hosts, err = t.presentHosts(ctx, r.nqn()); err != nil {
		return t.explain(err, "read the hosts of volume %s", r.id())
	}
	r.Adopted = true
	if err := e.put(ctx, nil, *r); err != nil {
		return err
	}
	e.config.Logger.Info("volume adopted", "volume", r.id(), "hosts", r.Hosts)
	return nil
}

func (t *target) presentHosts(ctx context.Context, nqn string) (hosts []string, err error) {
	s, err := t.Client.Subsystem(ctx, nqn)
	if errors.Is(err, rpc.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, h := range s.Hosts {
		hosts = append(hosts, h.NQN)
	}
	if s.AllowAnyHost {
		sessions, err := t.Client.SubsystemControllers(ctx, nqn)
		if err != nil {
			return nil, err
		}
		for _, c := range sessions {
			hosts = append(hosts, c.HostNQN)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}

// forgetHosts forgets the hosts of before the adoption that are not connected
// any more: from now on, a host gets the volume by a grant.
func (e *Engine) forgetHosts(ctx context.Context, r record) (record, error) {
	if len(r.Hosts) == 0 {
		return r, nil
	}
	t, err := e.target(r.Target)
	if err != nil {
		return r, err
	}
	sessions, err := t.Client.SubsystemControllers(ctx, r.nqn())
	if err != nil {
		if _, missing := t.Client.Subsystem(ctx, r.nqn()); errors.Is(missing, rpc.NotFound) {
			return r, nil // the target has restarted: they come back
		}
		return r, t.explain(err, "list the clients of volume %s", r.id())
	}
	left := r
	left.Hosts = slices.DeleteFunc(slices.Clone(r.Hosts), func(host string) bool {
		return !slices.ContainsFunc(sessions, func(c rpc.SubsystemController) bool { return c.HostNQN == host })
	})
	if len(left.Hosts) == len(r.Hosts) {
		return r, nil
	}
	return left, e.put(ctx, &r, left)
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
