package spdk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume/access"
)

// A volume with the parameter dhchapKey admits hosts with DH-HMAC-CHAP alone, one
// with tlsKey with TLS alone (tls.go). The parameters, and dhchapCtrlrKey for the
// authentication of the target, are names that both sides resolve: a node to a file
// of its key directory, a target to an entry of its keyring for each host. The
// controller has no key.

// keyEntry is the name of a key in the keyring of a target, which cannot have a
// host NQN in it: a colon ends the name of a keyring.
func keyEntry(name, hostNQN string) string { return name + "." + access.HostID(hostNQN) }

// keysOf returns the entries for a host of a volume.
func (r record) keysOf(hostNQN string) (keys rpc.HostKeys) {
	for parameter, into := range map[string]*string{keyDHChap: &keys.Host, keyDHChapCtrlr: &keys.Target, keyTLS: &keys.TLS} {
		if name := r.Parameters[parameter]; name != "" {
			*into = keyEntry(name, hostNQN)
		}
	}
	return keys
}

func (r record) requiresKeys() bool { return r.Parameters[keyDHChap] != "" || r.requiresTLS() }

// errNoKey: the keyring of a target lacks a key. The host is not admitted, or is
// admitted with a key that is gone; other hosts have what the records say.
var errNoKey = errors.New("the host cannot authenticate")

// keyring has the state of the entries of a target, by name.
type keyring map[string]entry

type entry struct {
	present bool
	// replaced: hosts can refer to a removed entry of this name.
	replaced bool
}

func (t *target) keyring(ctx context.Context) (keyring, error) {
	all, err := t.Client.Keyring(ctx)
	if err != nil && !errors.Is(err, rpc.UnknownMethod) { // an older release has no keys
		return nil, t.explain(err, "list the keyring")
	}
	ring := keyring{}
	for _, k := range all {
		name := strings.TrimPrefix(k.Name, ":")
		e := ring[name]
		e.present, e.replaced = e.present || !k.Removed, e.replaced || k.Removed
		ring[name] = e
	}
	return ring, nil
}

// keyringFor returns the keyring if one of the volumes of the target needs it.
func (t *target) keyringFor(ctx context.Context, all []record) (keyring, error) {
	if !slices.ContainsFunc(all, func(r record) bool { return r.Target == t.Name && r.requiresKeys() }) {
		return nil, nil
	}
	return t.keyring(ctx)
}

// isReplaced reports whether a host with these keys can have a removed one.
func (ring keyring) isReplaced(keys rpc.HostKeys) bool {
	return ring[keys.Host].replaced || ring[keys.Target].replaced || ring[keys.TLS].replaced
}

// lacks returns errNoKey if an entry is missing, and how to add it.
func (ring keyring) lacks(t *target, hostNQN string, keys rpc.HostKeys) error {
	for _, name := range []string{keys.Host, keys.Target, keys.TLS} {
		if name != "" && !ring[name].present {
			return errs.Errorf(errs.Precondition, "%w: the keyring of target %s has no entry %s for host %s; store the key in a file there, with mode 0600, and call keyring_file_add_key {\"name\": %q, \"path\": \"/…\"} (SPDK 24.09 or newer)", errNoKey, t.Name, name, hostNQN, name)
		}
	}
	return nil
}

// other returns a key for a host that is admitted only so that SPDK ends its
// sessions: if possible not its own, so that it does not come back meanwhile.
// Without any it is admitted without a key, as a fence cannot wait for keys.
func (ring keyring) other(own rpc.HostKeys) (keys rpc.HostKeys) {
	for name, e := range ring {
		if e.present && name != own.Host && name != own.Target {
			return rpc.HostKeys{Host: name}
		}
	}
	if ring[own.Host].present {
		keys.Host = own.Host
	}
	return keys
}

// admitAll admits hosts. One that lacks its key keeps no other from the volume.
func (x *export) admitAll(ctx context.Context, s rpc.Subsystem, hosts []string) error {
	if len(x.addresses) == 0 { // without TLS
		return nil
	}
	for _, host := range hosts {
		if !x.record.requiresKeys() {
			if err := x.admit(ctx, s, host, rpc.HostKeys{}); err != nil {
				return err
			}
			continue
		}
		switch err := x.admitWithKeys(ctx, s, host); {
		case errors.Is(err, errNoKey):
			x.noKey = errors.Join(x.noKey, err)
		case err != nil:
			return err
		}
	}
	return nil
}

