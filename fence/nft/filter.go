// Package nft drops clients' packets to the storage's ports with an nftables
// table that other programs cannot remove and that outlives the server.
//
// A netlink socket owns the table (flags owner and persist): the kernel rejects
// or ignores flushes and deletions by others. A second process, the holder,
// keeps the socket open for a restarted server. A dead holder is replaced. If
// both are dead, the table keeps dropping, but other programs can remove it
// until the next Open.
package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/linux/nft"
)

// Config configures a Filter.
type Config struct {
	Table string    // family inet, of this server only
	Ports ports.Set // drop TCP and UDP to these ports, or all traffic
	// Path of the holder's UNIX socket, in its own directory below the state
	// directory.
	HolderSocket string
	Holder       []string // runs RunHolder; arguments are appended
	Logger       *slog.Logger

	unsupportedFlags uint32 // for tests
}

// Filter is a table in the network namespace of Open. Methods are safe for
// concurrent use.
type Filter struct {
	config  Config
	log     *slog.Logger
	layouts []layout
	protect string

	owner   *nft.Conn // owns the table, shared with the holder
	reader  *nft.Conn
	monitor *nft.Monitor
	client  holderClient

	changed chan struct{}
	lock    chan struct{} // one token, to change the table
	closed  bool

	mu     sync.Mutex // of the following
	link   *link      // nil: no holder
	counts [2]counter

	stop    context.CancelFunc
	running sync.WaitGroup
}

// Status is a Filter's state.
type Status struct {
	Table      string `json:"table"`
	Protection string `json:"protection"` // "owner+persist", or a weaker one and why
	Holder     int    `json:"holder"`     // PID, or 0
	// Packets dropped since Open, as of the last Held.
	Dropped4 uint64 `json:"dropped4"`
	Dropped6 uint64 `json:"dropped6"`
}

// Open takes over an existing table, whose blocks stay in force without a gap,
// or creates one. It must run in the storage server's network namespace.
func Open(ctx context.Context, c Config) (*Filter, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	f := &Filter{
		config:  c,
		log:     c.Logger,
		client:  holderClient{path: c.HolderSocket, table: c.Table, command: c.Holder},
		changed: make(chan struct{}, 1),
		lock:    make(chan struct{}, 1),
	}
	if err := f.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("packet filter: %w", err), f.undo(ctx))
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	f.stop = stop
	f.running.Go(func() { f.watchChanges(running) })
	f.running.Go(func() { f.superviseHolder(running) })
	return f, nil
}

// undo reverts a failed Open.
func (f *Filter) undo(ctx context.Context) error {
	if f.link == nil || f.link.process == nil {
		return f.release()
	}
	err := f.link.end(context.WithoutCancel(ctx))
	if err == nil {
		f.link = nil
	}
	return errors.Join(err, f.release())
}

func (c *Config) check() error {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	name := c.Table
	if name == "" || len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
		return errs.Errorf(errs.Invalid, "packet filter: invalid table name %q: use 1 to 64 letters, digits, - and _", name)
	}
	return nil
}

func (f *Filter) open(ctx context.Context) error {
	var err error
	if f.reader, err = nft.Dial(); err != nil {
		return wrapKind("nf_tables", err)
	}
	if f.monitor, err = nft.Watch(); err != nil {
		return wrapKind("nf_tables", err)
	}
	if f.layouts, f.protect, err = protection(ctx, f.reader, f.config); err != nil {
		return err
	}
	if len(f.layouts) > 1 || f.layouts[0].flags&nft.Persist == 0 {
		f.log.WarnContext(ctx, "kernel cannot fully protect the table", "table", f.config.Table, "reason", f.protect)
	}
	if err := f.takeOver(ctx); err != nil {
		return err
	}
	return f.adopt(ctx)
}

// takeOver gets the owning netlink socket from the holder, or starts a holder
// for a new one.
func (f *Filter) takeOver(ctx context.Context) error {
	fresh := func() (*os.File, error) {
		c, err := nft.Dial()
		if err != nil {
			return nil, wrapKind("nf_tables", err)
		}
		defer func() { _ = c.Close() }()
		return c.File()
	}
	l, held, err := f.client.open(ctx, fresh)
	if err != nil {
		return err
	}
	owner, err := nft.FromFile(held)
	_ = held.Close()
	if err != nil {
		l.detach()
		return err
	}
	here, err := sameNamespace(owner, f.reader)
	switch {
	case err != nil:
		l.detach()
		return errors.Join(err, owner.Close())
	case here:
		f.owner, f.link = owner, l
		return nil
	}
	// The old table stays in its namespace, as another server's.
	f.log.WarnContext(ctx, "ending fence holder of another network namespace", "pid", l.pid)
	if err := errors.Join(l.end(ctx), owner.Close()); err != nil {
		return err
	}
	if l, held, err = f.client.open(ctx, fresh); err != nil {
		return err
	}
	f.link = l
	f.owner, err = nft.FromFile(held)
	return errors.Join(err, held.Close())
}

func sameNamespace(a, b *nft.Conn) (bool, error) {
	first, err := a.Namespace()
	if err != nil {
		return false, err
	}
	second, err := b.Namespace()
	return first == second, err
}

