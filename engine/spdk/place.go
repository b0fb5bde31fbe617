package spdk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// place is an lvol store.
type place struct {
	target *target
	store  rpc.LvolStore
}

func (p place) String() string { return p.target.Name + "/" + p.store.Name }

// granule of the sizes in the store, in bytes: lvols have whole clusters, and
// SPDK takes sizes in MiB.
func (p place) granule() int64 { return max(mib, p.store.ClusterSize) }

// sizeOf returns the size of a new lvol: SPDK takes whole MiB, and rounds up to
// clusters.
func (p place) sizeOf(requested int64) int64 {
	cluster := max(1, p.store.ClusterSize)
	return (requested/mib*mib + cluster - 1) / cluster * cluster
}

// explain names the target in an error.
func (t *target) explain(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s on target %s: %w", fmt.Sprintf(format, args...), t.Name, err)
}

// stores returns the lvol stores of all targets that answer and are selected, and
// the answers, for incomplete.
func (e *Engine) stores(ctx context.Context, s settings) (all []place, answers []storesOf) {
	answers = e.askStores(ctx, s.target)
	for _, a := range answers {
		for _, store := range a.stores {
			if a.target.serves(store, s) {
				all = append(all, place{a.target, store})
			}
		}
	}
	return all, answers
}

// serves reports whether new volumes with these settings can be in a store.
func (t *target) serves(store rpc.LvolStore, s settings) bool {
	return (len(t.Stores) == 0 || slices.Contains(t.Stores, store.Name)) && (s.store == "" || s.store == store.Name)
}

// storesOf is the answer of one target.
type storesOf struct {
	target *target
	stores []rpc.LvolStore
	err    error
}

// askStores asks one target (empty: all) for a short time, all at once: one that
// hangs must not keep volumes from being created elsewhere.
func (e *Engine) askStores(ctx context.Context, only string) []storesOf {
	ctx, cancel := context.WithTimeout(ctx, e.answerTime)
	defer cancel()
	asked := slices.DeleteFunc(slices.Clone(e.order), func(t *target) bool { return only != "" && t.Name != only })
	answers := make([]storesOf, len(asked))
	var all sync.WaitGroup
	for i, t := range asked {
		all.Go(func() {
			stores, err := t.Client.LvolStores(ctx)
			if err == nil {
				t.mu.Lock()
				t.stores = stores
				t.mu.Unlock()
			}
			answers[i] = storesOf{t, stores, t.explain(err, "list lvol stores")}
		})
	}
	all.Wait()
	return answers
}

// places returns where a new volume can be. A copy is in the store of its
// source.
func (b *build) places(ctx context.Context) ([]place, error) {
	s := b.settings
	if s.target != "" && b.targets[s.target] == nil {
		return nil, errs.Errorf(errs.Invalid, "%s %s is not configured; known are %s", keyTarget, errs.Quote(s.target), strings.Join(b.names(), ", "))
	}
	if b.from != nil {
		if s.target != "" && s.target != b.from.At.target {
			return nil, errs.Errorf(errs.Invalid, "%s %s: %s is on target %s, and a copy is where its source is", keyTarget, s.target, b.from, b.from.At.target)
		}
		s.target = b.from.At.target
	}
	all, answers := b.stores(ctx, s)
	if b.from != nil {
		all = slices.DeleteFunc(all, func(p place) bool { return p.store.UUID != b.from.At.store })
	}
	if len(all) > 0 {
		return all, nil
	}
	if err := b.incomplete(ctx, answers, s); err != nil {
		return nil, err
	}
	switch {
	case s.store != "":
		return nil, errs.Errorf(errs.Invalid, "%s %s is on no target of this driver", keyStore, errs.Quote(s.store))
	case b.from != nil:
		return nil, errs.Errorf(errs.Unavailable, "target %s does not have the lvol store of %s now, or its configuration excludes it", s.target, b.from)
	}
	return nil, errs.Errorf(errs.Exhausted, "no target has an lvol store for volumes; create one with bdev_lvol_create_lvstore")
}

