package ledger

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// admission tracks the clients with a grant or stage in progress, which do not
// outlive the process.
type admission struct {
	mu     sync.Mutex
	inside map[*entry]struct{}
}

// entry is an admitted client. It is listed before the fences are read: a
// caller that changed the fences finds each entry that might not have seen the
// change.
type entry struct {
	client volume.Client
	since  time.Time
	left   chan struct{} // closed when the client has left or was refused
}

func (a *admission) add(c volume.Client) *entry {
	e := &entry{client: c, since: time.Now(), left: make(chan struct{})}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inside == nil {
		a.inside = map[*entry]struct{}{}
	}
	a.inside[e] = struct{}{}
	return e
}

func (a *admission) remove(e *entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, in := a.inside[e]; in {
		delete(a.inside, e)
		close(e.left)
	}
}

func (a *admission) list() []*entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]*entry, 0, len(a.inside))
	for e := range a.inside {
		all = append(all, e)
	}
	return all
}

// Enter admits and records a client while volumes are granted to it or staged.
// Empty fields are taken from the record. Call leave, which is idempotent,
// after that. Precondition: the client is fenced; then nothing is recorded.
func (l *Ledger) Enter(ctx context.Context, c volume.Client) (leave func(), err error) {
	if c, err = cleanClient(c); err != nil {
		return nil, err
	}
	e := l.admission.add(c)
	if err := l.see(ctx, c, func(tx *store.Tx, k known) error { return refuse(tx, c, k) }); err != nil {
		l.admission.remove(e)
		return nil, err
	}
	return func() { l.admission.remove(e) }, nil
}

// Quiet waits until the clients in these blocks that entered before have left.
// After ChangeFences has fenced the blocks, none of their clients is admitted
// once Quiet returns nil. Unavailable: some were left when ctx ended; the
// message names them.
func (l *Ledger) Quiet(ctx context.Context, blocks []netip.Prefix) error {
	entries, err := l.covered(ctx, l.admission.list(), blocks)
	if err != nil {
		return err
	}
	for _, e := range entries {
		select {
		case <-e.left:
		case <-ctx.Done():
			if still := stillIn(entries); still != "" {
				return errs.Errorf(errs.Unavailable, "grants and stages from before the fence are still in progress for %s: %w", still, context.Cause(ctx))
			}
			return nil
		}
	}
	return nil
}

// covered returns entries with an address in the blocks, as given or as
// recorded.
func (l *Ledger) covered(ctx context.Context, entries []*entry, blocks []netip.Prefix) ([]*entry, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	set, err := cidr.Set(blocks)
	if err != nil {
		return nil, err
	}
	// The wait reports the remaining clients if ctx ends.
	all, err := l.clientsWhere(context.WithoutCancel(ctx), func(k known) bool { return k.isIn(set) })
	if err != nil {
		return nil, err
	}
	nodes := map[string]bool{}
	for _, c := range all {
		nodes[c.Node] = true
	}
	return slices.DeleteFunc(entries, func(e *entry) bool {
		return !nodes[e.client.Node] && !slices.ContainsFunc(e.client.Addrs, set.Contains)
	}), nil
}

func (e *entry) isOut() bool {
	select {
	case <-e.left:
		return true
	default:
		return false
	}
}

// stillIn returns nodes, each with its oldest time.
func stillIn(entries []*entry) string {
	first := map[string]time.Time{}
	for _, e := range entries {
		if at, listed := first[e.client.Node]; !e.isOut() && (!listed || e.since.Before(at)) {
			first[e.client.Node] = e.since
		}
	}
	var names []string
	for node, since := range first {
		names = append(names, fmt.Sprintf("node %s (since %s)", node, stamp(since)))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
