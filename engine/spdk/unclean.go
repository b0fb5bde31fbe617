package spdk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/store"
	rpc "github.com/cleatproject/cleat/spdk"
)

// uncleanStores has the stores that were found on a bdev that cannot unmap, by UUID:
// what was freed there keeps its data, also when a later bdev can unmap. A record
// has a token, and is in effect until the configuration of the target names it as
// cleared. It is not removed: a new token replaces it if the bdev cannot unmap again.
func uncleanStores() store.Bucket[string] { return store.Bucket[string]{Name: "unclean"} }

// unclean is why free clusters of a store can have data of deleted volumes, and what
// ends that.
type unclean struct{ why, remedy string }

// uncleanBecause returns nil for a store that has no token, or a cleared one, and a
// bdev that can unmap.
func (p place) uncleanBecause(unmaps bool, token string) *unclean {
	switch {
	case !unmaps:
		return &unclean{
			fmt.Sprintf("bdev %s of lvol store %s cannot unmap, so its free space has data of deleted volumes", p.store.BaseBdev, p),
			"give it a bdev that can (bdev_aio_create with fallocate)",
		}
	case token == "" || p.target.isCleared(token):
		return nil
	}
	return &unclean{
		fmt.Sprintf("lvol store %s was on a bdev that cannot unmap, so its free space has data of deleted volumes", p),
		fmt.Sprintf("clear it, and add %s to cleared of target %s", token, p.target.Name),
	}
}

func (t *target) isCleared(token string) bool { return slices.Contains(t.Cleared, token) }

// unmaps reports whether the bdev of a store can unmap now. That it cannot is
// recorded before the caller frees anything.
func (e *Engine) unmaps(ctx context.Context, t *target, uuid, base string) (bool, error) {
	bdev, err := t.Client.Bdev(ctx, base)
	if errors.Is(err, rpc.NotFound) {
		err = errs.Errorf(errs.Unavailable, "it has vanished, perhaps with a restart of the target: %v", err)
	}
	if err == nil && !bdev.SupportedIO.Unmap {
		_, err = e.noteUnclean(ctx, t, uuid, true)
	}
	return bdev.SupportedIO.Unmap, t.explain(err, "read bdev %s of an lvol store", base)
}

// unclean returns nil if the free clusters of a store are clean.
func (e *Engine) unclean(ctx context.Context, p place) (*unclean, error) {
	unmaps, err := e.unmaps(ctx, p.target, p.store.UUID, p.store.BaseBdev)
	if err != nil {
		return nil, err
	}
	var token string
	err = e.config.Database.View(ctx, func(tx *store.Tx) error {
		token, _, err = uncleanStores().Get(tx, p.store.UUID)
		return err
	})
	return p.uncleanBecause(unmaps, token), err
}

func (e *Engine) uncleanSoon(ctx context.Context, p place) (*unclean, error) {
	ctx, cancel := context.WithTimeout(ctx, e.answerTime)
	defer cancel()
	return e.unclean(ctx, p)
}

// noteUnclean records a store as unclean, and returns the token. now: its bdev cannot
// unmap. Otherwise only a volume with zeros shows that it could not, which a build
// before these records has created.
func (e *Engine) noteUnclean(ctx context.Context, t *target, uuid string, now bool) (token string, err error) {
	err = e.config.Database.Update(ctx, func(tx *store.Tx) error {
		var found bool
		token, found, err = uncleanStores().Get(tx, uuid)
		if err != nil || found && (!now || !t.isCleared(token)) {
			return err
		}
		all, err := recordsIn(tx)
		if err != nil || !now && !slices.ContainsFunc(all, func(r record) bool { return r.Store == uuid && r.Zeroed }) {
			return err
		}
		token = "unclean-" + strings.ToLower(rand.Text()[:8])
		return uncleanStores().Put(tx, uuid, token)
	})
	crashpoint.Hit("unclean.recorded")
	return token, err
}

// noteStore records whether a store is unclean, when it is first seen.
func (e *Engine) noteStore(ctx context.Context, p place) error {
	unmaps, err := e.unmaps(ctx, p.target, p.store.UUID, p.store.BaseBdev)
	if err == nil && unmaps {
		_, err = e.noteUnclean(ctx, p.target, p.store.UUID, false)
	}
	return err
}

// begun returns the record of the volume, and reads the unclean stores of the same moment.
func (b *build) begun(ctx context.Context) (r record, found bool, err error) {
	err = b.config.Database.View(ctx, func(tx *store.Tx) error {
		b.tokens = map[string]string{}
		for entry, err := range uncleanStores().Range(tx, "") {
			if err != nil {
				return err
			}
			b.tokens[entry.Key] = entry.Value
		}
		r, found, err = volumes().Get(tx, b.req.Name)
		return err
	})
	return r, found, err
}

// putNew records a new volume, unless its store was recorded as unclean since begun:
// the bdev that this call has read could be a later one.
func (b *build) putNew(ctx context.Context, p place, r record) error {
	return b.config.Database.Update(ctx, func(tx *store.Tx) error {
		token, _, err := uncleanStores().Get(tx, r.Store)
		if err != nil {
			return err
		}
		if token != b.tokens[r.Store] {
			return errs.Errorf(errs.Unavailable, "lvol store %s was meanwhile on a bdev that cannot unmap, repeat the call", p)
		}
		return replace(tx, volumes(), r.Name, nil, r)
	})
}
