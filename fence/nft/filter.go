// Package nft keeps clients out with the kernel's packet filter: one nftables
// table that drops what they send to the ports of the storage, in a form that
// strangers cannot remove and that outlives the server.
//
// The table belongs to a netlink socket (flags owner and persist), which makes
// the kernel refuse or pass over a flush or deletion by anybody else. A holder,
// a process that does nothing else, keeps that socket open too, so the server
// may be killed and take it over again. When the holder dies, the server starts
// another one. When both are dead, the table stays and keeps dropping, but has
// no owner: others can remove it until the next Open.
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

// Config says what to keep out of what.
type Config struct {
	Table string    // of the family inet; one server's own
	Ports ports.Set // which traffic of clients is dropped: TCP and UDP to these ports, or all
	// HolderSocket is the path of the holder's UNIX socket, in a directory of
	// its own within the server's state.
	HolderSocket string
	Holder       []string // the command that runs RunHolder; arguments are added
	Logger       *slog.Logger

	without uint32 // flags that the kernel is taken not to know, for tests
}

// Filter is a table of the packet filter in the network namespace in which it
// was opened. Its methods may be called by many goroutines.
type Filter struct {
	config  Config
	log     *slog.Logger
	layouts []layout
	protect string

	owner   *nft.Conn // the socket that owns the table, shared with the holder
	reader  *nft.Conn
	monitor *nft.Monitor
	keeper  keeper

	changed chan struct{}
	turn    chan struct{} // holds one token while the table is being changed
	closed  bool          // guarded by turn

	mu     sync.Mutex // guards the following
	link   *link      // nil while there is no holder
	counts [2]counter

	stop  context.CancelFunc
	owned sync.WaitGroup
}

// Status is for people and metrics.
type Status struct {
	Table      string `json:"table"`
	Protection string `json:"protection"` // "owner+persist", or what there is instead and why
	Holder     int    `json:"holder"`     // the holder's process; zero while there is none
	// Packets dropped since this process opened the filter, as of the last
	// Held.
	Dropped4 uint64 `json:"dropped4"`
	Dropped6 uint64 `json:"dropped6"`
}

// Open takes the table over as it is, with what it holds, or makes an empty
// one. What held before is not let in for a moment. It must be called in the
// network namespace of the storage server.
func Open(ctx context.Context, c Config) (*Filter, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	f := &Filter{
		config:  c,
		log:     c.Logger,
		keeper:  keeper{path: c.HolderSocket, table: c.Table, command: c.Holder},
		changed: make(chan struct{}, 1),
		turn:    make(chan struct{}, 1),
	}
	if err := f.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("packet filter: %w", err), f.undo(ctx))
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	f.stop = stop
	f.owned.Go(func() { f.listen(running) })
	f.owned.Go(func() { f.guard(running) })
	return f, nil
}

// undo is for an Open that failed: a holder that it started is of no use.
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
		return errs.Errorf(errs.Invalid, "packet filter: the table name %q is none; use up to 64 letters, digits, - and _", name)
	}
	return nil
}

func (f *Filter) open(ctx context.Context) error {
	var err error
	if f.reader, err = nft.Dial(); err != nil {
		return refused("nf_tables", err)
	}
	if f.monitor, err = nft.Watch(); err != nil {
		return refused("nf_tables", err)
	}
	if f.layouts, f.protect, err = protection(ctx, f.reader, f.config); err != nil {
		return err
	}
	if len(f.layouts) > 1 || f.layouts[0].flags&nft.Persist == 0 {
		f.log.WarnContext(ctx, "fences are less protected on this kernel", "table", f.config.Table, "protection", f.protect)
	}
	if err := f.takeOver(ctx); err != nil {
		return err
	}
	return f.adopt(ctx)
}

