package blocklist

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Start records for which volumes the last process has looked too long ago. Its
// owner calls it before grants are changed.
func (f *Fencer) Start(ctx context.Context) error {
	ids, err := f.Grants.Watched(ctx)
	if err != nil {
		return err
	}
	blocked, err := f.blocked(ctx)
	if err != nil {
		return err
	}
	return f.recordLook(ctx, volume.Look{Volumes: ids, Blocked: blocked})
}

// Run records the client instances of granted volumes, at each interval until
// the context ends.
func (f *Fencer) Run(ctx context.Context) error {
	ticker := time.NewTicker(f.Interval)
	defer ticker.Stop()
	for {
		if err := f.Record(ctx); err != nil && ctx.Err() == nil {
			f.Logger.WarnContext(ctx, "recording client instances failed, will retry", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Record records the client instances of all granted volumes.
func (f *Fencer) Record(ctx context.Context) error {
	boots := f.readBoots(ctx)
	begun := time.Now()
	ids, err := f.Grants.Watched(ctx)
	if err != nil {
		return err
	}
	return f.look(ctx, volume.Look{Begun: begun, All: true, Volumes: ids, Boots: boots})
}

const (
	bootsInterval = time.Minute
	bootsTimeout  = 2 * time.Second // an API server that hangs must not delay the looks
)

// readBoots returns nil if the reports were read recently, or cannot be read:
// which machine had a node then stays as it was known.
func (f *Fencer) readBoots(ctx context.Context) map[string]volume.Boot {
	now := time.Now().Unix()
	if f.Boots == nil || now-f.bootsRead.Load() < int64(bootsInterval/time.Second) {
		return nil
	}
	f.bootsRead.Store(now)
	ctx, cancel := context.WithTimeout(ctx, bootsTimeout)
	defer cancel()
	boots, err := f.Boots(ctx)
	if err != nil {
		f.Logger.WarnContext(ctx, "reading the boot reports of nodes failed, will retry", "err", err)
		return nil
	}
	return boots
}

// recordOf does it for the volumes of these clients.
func (f *Fencer) recordOf(ctx context.Context, clients []volume.Client) error {
	if len(clients) == 0 {
		return nil
	}
	var nodes []string
	for _, c := range clients {
		nodes = append(nodes, c.Node)
	}
	begun := time.Now()
	ids, err := f.Grants.Watched(ctx, nodes...)
	if err != nil {
		return err
	}
	return f.look(ctx, volume.Look{Begun: begun, Volumes: ids})
}

// listTimeout bounds the list of all instances: an image with an inactive
// placement group does not answer, and must not delay a fence for long.
const listTimeout = 8 * time.Second

// look lists and records the client instances of volumes.
func (f *Fencer) look(ctx context.Context, o volume.Look) error {
	listing, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var mu sync.Mutex
	var seen []volume.Instance
	err := forEach(slices.Collect(maps.Keys(o.Volumes)), func(id volume.ID) error {
		watchers, err := f.Cluster.Watchers(listing, id)
		if errors.Is(err, errs.NotFound) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			o.Volumes[id] = false
			return fmt.Errorf("list the watchers of volume %s: %w", id, err)
		}
		for _, w := range watchers {
			seen = append(seen, volume.Instance{Volume: id, Addr: w.Addr, Nonce: w.Nonce, Client: w.Client})
		}
		return nil
	})
	if failed := f.Grants.RecordInstances(ctx, seen); failed != nil {
		return errors.Join(err, failed)
	}
	// After the list: a client that was blocked meanwhile was perhaps not on it.
	var readErr error
	if o.Blocked, readErr = f.blocked(ctx); readErr != nil {
		return errors.Join(err, readErr)
	}
	return errors.Join(err, f.recordLook(ctx, o))
}

func (f *Fencer) recordLook(ctx context.Context, o volume.Look) error {
	o.Expiry = f.Expiry
	missed, err := f.Grants.RecordLook(ctx, o)
	if len(missed) == 0 {
		return err
	}
	nodes := map[string]bool{}
	for _, u := range missed {
		nodes[u.Node] = true
	}
	f.Logger.WarnContext(ctx, "client instances were possibly missed, nodes must be restarted before they are unfenced",
		"nodes", len(nodes), "volumes", len(missed), "node", missed[0].Node, "since", missed[0].Since)
	return err
}

// blocked returns whether all addresses of a client are on the blocklist. Such a
// client is not listed, and has no new instance.
func (f *Fencer) blocked(ctx context.Context) (func(volume.Client) bool, error) {
	list, err := f.owned(ctx)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	observed, err := f.readMap(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	list = slices.DeleteFunc(list, func(o own) bool { return !isHeld(observed, o.entry(), now) })
	return func(c volume.Client) bool {
		return len(c.Addrs) > 0 && !slices.ContainsFunc(c.Addrs, func(a netip.Addr) bool {
			return !slices.ContainsFunc(list, func(o own) bool { return o.Block.Contains(a) })
		})
	}, nil
}
