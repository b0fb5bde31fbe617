package daemon

import (
	"context"
	"fmt"

	"github.com/cleatproject/cleat/internal/store"
)

// Role and Version are those of the store.
const (
	Role    = "sriov-daemon"
	Version = 1
)

const recordKey = "node"

func records() store.Bucket[Record] { return store.Bucket[Record]{Name: "record"} }

func load(ctx context.Context, s *store.Store) (r Record, err error) {
	err = s.View(ctx, func(tx *store.Tx) error {
		r, _, err = records().Get(tx, recordKey)
		return err
	})
	if err != nil {
		return r, fmt.Errorf("read what was done before: %w", err)
	}
	return r, nil
}

func save(ctx context.Context, s *store.Store, r Record) error {
	return s.Update(ctx, func(tx *store.Tx) error { return records().Put(tx, recordKey, r) })
}
