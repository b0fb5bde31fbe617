// Package nft blocks clients with the kernel's packet filter: one nftables
// table drops their packets to the ports of the storage. Other programs cannot
// remove the table, and it outlives the server.
//
// A netlink socket owns the table (flags owner and persist), so the kernel
// rejects or ignores a flush or deletion by any other socket. A second process,
// the holder, keeps the same socket open: a restarted server takes it over.
// When the holder dies, the server starts another one. When both are dead, the
// table keeps dropping packets but has no owner, and other programs can remove
// it until the next Open.
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
	Table string    // table of family inet, used by this server only
	Ports ports.Set // drop traffic to these ports (TCP and UDP), or all traffic
	// HolderSocket is the path of the holder's UNIX socket, in a directory of
	// its own below the server's state directory.
	HolderSocket string
	Holder       []string // command that runs RunHolder; its arguments are appended
	Logger       *slog.Logger

	unsupportedFlags uint32 // table flags assumed unsupported, for tests
}

// Filter is an nftables table in the network namespace in which it was opened.
// Its methods are safe for concurrent use.
type Filter struct {
	config  Config
	log     *slog.Logger
	layouts []layout
	protect string

	owner   *nft.Conn // netlink socket that owns the table, shared with the holder
	reader  *nft.Conn
	monitor *nft.Monitor
	client  holderClient

	changed chan struct{}
	lock    chan struct{} // holds one token while the table is being changed
	closed  bool          // guarded by lock

	mu     sync.Mutex // guards the following
	link   *link      // nil while no holder is running
	counts [2]counter

	stop    context.CancelFunc
	running sync.WaitGroup
}

// Status is the state of a Filter for the CLI and metrics.
type Status struct {
	Table      string `json:"table"`
	Protection string `json:"protection"` // "owner+persist", or the weaker protection and why
	Holder     int    `json:"holder"`     // PID of the holder, 0 while no holder is running
	// Packets dropped since this process opened the filter, updated by Held.
	Dropped4 uint64 `json:"dropped4"`
	Dropped6 uint64 `json:"dropped6"`
}

// Open takes over an existing table with its blocks, or creates an empty one.
// Blocks that were in force stay in force without a gap. Open must be called in
// the network namespace of the storage server.
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

// undo releases what a failed Open has acquired, and ends the holder if Open
// started it.
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

// takeOver gets the netlink socket that owns the table from the running holder,
// or creates a socket and starts a holder for it.
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
	// The old table stays in its namespace: it belongs to another server's
	// network.
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

// adopt brings the table into its desired form and keeps the clients that it
// contains.
func (f *Filter) adopt(ctx context.Context) error {
	readings, err := f.read(ctx, true)
	if err != nil {
		return err
	}
	f.count(readings)
	f.counts[0].total, f.counts[1].total = 0, 0 // counted by earlier processes
	var clients []netip.Prefix
	for _, r := range readings {
		held, err := r.blocks()
		if err != nil { // nothing can be kept; the enforcer calls Apply next
			f.log.WarnContext(ctx, "unexpected content in table, ignored", "table", r.table.Name, "err", err)
		}
		clients = append(clients, held...)
	}
	set, err := cidr.Set(clients)
	if err != nil {
		return err
	}
	return f.put(ctx, readings, set)
}

// Apply replaces the blocks in one transaction. After it returns nil, no packet
// from these blocks that arrives later is accepted.
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

// put writes the clients into the tables, and recreates tables that differ from
// their layout.
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
		fault = err // the table was changed after it was read
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

// finish waits, after a change, until no CPU processes a packet that was
// matched against the old rules.
func (f *Filter) finish(err error) error {
	if err != nil {
		return wrapKind("change the packet filter", err)
	}
	return nft.Settle()
}

// Held reads the blocks in force, disjoint and sorted. If the table, a chain, a
// rule or a set differs from the layout, no block counts as in force.
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

// counter accumulates a family's rule counters, which restart at zero when the
// table is recreated.
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

// Status returns the state as of the last read, without a kernel call.
func (f *Filter) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Status{Table: f.config.Table, Protection: f.protect, Dropped4: f.counts[0].total, Dropped6: f.counts[1].total}
	if f.link != nil {
		s.Holder = f.link.pid
	}
	return s
}
