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

func functionRecords() store.Bucket[Functions] { return store.Bucket[Functions]{Name: "functions"} }

// loadFunctions returns what the previous process kept. The first time, it is
// the spec that an older version of the daemon has reached.
func loadFunctions(ctx context.Context, s *store.Store, r Record) (f Functions, err error) {
	found := false
	err = s.View(ctx, func(tx *store.Tx) error {
		f, found, err = functionRecords().Get(tx, recordKey)
		return err
	})
	if err != nil {
		return f, fmt.Errorf("read the record of functions: %w", err)
	}
	if !found && !r.Applying {
		f.Unchecked = r.Spec
	}
	return f, nil
}

func saveFunctions(ctx context.Context, s *store.Store, f Functions) error {
	err := s.Update(ctx, func(tx *store.Tx) error { return functionRecords().Put(tx, recordKey, f) })
	if err != nil {
		return fmt.Errorf("save the record of functions: %w", err)
	}
	return nil
}

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