// choose returns a place that one of the requested topologies reaches, of the
// first one that has the space.
func (b *build) choose(places []place, fsType string) (place, int64, error) {
	if len(b.req.Topology) == 0 {
		return b.largestOf(places, fsType)
	}
	var first error
	for _, topology := range b.req.Topology {
		reached := slices.DeleteFunc(slices.Clone(places), func(p place) bool { return !p.target.reachedFrom(topology) })
		if len(reached) == 0 {
			continue
		}
		p, size, err := b.largestOf(reached, fsType)
		if err == nil {
			return p, size, nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = b.unreached()
	}
	return place{}, 0, first
}

// reachedFrom reports whether nodes with these segments reach the target. A
// StorageClass can name fewer segments (allowedTopologies) than the target has,
// and nodes can have more.
func (t *target) reachedFrom(segments map[string]string) bool {
	return volume.Covers(t.Topology, segments) || volume.Covers(segments, t.Topology)
}

// unreached is the error if no place is where the volume is wanted.
func (b *build) unreached() error {
	if b.from != nil {
		return errs.Errorf(errs.Exhausted, "%s is on target %s with the topology %v, which the requested topologies %v do not reach, and a copy is where its source is",
			b.from, b.from.At.target, b.targets[b.from.At.target].Topology, b.req.Topology)
	}
	return errs.Errorf(errs.Exhausted, "the requested topologies %v reach no target that answers and has a suitable lvol store", b.req.Topology)
}

// largestOf returns the store with the most free space, and the size of the
// volume there. A new volume fits into what is free, though thin ones can grow
// beyond it together.
func (b *build) largestOf(places []place, fsType string) (place, int64, error) {
	var best place
	var size int64
	var first error
	for _, p := range places {
		want, err := newvolume.Size(b.req.Size, fsType, b.from, p.granule())
		if err == nil && want > b.largest(p) {
			err = errs.Errorf(errs.Exhausted, "a volume of %d bytes does not fit into %s, which has %d of %d bytes free", want, p, p.store.Free(), p.store.Size())
		}
		if err != nil {
			if first == nil {
				first = err
			}
			continue
		}
		if best.target == nil || p.store.Free() > best.store.Free() {
			best, size = p, want
		}
	}
	if best.target == nil {
		return place{}, 0, first
	}
	return best, size, nil
}

// largest is the size of the largest new volume. A clone begins without clusters.
func (b *build) largest(p place) int64 {
	if b.from != nil {
		return p.store.Size()
	}
	return p.store.Free()
}

// Capacity implements volume.Engine. It is the sum of the stores that could be read:
// no volume can be created in another one. Unavailable: they have no space, and
// others could not be read.
func (e *Engine) Capacity(ctx context.Context, query volume.CapacityQuery) (volume.Capacity, error) {
	s, err := parseSettings(query.Parameters)
	if err != nil {
		return volume.Capacity{}, err
	}
	places, answers := e.stores(ctx, s)
	excluded := func(t *target) bool {
		return len(query.Topology) > 0 && !t.reachedFrom(query.Topology) || s.tls && len(t.TLSAddresses) == 0
	}
	places = slices.DeleteFunc(places, func(p place) bool { return excluded(p.target) })
	answers = slices.DeleteFunc(answers, func(a storesOf) bool { return excluded(a.target) })
	var c volume.Capacity
	var failed error
	for _, p := range places {
		if s.thin && !s.oldData {
			u, err := e.uncleanSoon(ctx, p)
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("lvol store %s: %w", p, err))
			}
			if err != nil || u != nil {
				continue // new volumes are refused there
			}
		}
		free := p.store.Free() / p.granule() * p.granule()
		c.Available += free
		c.Maximum = max(c.Maximum, free)
		if least := newvolume.MinimumSize(query.FSType, p.granule()); c.Minimum == 0 || least < c.Minimum {
			c.Minimum = least
		}
	}
	switch {
	case c.Available > 0:
		return c, nil
	case failed != nil:
		return volume.Capacity{}, errs.Errorf(errs.Unavailable, "it is not known whether there is space for new volumes: %w", failed)
	}
	return c, e.incomplete(ctx, answers, s)
}
