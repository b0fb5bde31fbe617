package blocklist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/backoff"
)

const (
	// parallel is the limit of calls at once. The monitors commit commands that
	// arrive together in one step, which can take a second.
	parallel = 32
	// osdTimeout is for one question to one OSD: one that hangs is perhaps down
	// in the next map.
	osdTimeout = 5 * time.Second
	pollPause  = 50 * time.Millisecond
)

// forEach calls fn for all items, a limited number at once, and joins errors.
func forEach[T any](items []T, fn func(T) error) error {
	var all sync.WaitGroup
	limit := make(chan struct{}, parallel)
	failed := make([]error, len(items))
	for i, item := range items {
		limit <- struct{}{}
		all.Go(func() {
			defer func() { <-limit }()
			failed[i] = fn(item)
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

func (f *Fencer) readMap(ctx context.Context) (osdMap, error) {
	out, err := f.Cluster.MonCommand(ctx, []byte(`{"prefix":"osd dump","format":"json"}`))
	if err != nil {
		return osdMap{}, errs.Errorf(errs.Unavailable, "read the OSD map: %w", err)
	}
	return parseMap(out)
}

func (f *Fencer) change(ctx context.Context, commands []command) error {
	return forEach(commands, func(c command) error {
		data, err := c.json()
		if err != nil {
			return err
		}
		_, err = f.Cluster.MonCommand(ctx, data)
		switch {
		case errors.Is(err, errs.Denied):
			return errs.Errorf(errs.Unavailable, `change the blocklist entry %s: the Ceph user of the controller needs the capability mon 'allow command "osd blocklist"', besides profile rbd: %w`, c.entry, err)
		case err != nil:
			return errs.Errorf(errs.Unavailable, "change the blocklist entry %s: %w", c.entry, err)
		}
		return nil
	})
}

// prove returns when the entries are as required, and every OSD that is up and
// every placement group of volumes uses a map with them. It repeats until then,
// or until the context ends.
func (f *Fencer) prove(ctx context.Context, want entries, removed []command) error {
	var epoch uint64 // of the first map that is as required
	var last error
	for {
		observed, err := f.readMap(ctx)
		if err == nil {
			if err = compare(observed, want, removed, time.Now()); err == nil {
				if epoch == 0 {
					epoch = observed.epoch
				}
				err = f.proveOSDs(ctx, want, observed, epoch)
			} else {
				epoch = 0
			}
		}
		if err == nil {
			return nil
		}
		if errors.Is(err, errs.Denied) {
			return errs.Errorf(errs.Unavailable, "the fence is not proved: %w", err)
		}
		if ctx.Err() == nil || last == nil {
			last = err // more useful than the end of the context
		}
		if backoff.Sleep(ctx, pollPause) != nil {
			return errs.Errorf(errs.Unavailable, "the fence is not proved: %w", errors.Join(last, ctx.Err()))
		}
	}
}

// compare returns nil if the blocklist is as required.
func compare(observed osdMap, want entries, removed []command, now time.Time) error {
	for _, e := range want.all() {
		if !isHeld(observed, e, now) {
			return fmt.Errorf("the blocklist has no entry %s", e)
		}
	}
	for _, c := range removed {
		if until, exists := observed.until[c.entry]; exists && until.Sub(now) > c.expire+time.Minute {
			return fmt.Errorf("the blocklist still has the entry %s", c.entry)
		}
	}
	return nil
}

// proveOSDs returns nil if all OSDs and placement groups use the epoch. Without
// entries there is nothing to prove: an OSD can lift a fence later.
func (f *Fencer) proveOSDs(ctx context.Context, want entries, observed osdMap, epoch uint64) error {
	if len(want.all()) == 0 {
		return nil
	}
	if err := f.Cluster.WaitForLatestOSDMap(ctx); err != nil {
		return err
	}
	err := forEach(observed.up, func(osd int) error {
		newest, err := f.newestMap(ctx, osd)
		if err == nil && newest < epoch {
			err = fmt.Errorf("osd.%d has map %d, the fence is in map %d", osd, newest, epoch)
		}
		return err
	})
	if err != nil {
		return err
	}
	return f.provePGs(ctx, observed.pgs, epoch)
}

func (f *Fencer) newestMap(ctx context.Context, osd int) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, osdTimeout)
	defer cancel()
	out, err := f.Cluster.OSDCommand(ctx, osd, []byte(`{"prefix":"status","format":"json"}`))
	switch {
	case errors.Is(err, errs.Denied):
		return 0, errs.Errorf(errs.Denied, "to read the map of osd.%d, the Ceph user of the controller needs the capability osd 'allow *': %w", osd, err)
	case err != nil:
		return 0, fmt.Errorf("read the map of osd.%d: %w", osd, err)
	}
	var status struct {
		Newest json.Number `json:"newest_map"` // a string from Ceph 20
	}
	err = json.Unmarshal(out, &status)
	newest, invalid := strconv.ParseUint(status.Newest.String(), 10, 64)
	if err := errors.Join(err, invalid); err != nil {
		return 0, fmt.Errorf("the status of osd.%d has no newest_map: %w", osd, errors.Join(err, errors.New(errs.Clip(string(out), 200))))
	}
	return newest, nil
}

// Check returns an error if the Ceph user cannot fence, without a change.
func (f *Fencer) Check(ctx context.Context) error {
	observed, err := f.readMap(ctx)
	if err != nil {
		return err
	}
	return forEach(observed.up[:min(1, len(observed.up))], func(osd int) error {
		_, err := f.newestMap(ctx, osd)
		return err
	})
}
