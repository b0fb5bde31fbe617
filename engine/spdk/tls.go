package spdk

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	rpc "github.com/cleatproject/cleat/spdk"
)

// SPDK has TLS at a listener: a client there without a key of a host of the target is
// disconnected, and at another listener of the same subsystem no TLS key counts. So a
// volume with the parameter tlsKey is exported at the TLS addresses of its target
// alone, and only while nothing is exported there without TLS: all listeners of an
// address share the socket of the first one, and show what was requested for them.
//
// SPDK reads a TLS key when a host is added, if the transport exists then, and shows
// its name, as the TLS of listeners, in the saved configuration of the process only.

func (r record) requiresTLS() bool { return r.Parameters[keyTLS] != "" }

// addressesOf returns the addresses at which a volume is exported.
func (t *target) addressesOf(r record) []netip.AddrPort {
	if r.requiresTLS() {
		return t.TLSAddresses
	}
	return t.Addresses
}

// canTLS returns Precondition if the volume requires TLS, which the target does not
// have.
func (b *build) canTLS(ctx context.Context, t *target) error {
	if !b.settings.tls {
		return nil
	}
	if len(t.TLSAddresses) == 0 {
		return noTLS(t)
	}
	v, err := t.Client.Version(ctx)
	if err != nil {
		return t.explain(err, "read the version")
	}
	if v.Major < 24 || v.Major == 24 && v.Minor < 9 {
		return errs.Errorf(errs.Precondition, "target %s has %s, and %s needs SPDK 24.09 or newer", t.Name, v, keyTLS)
	}
	plain, err := t.Client.Secure(ctx, nil)
	if err != nil {
		return t.explain(err, "read the listeners")
	}
	return t.checkSockets(plain, "")
}

// checkSockets returns Precondition if another subsystem listens without TLS where
// those that require TLS do.
func (t *target) checkSockets(plain []rpc.NVMeAddress, nqn string) error {
	for _, l := range plain {
		if l.SubNQN != nqn && slices.ContainsFunc(t.TLSAddresses, func(a netip.AddrPort) bool { return isAt(l, t.Transport, a) }) {
			return errs.Errorf(errs.Precondition, "subsystem %s of target %s listens without TLS on %s:%s, one of its tlsAddresses, so others there can be without as well; remove all listeners from this address, or configure another one",
				l.SubNQN, t.Name, l.Address, l.Service)
		}
	}
	return nil
}

func noTLS(t *target) error {
	return errs.Errorf(errs.Precondition, "target %s has no tlsAddresses, which a volume with %s needs; configure an address with a port that nothing else uses, such as 192.0.2.1:4421", t.Name, keyTLS)
}

// readTLS completes the subsystems of volumes that require TLS.
func (t *target) readTLS(ctx context.Context, all []record, seen map[string]rpc.Subsystem) error {
	required := map[string]rpc.Subsystem{}
	for _, r := range all {
		if s, found := seen[r.nqn()]; found && r.Target == t.Name && r.requiresTLS() {
			required[s.NQN] = s
		}
	}
	if len(required) == 0 {
		return nil
	}
	_, err := t.Client.Secure(ctx, required)
	return t.explain(err, "read the TLS of the exports")
}

// listensFor reports whether the subsystem of a volume has its listeners, and if the
// volume requires TLS no others.
func (t *target) listensFor(r record, s rpc.Subsystem) bool {
	addresses := t.addressesOf(r)
	return len(addresses) > 0 &&
		!slices.ContainsFunc(addresses, func(a netip.AddrPort) bool { return !listensOn(s, t.Transport, a) }) &&
		!(r.requiresTLS() && slices.ContainsFunc(s.Listeners, func(l rpc.Listener) bool { return !l.TLS }))
}

// read reads the subsystem.
func (x *export) read(ctx context.Context) (rpc.Subsystem, error) {
	s, err := x.target.Client.Subsystem(ctx, x.record.nqn())
	if err == nil && x.record.requiresTLS() {
		_, err = x.target.Client.Secure(ctx, map[string]rpc.Subsystem{s.NQN: s})
	}
	return s, err
}

// secure chooses the addresses of the export before any host is admitted, and completes
// the subsystem. A volume that requires TLS has none while another subsystem is exported
// without TLS there; hosts that are admitted stay. Its own listeners without TLS are
// removed, with the sessions there.
func (x *export) secure(ctx context.Context, s rpc.Subsystem) (rpc.Subsystem, error) {
	if x.addresses = x.target.addressesOf(x.record); !x.record.requiresTLS() {
		return s, nil
	}
	if len(x.addresses) == 0 {
		x.noKey = fmt.Errorf("%w: %w", errNoKey, noTLS(x.target))
		return s, nil
	}
	if len(s.Listeners) == 0 { // perhaps a new process
		if err := x.target.Client.CreateTransport(ctx, "TCP"); err != nil && !errors.Is(err, rpc.Exists) {
			return s, err
		}
	}
	plain, err := x.target.Client.Secure(ctx, map[string]rpc.Subsystem{s.NQN: s})
	if err != nil {
		return s, err
	}
	if err := x.target.checkSockets(plain, s.NQN); err != nil {
		x.addresses, x.noKey = nil, fmt.Errorf("%w: %w", errNoKey, err)
	}
	removed := false
	for _, l := range plain {
		if l.SubNQN == s.NQN {
			l.SubNQN = ""
			if err := x.target.Client.RemoveListener(ctx, s.NQN, l); err != nil {
				return s, err
			}
			crashpoint.Hit("export.plain")
			isThere := func(p rpc.QueuePair) bool { return p.Local == l }
			if _, err := awaitEnd(ctx, isThere, func() ([]rpc.QueuePair, error) { return x.target.pairs(ctx, s.NQN) }); err != nil {
				return s, fmt.Errorf("the listener without TLS is removed: %w", err)
			}
			removed = true
		}
	}
	if removed {
		return x.read(ctx)
	}
	return s, nil
}

// checkTLS reads what the listeners have become that were added to an export.
func (x *export) checkTLS(ctx context.Context, before rpc.Subsystem) error {
	if !x.record.requiresTLS() || len(x.addresses) == 0 || x.target.listensFor(x.record, before) {
		return nil
	}
	s, err := x.read(ctx)
	if err == nil && !x.target.listensFor(x.record, s) {
		err = errs.Errorf(errs.Unavailable, "subsystem %s does not listen with TLS alone, retry", s.NQN)
	}
	return err
}