// adopt repairs the table and keeps its clients. Content that cannot be read stays as
// it is: only Apply knows the blocks then.
func (f *Filter) adopt(ctx context.Context) error {
	readings, err := f.read(ctx, true)
	if err != nil {
		return err
	}
	f.count(readings)
	f.counts[0].total, f.counts[1].total = 0, 0 // of earlier processes
	clients, err := clientsIn(readings)
	if err != nil {
		f.log.WarnContext(ctx, "unexpected content in table, kept", "table", f.config.Table, "err", err)
		return nil
	}
	set, err := cidr.Set(clients)
	if err != nil {
		return err
	}
	return f.put(ctx, readings, set)
}

// Blocks reads the blocks in the table, whether or not they are in force.
// Precondition: another program has changed the table, so that they are not known.
func (f *Filter) Blocks(ctx context.Context) ([]netip.Prefix, error) {
	readings, err := f.read(ctx, true)
	if err != nil {
		return nil, err
	}
	return clientsIn(readings)
}

// Apply replaces the blocks in a transaction. After nil, later packets from
// these blocks are dropped.
func (f *Filter) Apply(ctx context.Context, blocks []netip.Prefix) error {
	set, err := setOf(blocks)
	if err != nil {
		return err
	}
	end, err := f.acquire(ctx)
	if err != nil {
		return err
	}
	defer end()
	readings, err := f.read(ctx, false)
	if err != nil {
		return err
	}
	return f.put(ctx, readings, set)
}

func (f *Filter) acquire(ctx context.Context) (end func(), err error) {
	if ctx.Err() != nil {
		return nil, wrapKind("packet filter", context.Cause(ctx))
	}
	select {
	case f.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, wrapKind("packet filter", context.Cause(ctx))
	}
	if f.closed {
		<-f.lock
		return nil, errs.Errorf(errs.Unavailable, "packet filter: %w", os.ErrClosed)
	}
	return func() { <-f.lock }, nil
}

// put recreates tables that differ from their layout.
func (f *Filter) put(ctx context.Context, readings []reading, set *netipx.IPSet) error {
	v4, v6 := elements(set)
	var fault error
	for i, l := range f.layouts {
		if owner := readings[i].table.Owner; owner != 0 && owner != f.owner.Port() {
			return errs.Errorf(errs.Precondition, "%w: it belongs to a server with another state directory, or to the fence holder of one; find the holder with \"pgrep -fa %s\" and end it: the table stays and is then taken over",
				l.ownerFault(readings[i].table, f.owner.Port()), HolderCommand)
		}
		if fault == nil {
			fault = l.fault(readings[i])
		}
	}
	if fault == nil {
		var b nft.Batch
		for _, l := range f.layouts {
			l.renew(&b, v4, v6)
		}
		err := f.owner.Commit(ctx, &b)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EOPNOTSUPP) {
			return f.finish(err)
		}
		fault = err // changed after the read
	}
	for _, r := range readings {
		if r.table.Name != "" {
			f.log.WarnContext(ctx, "recreating fence table", "table", r.table.Name, "reason", fault)
		}
	}
	var b nft.Batch
	for _, l := range f.layouts {
		l.install(&b, v4, v6)
	}
	return f.finish(f.owner.Commit(ctx, &b))
}

// finish waits until no CPU processes a packet by the old rules.
func (f *Filter) finish(err error) error {
	if err != nil {
		return wrapKind("change the packet filter", err)
	}
	return nft.WaitForPackets()
}

// Held reads the blocks in force, disjoint and sorted. If anything differs from
// the layout, no block counts.
func (f *Filter) Held(ctx context.Context) ([]netip.Prefix, error) {
	readings, err := f.read(ctx, true)
	if err != nil {
		return nil, err
	}
	f.count(readings)
	var held []netip.Prefix
	for i, l := range f.layouts {
		fault := l.fault(readings[i])
		if fault == nil {
			fault = l.ownerFault(readings[i].table, f.owner.Port())
		}
		blocks, err := readings[i].blocks()
		if fault = errors.Join(fault, err); fault != nil {
			f.log.WarnContext(ctx, "fence table is invalid, no fence is in force", "err", fault)
			return nil, nil
		}
		if i == 0 {
			held = blocks
		} else if held, err = cidr.Common(held, blocks); err != nil {
			return nil, err
		}
	}
	return held, nil
}

// counter accumulates rule counters, which restart at zero with the table.
type counter struct{ last, total uint64 }

func (c *counter) update(now uint64) {
	if now >= c.last {
		c.total += now - c.last
	} else {
		c.total += now
	}
	c.last = now
}

func (f *Filter) count(readings []reading) {
	var v4, v6 uint64
	for _, r := range readings {
		v4 += dropped(r.rules, clients4)
		v6 += dropped(r.rules, clients6)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[0].update(v4)
	f.counts[1].update(v6)
}

// Status is that of the last read.
func (f *Filter) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Status{Table: f.config.Table, Protection: f.protect, Dropped4: f.counts[0].total, Dropped6: f.counts[1].total}
	if f.link != nil {
		s.Holder = f.link.pid
	}
	return s
}