// takeOver gets the netlink socket that owns the table from the holder that
// there is, or makes one and has it held.
func (f *Filter) takeOver(ctx context.Context) error {
	fresh := func() (*os.File, error) {
		c, err := nft.Dial()
		if err != nil {
			return nil, refused("nf_tables", err)
		}
		defer func() { _ = c.Close() }()
		return c.File()
	}
	l, held, err := f.keeper.hire(ctx, fresh)
	if err != nil {
		return err
	}
	owner, err := nft.FromFile(held)
	_ = held.Close()
	if err != nil {
		l.leave()
		return err
	}
	here, err := sameNamespace(owner, f.reader)
	switch {
	case err != nil:
		l.leave()
		return errors.Join(err, owner.Close())
	case here:
		f.owner, f.link = owner, l
		return nil
	}
	// What that table fences stays; but it is another server's network now.
	f.log.WarnContext(ctx, "the fence holder was of another network namespace, and is ended", "holder", l.pid)
	if err := errors.Join(l.end(ctx), owner.Close()); err != nil {
		return err
	}
	if l, held, err = f.keeper.hire(ctx, fresh); err != nil {
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

// adopt makes the table what it must be, with the clients that are in it.
func (f *Filter) adopt(ctx context.Context) error {
	readings, err := f.read(ctx, true)
	if err != nil {
		return err
	}
	f.count(readings)
	f.counts[0].total, f.counts[1].total = 0, 0 // of former processes
	var clients []netip.Prefix
	for _, r := range readings {
		held, err := r.blocks()
		if err != nil { // then there is nothing to keep, and Apply comes soon
			f.log.WarnContext(ctx, "what the table held is not understood", "table", r.table.Name, "error", err)
		}
		clients = append(clients, held...)
	}
	set, err := cidr.Set(clients)
	if err != nil {
		return err
	}
	return f.put(ctx, readings, set)
}

// Apply makes just these blocks hold, in one step. After it returns nil no
// packet of theirs that comes from now on is taken.
func (f *Filter) Apply(ctx context.Context, blocks []netip.Prefix) error {
	set, err := setOf(blocks)
	if err != nil {
		return err
	}
	end, err := f.begin(ctx)
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

func (f *Filter) begin(ctx context.Context) (end func(), err error) {
	if ctx.Err() != nil {
		return nil, refused("packet filter", context.Cause(ctx))
	}
	select {
	case f.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, refused("packet filter", context.Cause(ctx))
	}
	if f.closed {
		<-f.turn
		return nil, errs.Errorf(errs.Unavailable, "packet filter: %w", os.ErrClosed)
	}
	return func() { <-f.turn }, nil
}

// put writes the clients into tables that are as they must be, and makes those
// anew that are not.
func (f *Filter) put(ctx context.Context, readings []reading, set *netipx.IPSet) error {
	v4, v6 := elements(set)
	var fault error
	for i, l := range f.layouts {
		if owner := readings[i].table.Owner; owner != 0 && owner != f.owner.Port() {
			return errs.Errorf(errs.Precondition, "%w: a server with another state directory has it, or its fence holder that lives on; find the holder with pgrep -fa %s and end it: the table stays, and is taken over",
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
			return f.settle(err)
		}
		fault = err // somebody was faster
	}
	for _, r := range readings {
		if r.table.Name != "" {
			f.log.WarnContext(ctx, "the table of fences is not as it must be, and is made anew", "table", r.table.Name, "fault", fault)
		}
	}
	var b nft.Batch
	for _, l := range f.layouts {
		l.install(&b, v4, v6)
	}
	return f.settle(f.owner.Commit(ctx, &b))
}

// settle waits, after a change, until no processor works on a packet that has
// met the rules before it.
func (f *Filter) settle(err error) error {
	if err != nil {
		return refused("change the packet filter", err)
	}
	return nft.Settle()
}

// Held reads the blocks that hold back, disjoint and in order. Table, chains,
// rules and sets must be just as they were made: else nothing holds.
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
			f.log.WarnContext(ctx, "no fence holds", "fault", fault)
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

// counter adds up the counters of a family's rules, which restart at zero when
// the table is recreated.
type counter struct{ last, total uint64 }

func (c *counter) see(now uint64) {
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
	f.counts[0].see(v4)
	f.counts[1].see(v6)
}

// Status returns the state that was read last, without asking the kernel.
func (f *Filter) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Status{Table: f.config.Table, Protection: f.protect, Dropped4: f.counts[0].total, Dropped6: f.counts[1].total}
	if f.link != nil {
		s.Holder = f.link.pid
	}
	return s
}
