package blocklist

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// Config configures a Fencer. Cluster, Grants and Database are required; the
// record of grants is usually in the same database.
type Config struct {
	Cluster  Cluster
	Grants   volume.Instances
	Database store.Database
	// Interval of recording client instances; zero is 10 s.
	Interval time.Duration
	// Expiry is how long the cluster lists a client that it does not reach; zero
	// is 30 s: osd_client_watch_timeout. Metadata servers keep a session longer.
	Expiry time.Duration
	// Boots reads the last reports of all nodes; nil: nodes do not report boots.
	Boots  func(ctx context.Context) (map[string]volume.Boot, error)
	Logger *slog.Logger
}

// Fencer implements volume.Fencer.
type Fencer struct {
	Config
	bootsRead atomic.Int64 // UNIX time of the last attempt
}

var _ volume.Fencer = (*Fencer)(nil)

// New returns a Fencer. Its owner calls Start and Run, so that client instances
// are known when a fence needs them.
func New(c Config) *Fencer {
	if c.Interval == 0 {
		c.Interval = 10 * time.Second
	}
	if c.Expiry == 0 {
		c.Expiry = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Fencer{Config: c}
}

// owned is keyed by entry.
func owned() store.Bucket[own] { return store.Bucket[own]{Name: "blocklist"} }

// Apply implements volume.Fencer. Entries are added before others are removed.
// NotEnforced: entries of other blocks are removed, but not every entry of these
// is proved to be in force on every OSD, or client instances could not be listed
// first; a repeat continues. Unsupported: the release cannot block a range that
// large.
func (f *Fencer) Apply(ctx context.Context, desired volume.FenceSet) error {
	// An instance is not listed any more once its address is blocked.
	unlisted := f.recordOf(ctx, desired.Clients)
	recorded, err := f.Grants.Records(ctx)
	if err != nil {
		return err
	}
	set, err := cidr.Set(desired.Blocks)
	if err != nil {
		return err
	}
	instances := recorded.InstancesIn(set.Contains)
	observed, err := f.readMap(ctx)
	if err != nil {
		return err
	}
	want, err := required(desired, instances, observed.hasRanges)
	if err != nil {
		return err
	}
	list, err := f.owned(ctx)
	if err != nil {
		return err
	}
	todo := makePlan(want, list, observed, time.Now())
	if err := f.record(ctx, todo.record); err != nil {
		return err
	}
	crashpoint.Hit("blocklist.recorded")
	failed := f.change(ctx, todo.add)
	crashpoint.Hit("blocklist.added")
	if failed != nil && todo.removesPartOf(want) {
		return failed // what is to be removed still fences these addresses
	}
	if err := f.remove(ctx, todo); err != nil {
		return err
	}
	if failed == nil {
		failed = f.prove(ctx, want, nil)
	}
	if failed == nil && unlisted != nil {
		failed = errs.Errorf(errs.Unavailable, "the addresses are blocked, but not all client instances could be listed before: %w", unlisted)
	}
	if failed != nil {
		return &volume.NotEnforced{Blocks: desired.Blocks, Err: failed}
	}
	return nil
}

// remove removes entries, and reads the blocklist back before it forgets them.
func (f *Fencer) remove(ctx context.Context, todo steps) error {
	if err := f.change(ctx, todo.remove); err != nil {
		return err
	}
	crashpoint.Hit("blocklist.removed")
	if len(todo.remove) > 0 {
		if err := f.prove(ctx, entries{}, todo.remove); err != nil {
			return err
		}
	}
	return f.forget(ctx, todo.forget)
}

// Held implements volume.Fencer. Entries of other programs are not included. It
// returns nothing while an entry of a client or an instance is missing: none of
// the blocks is certain then.
func (f *Fencer) Held(ctx context.Context) ([]netip.Prefix, error) {
	list, err := f.owned(ctx)
	if err != nil {
		return nil, err
	}
	var blocks []netip.Prefix
	for _, o := range list {
		if o.OfFence {
			blocks = append(blocks, o.Block)
		}
	}
	if len(blocks) == 0 {
		return nil, nil
	}
	want, err := f.clientEntries(ctx, blocks)
	if err != nil {
		return nil, err
	}
	observed, err := f.readMap(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	for _, e := range want {
		if !isHeld(observed, e, now) {
			return nil, nil
		}
	}
	var held []netip.Prefix
	for _, o := range list {
		if o.OfFence && isHeld(observed, o.entry(), now) {
			held = append(held, o.Block)
		}
	}
	return cidr.Merge(held)
}

// clientEntries returns the entries for clients and instances of fenced blocks.
func (f *Fencer) clientEntries(ctx context.Context, blocks []netip.Prefix) ([]entry, error) {
	recorded, err := f.Grants.Records(ctx)
	if err != nil {
		return nil, err
	}
	set, err := cidr.Set(blocks)
	if err != nil {
		return nil, err
	}
	want, err := required(volume.FenceSet{Clients: recorded.ClientsIn(set.Contains)}, recorded.InstancesIn(set.Contains), true)
	if err != nil {
		return nil, err
	}
	all := want.instances
	for _, e := range want.clients {
		if !set.Contains(e.block.Addr()) {
			all = append(all, e)
		}
	}
	return all, nil
}

// Sessions implements volume.Fencer. It returns none: once Apply has proved that
// every OSD has the map with the entries, no request of a fenced client is
// accepted any more, and a watch that is still listed has no I/O.
func (f *Fencer) Sessions(context.Context, []netip.Prefix) ([]volume.Session, error) {
	return nil, nil
}

// End implements volume.Fencer. Apply has ended all sessions.
func (f *Fencer) End(context.Context, []volume.Session) error { return nil }

func (f *Fencer) owned(ctx context.Context) (all []own, err error) {
	err = f.Database.View(ctx, func(tx *store.Tx) (err error) {
		all, err = store.Values(owned().Range(tx, ""))
		return err
	})
	return all, err
}

func (f *Fencer) record(ctx context.Context, list []own) error {
	if len(list) == 0 {
		return nil
	}
	return f.Database.Update(ctx, func(tx *store.Tx) (err error) {
		for _, o := range list {
			err = errors.Join(err, owned().Put(tx, o.entry().String(), o))
		}
		return err
	})
}

func (f *Fencer) forget(ctx context.Context, list []own) error {
	if len(list) == 0 {
		return nil
	}
	return f.Database.Update(ctx, func(tx *store.Tx) (err error) {
		for _, o := range list {
			err = errors.Join(err, owned().Delete(tx, o.entry().String()))
		}
		return err
	})
}
