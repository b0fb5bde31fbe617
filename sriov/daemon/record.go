package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/cleatproject/cleat/internal/store"
)

// Role and Version are those of the store.
const (
	Role    = "sriov-daemon"
	Version = 1
)

const recordKey = "node"

// Record is the durable state.
type Record struct {
	// Managed are the PFs whose functions this daemon creates.
	Managed []string `json:"managed,omitempty"`
	// Applying: steps may have begun, and the node was not in the desired state since.
	Applying   bool      `json:"applying,omitempty"`
	UID        string    `json:"uid,omitempty"`
	Generation int64     `json:"generation"`
	Spec       string    `json:"spec,omitempty"` // its hash
	Since      time.Time `json:"since"`          // of Applying, or of its end
}

func records() store.Bucket[Record] { return store.Bucket[Record]{Name: "record"} }

func load(ctx context.Context, s *store.Store) (r Record, err error) {
	err = s.View(ctx, func(tx *store.Tx) error {
		r, _, err = records().Get(tx, recordKey)
		return err
	})
	if err != nil {
		return r, fmt.Errorf("read the record of this node: %w", err)
	}
	return r, nil
}

func save(ctx context.Context, s *store.Store, r Record) error {
	return s.Update(ctx, func(tx *store.Tx) error { return records().Put(tx, recordKey, r) })
}
