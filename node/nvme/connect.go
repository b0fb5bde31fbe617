package nvme

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	kernel "github.com/cleatproject/cleat/internal/linux/nvme"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// host is how a volume's connections identify this machine.
type host struct{ nqn, id string }

func (a *Attacher) host(l access.NVMe) host {
	nqn := l.HostNQN
	if nqn == "" {
		nqn = a.config.HostNQN
	}
	return host{nqn, access.HostID(nqn)}
}

// checkForeign rejects a subsystem that another program is connected to: the
// kernel would send I/O of the volume over its controllers as well.
func (a *Attacher) checkForeign(nqn, hostNQN string) error {
	all, err := a.kernel.Controllers()
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.NQN == nqn && c.HostNQN != hostNQN {
			return errs.Errorf(errs.Precondition, "the subsystem %s is connected by another program as %s, with the host NQN %s; disconnect it there first", nqn, c.Name, errs.Quote(c.HostNQN))
		}
	}
	return nil
}

// checkOwner rejects a namespace, of those of its subsystem, that is attached as
// another volume: each would be mounted, and detached, without the other.
func (a *Attacher) checkOwner(id volume.ID, l access.NVMe, disks []kernel.Namespace) error {
	all, err := a.records.all()
	if err != nil || id == "" {
		return err
	}
	n, missing := choose(l, disks)
	for _, r := range all {
		isSame := r.name == fileName(l) || missing == nil && r.Device.Backing == backing(n)
		if isSame && r.Volume != "" && r.Volume != id {
			return errs.Errorf(errs.Precondition, "volume %s has the namespace of volume %s, which this node has attached from the subsystem %s; unstage volume %s first, and use one PersistentVolume for each namespace", id, r.Volume, l.NQN, r.Volume)
		}
	}
	return nil
}

// path is one way to a subsystem.
type path struct {
	nqn, hostNQN string
	address      netip.AddrPort
}

// keepAlive is the kernel's default, in seconds: a silent target is noticed
// after 7 seconds.
const keepAlive = 5

// defaultTimeouts survive an outage of a minute without an error, and let I/O
// fail after it. The kernel goes on trying to connect.
func defaultTimeouts() access.Timeouts {
	return access.Timeouts{Loss: access.Sec(-1), Delay: access.Sec(2), FastFail: access.Sec(60)}
}

// connection returns what the kernel is asked for. The keys are read now.
func (a *Attacher) connection(l access.NVMe, h host, at netip.AddrPort) (kernel.Connection, error) {
	t := l.Timeouts.Or(defaultTimeouts())
	c := kernel.Connection{
		Transport: l.Transport, Address: at, NQN: l.NQN, HostNQN: h.nqn, HostID: h.id,
		Loss: t.Loss.N, Delay: t.Delay.N, FastFail: t.FastFail.N, KeepAlive: keepAlive,
		IOQueues: l.IOQueues, HeaderDigest: l.HeaderDigest, DataDigest: l.DataDigest,
	}
	var err error
	if c.Key, err = a.authKey(l.DHChapKey); err != nil {
		return c, err
	}
	if c.TargetKey, err = a.authKey(l.DHChapCtrlrKey); err != nil {
		return c, err
	}
	c.PSK, err = a.psk(l.TLSKey)
	return c, err
}

// authKey reads a DH-HMAC-CHAP key.
func (a *Attacher) authKey(name string) (string, error) {
	key, err := a.key(name)
	if err == nil && key != "" && !strings.HasPrefix(key, "DHHC-1:") {
		err = errs.Errorf(errs.Precondition, "the file %s of %s is not a DH-HMAC-CHAP key, which begins with DHHC-1:", name, a.config.KeyDir)
	}
	return key, err
}

// psk reads a key of TLS; nil: the volume has none.
func (a *Attacher) psk(name string) (*kernel.PSK, error) {
	text, err := a.key(name)
	if name == "" || err != nil {
		return nil, err
	}
	psk, err := kernel.ParsePSK(text)
	if err != nil {
		return nil, errs.Errorf(errs.KindOf(err), "the file %s of %s %w", name, a.config.KeyDir, err)
	}
	return &psk, nil
}

const maxKey = 4096

// key reads the file of a key.
func (a *Attacher) key(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	if a.config.KeyDir == "" {
		return "", errs.Errorf(errs.Precondition, "the volume requires the key %s, and this node has no directory of keys: set --nvme-key-dir", name)
	}
	dir, err := os.OpenRoot(a.config.KeyDir)
	if err != nil {
		return "", errs.Errorf(errs.Precondition, "the directory of NVMe keys: %w", err)
	}
	defer dir.Close()
	f, err := dir.Open(name)
	if err != nil {
		return "", errs.Errorf(errs.Precondition, "the key %s of the volume: %w", name, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKey))
	key := strings.TrimSpace(string(text))
	if err == nil && key == "" {
		err = errs.Errorf(errs.Precondition, "the file %s of %s is empty; it must have the key of the volume", name, a.config.KeyDir)
	}
	return key, err
}

