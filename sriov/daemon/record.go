package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/cleatproject/cleat/internal/store"
)

const (
	Role    = "sriov-daemon"
	Version = 1
)

const recordKey = "node"

// Record is the daemon's durable state.
type Record struct {
	// PFs whose functions this daemon creates.
	Managed []string `json:"managed,omitempty"`
	// Steps might have started, and the desired state was not reached since.
	Applying   bool      `json:"applying,omitempty"`
	UID        string    `json:"uid,omitempty"`
	Generation int64     `json:"generation"`
	Spec       string    `json:"spec,omitempty"` // hash
	Since      time.Time `json:"since"`          // of Applying
}

func records() store.Bucket[Record] { return store.Bucket[Record]{Name: "record"} }

func load(ctx context.Context, s *store.Store) (r Record, err error) {
	err = s.View(ctx, func(tx *store.Tx) error {
		r, _, err = records().Get(tx, recordKey)
		return err
	})
	if err != nil {
		return r, fmt.Errorf("read the daemon's record: %w", err)
	}
	return r, nil
}

func save(ctx context.Context, s *store.Store, r Record) error {
	return s.Update(ctx, func(tx *store.Tx) error { return records().Put(tx, recordKey, r) })
}
