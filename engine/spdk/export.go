package spdk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/store"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// Enforce implements volume.Granter.
func (e *Engine) Enforce(ctx context.Context, id volume.ID) error {
	return e.correct(ctx, id, false, func(string) bool { return false })
}

// Revoke implements volume.Granter.
func (e *Engine) Revoke(ctx context.Context, id volume.ID, node string) error {
	return e.correct(ctx, id, true, func(host string) bool { return node == "" || host == e.config.HostNQN(node) })
}

// correct makes an export what the records say, without the hosts admitted before the
// adoption that lose the volume.
func (e *Engine) correct(ctx context.Context, id volume.ID, revokes bool, loses func(host string) bool) error {
	err := e.locked(ctx, id, func(r record) error {
		if e.isRetired(r.Target) && revokes {
			return nil // no session is left
		}
		r, err := e.forgetHosts(ctx, r, loses)
		if err != nil {
			return err
		}
		return e.enforce(ctx, r, false)
	})
	switch {
	case errs.KindOf(err) == errs.NotFound, revokes && errors.Is(err, errLost): // not exported any more
		return nil
	case revokes && errors.Is(err, errNoKey): // another host is not admitted
		return nil
	}
	return err
}

// maxRounds of enforce against records that change meanwhile.
const maxRounds = 5

// enforce exports a volume, and admits the recorded clients and no others. It
// runs under the lock of the volume, for a limited time: a session that does not
// end must keep neither the lock nor the comparison. Another process can change
// the records meanwhile: they are read again after clients were admitted. A new
// volume has neither an export nor clients yet.
func (e *Engine) enforce(ctx context.Context, r record, isNew bool) error {
	t, err := e.target(r.Target)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, e.enforceTime)
	defer cancel()
	x := export{engine: e, target: t, record: r, readAt: time.Now(), isNew: isNew}
	var desired []string
	if !isNew {
		if desired, err = e.hosts(ctx, r); err != nil {
			return err
		}
	}
	for range maxRounds {
		err := x.apply(ctx, desired)
		unchanged, found, now, failure := x.readAgain(ctx)
		if failure == nil && !found {
			return x.withdraw(ctx)
		}
		if errors.Is(err, errOldRead) && failure == nil {
			desired = now
			continue
		}
		if errors.Is(err, errLost) { // no host needs it, and one that is on the list could get the lvol back
			if withdrawn := x.deleteSubsystem(ctx); withdrawn != nil {
				return withdrawn
			}
		}
		var refusal *rpc.Error
		switch kind := errs.KindOf(err); {
		case kind == errs.NotFound: // the volume exists, so a caller must not take it for deleted
			err = errs.Errorf(errs.Unavailable, "the export has vanished meanwhile, perhaps with a restart of the target; repeat the call: %w", err)
		case kind == errs.Internal && errors.As(err, &refusal): // SPDK has one error for what is missing, not loaded yet, and wrong
			err = errs.Errorf(errs.Unavailable, "the target has refused a step, perhaps as it is starting; repeat the call: %w", err)
		}
		if err != nil {
			return t.explain(err, "export volume %s", r.id())
		}
		if failure != nil {
			return failure
		}
		if unchanged && slices.Equal(now, desired) {
			if err := x.note(ctx, false, false); err != nil {
				return err
			}
			return x.noKey
		}
		desired = now
	}
	return errs.Errorf(errs.Busy, "the clients of volume %s change all the time, retry", r.id())
}

// hosts returns the host NQNs to admit, sorted.
func (e *Engine) hosts(ctx context.Context, r record) ([]string, error) {
	if r.Deleting {
		return nil, nil
	}
	admitted, err := e.config.Grants.Admitted(ctx, r.id())
	return e.hostNQNs(r, admitted), err
}

