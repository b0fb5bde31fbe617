package ledger

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// fences is keyed by block and owner. Keys sort by family, address and length:
// a lookup of the fences over an address makes one query per prefix length, for
// any number of fences.
func fences() store.Bucket[volume.Fence] { return store.Bucket[volume.Fence]{Name: "fences"} }

func blockKey(b netip.Prefix) string {
	family := "6/"
	if b.Addr().Is4() {
		family = "4/"
	}
	return family + hex.EncodeToString(b.Addr().AsSlice()) + fmt.Sprintf("/%03d", b.Bits()) + separator
}

func fenceKey(f volume.Fence) string { return blockKey(f.Block) + f.Owner.Digest }

// Fences returns all fences, sorted by block (family, address, length) and
// owner digest.
func (l *Ledger) Fences(ctx context.Context) (all []volume.Fence, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		all, err = allFences(tx)
		return err
	})
	return all, err
}

func allFences(tx *store.Tx) ([]volume.Fence, error) { return store.Values(fences().Range(tx, "")) }

// ChangeFences replaces the recorded fences by the result of decide, in one
// durable transaction: after it, no client covered by a denying fence is
// granted a volume. Both results are sorted like Fences; decide can return any
// order. An error of decide is returned unchanged, and nothing changes. decide
// must neither block nor use the ledger.
func (l *Ledger) ChangeFences(ctx context.Context, decide func(now []volume.Fence) (next []volume.Fence, err error)) (before, after []volume.Fence, err error) {
	err = l.store.Update(ctx, func(tx *store.Tx) error {
		if before, err = allFences(tx); err != nil {
			return err
		}
		next, err := decide(slices.Clone(before))
		if err != nil {
			return err
		}
		after, err = replaceFences(tx, before, next)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return before, after, nil
}

// replaceFences writes the differences, and returns next sorted.
func replaceFences(tx *store.Tx, before, next []volume.Fence) (after []volume.Fence, err error) {
	have := make(map[string]volume.Fence, len(before))
	for _, f := range before {
		have[fenceKey(f)] = f
	}
	entries, err := keyed(next)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		after = append(after, e.Value)
		old, kept := have[e.Key]
		delete(have, e.Key)
		if kept && sameFence(old, e.Value) {
			continue
		}
		if err := fences().Put(tx, e.Key, e.Value); err != nil {
			return nil, err
		}
	}
	for key := range have {
		if err := fences().Delete(tx, key); err != nil {
			return nil, err
		}
	}
	return after, nil
}

// keyed sorts by key. Invalid or duplicate fences are a bug of the caller.
func keyed(list []volume.Fence) ([]store.Entry[volume.Fence], error) {
	entries := make([]store.Entry[volume.Fence], 0, len(list))
	for _, f := range list {
		if err := errorInFence(f); err != nil {
			return nil, err
		}
		entries = append(entries, store.Entry[volume.Fence]{Key: fenceKey(f), Value: f})
	}
	slices.SortFunc(entries, func(a, b store.Entry[volume.Fence]) int { return strings.Compare(a.Key, b.Key) })
	for i := 1; i < len(entries); i++ {
		if entries[i].Key == entries[i-1].Key {
			return nil, errs.Errorf(errs.Internal, "duplicate fence of block %s by owner %s", entries[i].Value.Block, entries[i].Value.Owner.Digest)
		}
	}
	return entries, nil
}

func errorInFence(f volume.Fence) error {
	switch {
	case !f.Block.IsValid() || f.Block != f.Block.Masked() || f.Block.Addr().Is4In6():
		return errs.Errorf(errs.Internal, "the block %s of a fence is not a masked IPv4 or IPv6 block", f.Block)
	case isBadName(f.Owner.Digest):
		return errs.Errorf(errs.Internal, "the owner %q of the fence of block %s is empty or contains control characters", f.Owner.Digest, f.Block)
	}
	switch f.Phase {
	case volume.Fencing, volume.Fenced, volume.Lifting, volume.Lifted:
		return nil
	}
	return errs.Errorf(errs.Internal, "the fence of block %s has the unknown phase %q", f.Block, f.Phase)
}

func sameFence(a, b volume.Fence) bool {
	return a.Block == b.Block && a.Owner.Digest == b.Owner.Digest && slices.Equal(a.Owner.Keys, b.Owner.Keys) &&
		a.Phase == b.Phase && a.Since.Equal(b.Since) && a.Force == b.Force
}

// fencesOver returns denying fences, the narrowest first.
func fencesOver(tx *store.Tx, a netip.Addr) (over []volume.Fence, err error) {
	for bits := a.BitLen(); bits >= 0; bits-- {
		for e, err := range fences().Prefix(tx, blockKey(netip.PrefixFrom(a, bits).Masked())) {
			if err != nil {
				return nil, err
			}
			if e.Value.Denies() {
				over = append(over, e.Value)
			}
		}
	}
	return over, nil
}