// connectPaths connects the paths of a volume that have no controller. One is
// enough; Run adds the others later. Without the kernel's multipath each
// controller would be a disk of its own, so one is used.
func (a *Attacher) connectPaths(ctx context.Context, l access.NVMe, h host) error {
	have, err := a.controllersOf(record{NQN: l.NQN, HostNQN: h.nqn})
	if err != nil {
		return err
	}
	connected, live := map[netip.AddrPort]bool{}, false
	for _, c := range have {
		if l.TLSKey != "" && !c.TLS {
			return errs.Errorf(errs.Precondition, "the volume requires TLS (tlsKey), and the subsystem %s is connected without as %s, for another volume: give all volumes of the subsystem the same tlsKey, and stage them again", l.NQN, c.Name)
		}
		if l.DHChapKey != "" && !c.Authenticated {
			return errs.Errorf(errs.Precondition, "the volume requires DH-HMAC-CHAP (dhchapKey), and the subsystem %s is connected without as %s, for another volume: give all volumes of the subsystem the same dhchapKey, and stage them again", l.NQN, c.Name)
		}
		connected[c.Address] = true
		live = live || c.State == kernel.StateLive
	}
	var failed []error
	for _, p := range l.Paths {
		multipath, err := a.kernel.IsMultipath() // the first connection can have loaded the module
		if err != nil {
			return err
		}
		if connected[p] || live && !multipath {
			continue
		}
		if err := a.connectPath(ctx, l, h, p); err != nil {
			failed = append(failed, err)
			continue
		}
		live = true
		crashpoint.Hit("nvme.path-connected")
	}
	if live {
		for _, err := range failed {
			a.log.WarnContext(ctx, "NVMe path is down, will retry", "nqn", l.NQN, "err", err)
		}
		return nil
	}
	if len(failed) == 0 {
		return a.unreachable(record{NQN: l.NQN, Locator: access.Encode(l)}, attached{controllers: have})
	}
	return joinPaths(failed)
}

// joinPaths has the kind of the first error. Equal errors are not the paths'.
func joinPaths(failed []error) error {
	failed = slices.CompactFunc(failed, func(a, b error) bool { return a.Error() == b.Error() })
	if len(failed) == 1 {
		return failed[0]
	}
	return errs.Errorf(errs.KindOf(failed[0]), "no path works: %w", errors.Join(failed...))
}

func (a *Attacher) connectPath(ctx context.Context, l access.NVMe, h host, at netip.AddrPort) error {
	c, err := a.connection(l, h, at)
	if err != nil {
		return err
	}
	if err := probe(ctx, c); err != nil {
		return err
	}
	return a.connects.run(ctx, at, func() error {
		err := a.kernel.Connect(ctx, c)
		if errors.Is(err, errs.Exists) {
			return nil
		}
		return err
	})
}

// probeBound is less than the kernel takes for a target that is silent.
const probeBound = 2 * time.Second

// probe makes sure that something accepts connections at the address: in the
// kernel, each connect to a silent target delays all others.
func probe(ctx context.Context, c kernel.Connection) error {
	if c.Transport != "tcp" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.Address.String())
	if err != nil {
		return errs.Errorf(errs.Unavailable, "the target of %s cannot be reached: %w", c.NQN, err)
	}
	return conn.Close()
}

// connects makes connections one after the other, as the kernel does, so that the
// error of a caller that waits can name the target.
type connects struct {
	slot chan struct{}

	mu     sync.Mutex
	target netip.AddrPort // of the connection in progress
	since  time.Time
}

// queueBound limits the wait for other connections: the kernel's own limit for
// one is a minute.
const queueBound = 30 * time.Second

func (q *connects) run(ctx context.Context, target netip.AddrPort, connect func() error) error {
	ctx, cancel := context.WithTimeout(ctx, queueBound)
	defer cancel()
	select {
	case q.slot <- struct{}{}:
		defer func() { <-q.slot }()
	case <-ctx.Done():
		q.mu.Lock()
		defer q.mu.Unlock()
		return errs.Errorf(errs.Unavailable, "connect to %v: the kernel makes one NVMe connection at a time, and that to %v has taken %v: repair or remove that target (%w)", target, q.target, time.Since(q.since).Round(time.Second), ctx.Err())
	}
	q.mu.Lock()
	q.target, q.since = target, time.Now()
	q.mu.Unlock()
	return connect()
}

func (p path) String() string { return fmt.Sprintf("%s at %v", p.nqn, p.address) }