func (e *Engine) hostNQNs(r record, admitted []volume.Client) []string {
	hosts := slices.Collect(maps.Keys(r.Hosts))
	for _, c := range admitted {
		hosts = append(hosts, e.hostNQN(c))
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

func (e *Engine) hostNQN(c volume.Client) string {
	if c.HostNQN != "" {
		return c.HostNQN
	}
	return e.config.HostNQN(c.Node)
}

// export is the subsystem of a volume.
type export struct {
	engine *Engine
	target *target
	record record
	readAt time.Time // when the hosts to admit were read
	ring   keyring   // of the target, if the volume requires keys
	noKey  error     // of the last apply: hosts that are not admitted without a key
	isNew  bool
	// addresses of the last apply; none if a volume that requires TLS cannot have it.
	addresses []netip.AddrPort
}

// apply makes the subsystem what it should be. Hosts are removed before others
// are admitted, and the listener, without which no host connects, comes last.
func (x *export) apply(ctx context.Context, desired []string) error {
	x.noKey = nil
	s, err := x.subsystem(ctx)
	if err != nil {
		return err
	}
	added, err := x.namespace(ctx, s)
	if err != nil {
		return err
	}
	list := x.sessions
	for _, h := range s.Hosts {
		if !slices.Contains(desired, h.NQN) {
			left, err := x.remove(ctx, h.NQN)
			if err != nil {
				return err
			}
			list = func(context.Context) ([]rpc.SubsystemController, error) { return left, nil }
		}
	}
	if x.ring, err = x.target.keyringFor(ctx, []record{x.record}); err != nil {
		return err
	}
	if !s.AllowAnyHost && len(s.Listeners) > 0 {
		if err := x.endOthers(ctx, s, desired, list); err != nil {
			return err
		}
	}
	if s, err = x.secure(ctx, s); err != nil {
		return err
	}
	if err := x.admitAll(ctx, s, desired); err != nil {
		return err
	}
	if s.AllowAnyHost {
		if err := x.note(ctx, true, x.record.LimitsDue); err != nil {
			return err
		}
		if err := x.target.Client.AllowAnyHost(ctx, s.NQN, false); err != nil {
			return err
		}
		crashpoint.Hit("export.closed")
		if err := x.endOthers(ctx, s, desired, x.sessions); err != nil {
			return err
		}
	}
	crashpoint.Hit("export.admitted")
	// Without a listener an earlier call was interrupted, perhaps before the limits.
	if (added || x.record.LimitsDue || len(s.Listeners) == 0) && len(x.record.Attributes) > 0 {
		if err := x.target.Client.SetQoS(ctx, x.record.UUID, qosOf(x.record.Attributes)); err != nil {
			return err
		}
	}
	return x.listen(ctx, s)
}

// readAgain reads the record of the volume, which has the hosts admitted before the
// adoption, and the hosts to admit. It is not found if another controller has
// deleted the volume.
func (x *export) readAgain(ctx context.Context) (unchanged, found bool, hosts []string, err error) {
	var now record
	x.readAt = time.Now()
	err = x.engine.config.Database.View(ctx, func(tx *store.Tx) error {
		if now, found, err = volumes().Get(tx, x.record.Name); err != nil || !found {
			return err
		}
		hosts, err = x.engine.hosts(store.Join(ctx, tx), now)
		return err
	})
	if err != nil || !found || now.id() != x.record.id() {
		return false, false, nil, err
	}
	unchanged, err = isEqual(now, x.record)
	x.record = now
	return unchanged, true, hosts, err
}

// withdraw removes the subsystem of a volume that another controller has deleted
// meanwhile: later, no record names it. It returns NotFound.
func (x *export) withdraw(ctx context.Context) error {
	if err := x.deleteSubsystem(ctx); err != nil {
		return err
	}
	return noVolume(x.record.id())
}

func (x *export) deleteSubsystem(ctx context.Context) error {
	err := x.target.Client.DeleteSubsystem(ctx, x.record.nqn())
	if errors.Is(err, rpc.NotFound) {
		return nil
	}
	return x.target.explain(err, "delete the export of volume %s", x.record.id())
}

// note records what is left to do, before it can be forgotten, and after it is
// done: sessions of hosts without a grant can be left, or limits are not set.
func (x *export) note(ctx context.Context, evicting, limitsDue bool) error {
	if x.record.Evicting == evicting && x.record.LimitsDue == limitsDue {
		return nil
	}
	next := x.record
	next.Evicting, next.LimitsDue = evicting, limitsDue
	if err := x.engine.put(ctx, &x.record, next); err != nil {
		return err
	}
	x.record = next
	return nil
}

// endOthers ends the sessions of hosts that are on no list: those of a host that
// an interrupted call removed, or that connected while every host was admitted.
// SPDK ends those of hosts that are removed from the list only: others are added
// for that.
func (x *export) endOthers(ctx context.Context, s rpc.Subsystem, desired []string, list func(context.Context) ([]rpc.SubsystemController, error)) error {
	sessions, err := list(ctx)
	if err != nil {
		return err
	}
	for _, c := range sessions {
		if slices.Contains(desired, c.HostNQN) {
			continue
		}
		if err := x.evict(ctx, s, c.HostNQN); err != nil {
			return err
		}
	}
	return nil
}

// evict ends the sessions of a host that is on no list.
func (x *export) evict(ctx context.Context, s rpc.Subsystem, host string) error {
	if err := x.admit(ctx, s, host, x.ring.other(x.record.keysOf(host))); err != nil {
		return err
	}
	_, err := x.remove(ctx, host)
	return err
}

func (x *export) sessions(ctx context.Context) ([]rpc.SubsystemController, error) {
	return x.target.Client.SubsystemControllers(ctx, x.record.nqn())
}

// subsystem returns the subsystem, and creates it if it is missing: then it is
// empty, and admits no host.
func (x *export) subsystem(ctx context.Context) (rpc.Subsystem, error) {
	nqn := x.record.nqn()
	if !x.isNew {
		s, err := x.target.Client.Subsystem(ctx, nqn)
		if !errors.Is(err, rpc.NotFound) {
			return s, err
		}
	}
	x.isNew = false                          // of the next round, there is something to read
	if x.target.hasLost(x.record.object()) { // at the last sweep
		if _, err := x.target.Client.Bdev(ctx, x.record.UUID); err != nil {
			return rpc.Subsystem{}, x.engine.missing(ctx, x.target, x.record, err)
		}
	}
	failure := x.target.Client.CreateSubsystem(ctx, rpc.SubsystemCreate{NQN: nqn, Serial: x.engine.serial(), Model: x.record.UUID, MaxNamespaces: 1})
	crashpoint.Hit("export.subsystem")
	if failure == nil {
		return rpc.Subsystem{NQN: nqn, Serial: x.engine.serial(), Model: x.record.UUID}, nil
	}
	s, err := x.target.Client.Subsystem(ctx, nqn)
	if err != nil {
		err = failure
	}
	return s, err
}

// namespace adds the lvol if it is missing.
func (x *export) namespace(ctx context.Context, s rpc.Subsystem) (added bool, err error) {
	uuid := x.record.UUID
	if len(s.Namespaces) > 0 {
		if n := s.Namespaces[0]; len(s.Namespaces) > 1 || n.Bdev != uuid {
			return false, errs.Errorf(errs.Precondition, "subsystem %s exports bdev %s, not lvol %s alone; delete the subsystem to have it exported again", s.NQN, n.Bdev, uuid)
		}
		return false, nil
	}
	if len(s.Listeners) > 0 && len(x.record.Attributes) > 0 {
		if err := x.note(ctx, x.record.Evicting, true); err != nil {
			return false, err
		}
	}
	failure := x.target.Client.AddNamespace(ctx, s.NQN, rpc.SubsystemDisk{
		ID: 1, Bdev: uuid, UUID: uuid, NGUID: strings.ToUpper(strings.ReplaceAll(uuid, "-", "")),
	})
	if failure == nil {
		return true, nil
	}
	if s, err = x.target.Client.Subsystem(ctx, s.NQN); err == nil && len(s.Namespaces) > 0 {
		return true, nil
	}
	if _, missing := x.target.Client.Bdev(ctx, uuid); errors.Is(missing, rpc.NotFound) {
		return false, x.engine.missing(ctx, x.target, x.record, missing)
	}
	return false, failure
}

func (x *export) admit(ctx context.Context, s rpc.Subsystem, host string, keys rpc.HostKeys) error {
	if s.HasHost(host) {
		return nil
	}
	failure := x.addHost(ctx, s.NQN, host, keys)
	if failure == nil {
		return nil
	}
	now, err := x.target.Client.Subsystem(ctx, s.NQN)
	if err != nil || now.HasHost(host) {
		return err
	}
	return failure
}

// errOldRead: the records were read too long ago to admit a host.
var errOldRead = errs.Errorf(errs.Unavailable, "the records were read more than %s ago, which have to say whom to admit; the target is slow, repeat the call", admitTime)

// addHost is bounded by the age of the records that say whom to admit, see
// takeOverTime.
func (x *export) addHost(ctx context.Context, nqn, host string, keys rpc.HostKeys) error {
	ctx, cancel := context.WithDeadlineCause(ctx, x.readAt.Add(admitTime), errOldRead)
	defer cancel()
	return x.target.Client.AddHost(ctx, nqn, host, keys)
}

// remove removes a host, waits until none of its sessions is left, and returns
// the other ones.
func (x *export) remove(ctx context.Context, host string) (others []rpc.SubsystemController, err error) {
	nqn := x.record.nqn()
	if failure := x.target.Client.RemoveHost(ctx, nqn, host); failure != nil {
		s, err := x.target.Client.Subsystem(ctx, nqn)
		if err != nil {
			return nil, err
		}
		if s.HasHost(host) {
			return nil, failure
		}
	}
	crashpoint.Hit("export.removed")
	isSession := func(c rpc.SubsystemController) bool { return c.HostNQN == host }
	others, err = awaitEnd(ctx, isSession, func() ([]rpc.SubsystemController, error) { return x.target.sessions(ctx, nqn) })
	if err != nil {
		return nil, fmt.Errorf("host %s is admitted no more: %w", host, err)
	}
	return others, nil
}

// listen adds missing listeners, and the transport if the process is new.
func (x *export) listen(ctx context.Context, s rpc.Subsystem) error {
	for _, a := range x.addresses {
		if listensOn(s, x.target.Transport, a) {
			continue
		}
		address := rpc.Listener{NVMeAddress: addressOf(x.target.Transport, a), TLS: x.record.requiresTLS()}
		failure := x.target.Client.AddListener(ctx, s.NQN, address)
		if failure == nil {
			continue
		}
		if err := x.target.Client.CreateTransport(ctx, address.Transport); err != nil && !errors.Is(err, rpc.Exists) {
			return err
		}
		if failure = x.target.Client.AddListener(ctx, s.NQN, address); failure == nil {
			continue
		}
		now, err := x.target.Client.Subsystem(ctx, s.NQN)
		if err != nil {
			return err
		}
		if !listensOn(now, x.target.Transport, a) {
			return errs.Errorf(errs.Unavailable, "listen on %s with %s: check that the machine of the target has this address, and that no other program uses the port: %w", a, address.Transport, failure)
		}
	}
	return x.checkTLS(ctx, s)
}
