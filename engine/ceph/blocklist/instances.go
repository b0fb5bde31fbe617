package blocklist

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/volume"
)

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
	granted, err := f.Ledger.All(ctx, "", 0)
	if err != nil {
		return err
	}
	return f.recordAll(ctx, granted)
}

// recordOf does it for the volumes of these clients.
func (f *Fencer) recordOf(ctx context.Context, clients []volume.Client) error {
	var granted []ledger.Grant
	for _, c := range clients {
		list, err := f.Ledger.ByNode(ctx, c.Node)
		if err != nil {
			return err
		}
		granted = append(granted, list...)
	}
	return f.recordAll(ctx, granted)
}

// listTimeout bounds the list of all instances: an image with an inactive
// placement group does not answer, and must not delay a fence for long.
const listTimeout = 8 * time.Second

func (f *Fencer) recordAll(ctx context.Context, granted []ledger.Grant) error {
	ids := map[volume.ID]bool{}
	for _, g := range granted {
		ids[g.Volume] = true
	}
	var list []volume.ID
	for id := range ids {
		list = append(list, id)
	}
	listing, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var mu sync.Mutex
	var seen []ledger.Instance
	err := forEach(list, func(id volume.ID) error {
		watchers, err := f.Cluster.Watchers(listing, id)
		if errors.Is(err, errs.NotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list the watchers of volume %s: %w", id, err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, w := range watchers {
			seen = append(seen, ledger.Instance{Volume: id, Addr: w.Addr, Nonce: w.Nonce, Client: w.Client})
		}
		return nil
	})
	return errors.Join(err, f.Ledger.RecordInstances(ctx, seen))
}