// admitWithKeys admits a host that authenticates itself. A host that was admitted
// with other keys, or with none, has no session afterwards that began so.
func (x *export) admitWithKeys(ctx context.Context, s rpc.Subsystem, host string) error {
	keys := x.record.keysOf(host)
	have, admitted := s.Keys(host)
	if err := x.ring.lacks(x.target, host, keys); err != nil {
		if admitted && have != keys {
			if _, failed := x.remove(ctx, host); failed != nil {
				return failed
			}
		}
		return err
	}
	connected := false
	if !admitted || x.ring[keys.TLS].replaced {
		sessions, err := x.sessions(ctx)
		if err != nil {
			return err
		}
		connected = slices.ContainsFunc(sessions, func(c rpc.SubsystemController) bool { return c.HostNQN == host })
	}
	switch {
	case admitted && have == keys && (x.ring[keys.Host].replaced || x.ring[keys.Target].replaced):
		// Sessions stay. The removed key would authenticate none of them again.
		return x.target.explain(x.target.Client.SetHostKeys(ctx, s.NQN, host, keys), "set the keys of host %s", host)
	case admitted && have == keys && (connected || !x.ring[keys.TLS].replaced):
		return nil
	case admitted: // SPDK reads a TLS key when it adds the host
		if _, err := x.remove(ctx, host); err != nil {
			return err
		}
	case connected: // an earlier call has perhaps removed it, and was interrupted
		if err := x.evict(ctx, s, host); err != nil {
			return err
		}
	}
	failure := x.addHost(ctx, s.NQN, host, keys)
	crashpoint.Hit("export.keyed")
	now, err := x.read(ctx)
	if err != nil {
		return err
	}
	have, admitted = now.Keys(host)
	switch {
	case admitted && have == keys:
		return nil
	case admitted: // the release ignores the parameter
		_, failed := x.remove(ctx, host)
		return errors.Join(failed, errs.Errorf(errs.Precondition, "target %s has admitted host %s without its key; use SPDK 24.09 or newer there", x.target.Name, host))
	case failure == nil:
		return errs.Errorf(errs.Busy, "another call has removed host %s, retry", host)
	}
	if keys.TLS != "" && errs.KindOf(failure) == errs.Internal { // SPDK reads the key
		return errs.Errorf(errs.Precondition, "%w: target %s refuses host %s with the key of entry %s, whose file must have one of nvme gen-tls-key without a line break at its end: %w", errNoKey, x.target.Name, host, keys.TLS, failure)
	}
	return fmt.Errorf("admit host %s with keys that the target has; SPDK must be built with DH-HMAC-CHAP (OpenSSL 3): %w", host, failure)
}

// keysShown returns the parameters that the hosts of a subsystem have keys of.
func keysShown(s rpc.Subsystem) map[string]string {
	found := map[string]string{}
	for _, h := range s.Hosts {
		suffix := keyEntry("", h.NQN)
		if name, ok := strings.CutSuffix(h.HostKeys.Host, suffix); ok {
			found[keyDHChap] = name
		}
		if name, ok := strings.CutSuffix(h.HostKeys.Target, suffix); ok {
			found[keyDHChapCtrlr] = name
		}
		if name, ok := strings.CutSuffix(h.HostKeys.TLS, suffix); ok {
			found[keyTLS] = name
		}
	}
	return found
}

// adoptKeys keeps the keys with which an adopted volume is exported. Exists: the
// request for it has others.
func (r *record) adoptKeys(s rpc.Subsystem) error {
	shown := keysShown(s)
	differ := func(key string) bool { return shown[key] != r.Parameters[key] }
	hasTLS := slices.ContainsFunc(s.Listeners, func(l rpc.Listener) bool { return l.TLS })
	switch {
	case hasTLS && shown[keyTLS] == "" && !r.requiresTLS():
		return errs.Errorf(errs.Precondition, "volume %s is exported with TLS, and no host of it shows the name of its %s; delete subsystem %s to have it exported without TLS", r.id(), keyTLS, s.NQN)
	case len(shown) == 0 || !differ(keyDHChap) && !differ(keyDHChapCtrlr) && !differ(keyTLS):
		return nil
	case !r.Created.IsZero():
		return errs.Errorf(errs.Exists, "volume %s is exported with the keys %v, not with those of the request", r.id(), shown)
	}
	r.Parameters = shown
	return nil
}
