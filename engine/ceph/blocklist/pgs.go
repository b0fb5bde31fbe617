package blocklist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/backoff"
)

// provePGs returns nil if no placement group accepts requests with a map before
// the epoch. An OSD reports a map as its newest before it has stored it, and its
// placement groups change to it one by one: writes that began up to 170 ms after
// such a report were measured to succeed.
func (f *Fencer) provePGs(ctx context.Context, pgs []string, epoch uint64) error {
	return forEach(pgs, func(pg string) error {
		err := f.waitForPG(ctx, pg, epoch)
		if err == nil || errors.Is(err, errs.Denied) || ctx.Err() != nil {
			return err
		}
		if served, mapErr := f.isServed(ctx, pg); mapErr != nil || served {
			return errors.Join(err, mapErr)
		}
		return nil // an OSD that serves it later has a later map
	})
}

// waitForPG waits, up to osdTimeout, until a placement group uses a map of the
// epoch or later.
func (f *Fencer) waitForPG(ctx context.Context, pg string, epoch uint64) error {
	ctx, cancel := context.WithTimeout(ctx, osdTimeout)
	defer cancel()
	for {
		used, err := f.epochOfPG(ctx, pg)
		if err != nil || used >= epoch {
			return err
		}
		if backoff.Sleep(ctx, pollPause) != nil {
			return fmt.Errorf("placement group %s uses map %d, the fence is in map %d", pg, used, epoch)
		}
	}
}

func (f *Fencer) epochOfPG(ctx context.Context, pg string) (uint64, error) {
	cmd := fmt.Appendf(nil, `{"prefix":"query","pgid":%q,"format":"json"}`, pg)
	out, err := f.Cluster.PGCommand(ctx, pg, cmd)
	switch {
	case errors.Is(err, errs.Denied):
		return 0, errs.Errorf(errs.Denied, "to query placement group %s, the Ceph user of the controller needs the capability osd 'allow *': %w", pg, err)
	case err != nil:
		return 0, fmt.Errorf("query placement group %s: %w", pg, err)
	}
	var answer struct {
		Epoch *uint64 `json:"epoch"`
	}
	if err := json.Unmarshal(out, &answer); err != nil || answer.Epoch == nil {
		return 0, fmt.Errorf("the state of placement group %s has no epoch: %w", pg, errors.Join(err, errors.New(errs.Clip(string(out), 200))))
	}
	return *answer.Epoch, nil
}

// isServed reports whether the newest map has an OSD for a placement group.
func (f *Fencer) isServed(ctx context.Context, pg string) (bool, error) {
	out, err := f.Cluster.MonCommand(ctx, fmt.Appendf(nil, `{"prefix":"pg map","pgid":%q,"format":"json"}`, pg))
	if err != nil {
		return false, fmt.Errorf("look up the OSDs of placement group %s: %w", pg, err)
	}
	var answer struct {
		Acting *[]int `json:"acting"`
	}
	if err := json.Unmarshal(out, &answer); err != nil || answer.Acting == nil {
		return false, fmt.Errorf("the map of placement group %s has no acting set: %w", pg, errors.Join(err, errors.New(errs.Clip(string(out), 200))))
	}
	for _, osd := range *answer.Acting {
		if osd >= 0 && osd != noOSD {
			return true, nil
		}
	}
	return false, nil
}

// noOSD is Ceph's number of a missing OSD in an erasure-coded acting set.
const noOSD = 0x7fffffff
