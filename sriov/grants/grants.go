// Package grants durably records allocated devices, so that a pool does not
// shrink when the plugin restarts: a function whose network device is in a pod
// looks like one without a network device. Successful writes survive a power
// loss.
package grants

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/sriov/inventory"
)

// Record is an allocated device.
type Record struct {
	Resource string `json:"resource"`
	ID       string `json:"id"`
	// At that time; of an auxiliary device its parent.
	Function  inventory.Function   `json:"function"`
	Auxiliary *inventory.Auxiliary `json:"auxiliary,omitempty"` // without its Parent
	At        time.Time            `json:"at"`
}

// Of returns the record of a pool's member.
func Of(resource string, m inventory.Member, at time.Time) Record {
	r := Record{Resource: resource, ID: m.ID, Function: *m.Function, At: at.UTC().Round(0)}
	if m.Auxiliary != nil {
		a := *m.Auxiliary
		a.Parent = inventory.Function{} // is Function
		r.Auxiliary = &a
	}
	return r
}

// Device returns the record's device, which shares its slices.
func (r Record) Device() *inventory.Device {
	d := inventory.Device{ID: r.ID, Function: &r.Function, Auxiliary: r.Auxiliary}.Clone()
	return &d
}

// Role and Version of the store.
const (
	Role    = "sriov"
	Version = 1
)

func bucket() store.Bucket[Record] { return store.Bucket[Record]{Name: "grants"} }

// Grants is the set of records, safe for concurrent use. Slices and pointers in
// records must not be modified.
type Grants struct {
	store      *store.Store
	writeToken chan struct{} // one token; its holder can read and write

	mu  sync.RWMutex
	all map[string]Record // the store's content
}

// Open reads all records. Errors are those of package store; ErrDamaged
// includes invalid records.
func Open(ctx context.Context, s *store.Store) (*Grants, error) {
	g := &Grants{store: s, writeToken: make(chan struct{}, 1), all: map[string]Record{}}
	g.writeToken <- struct{}{}
	err := s.View(ctx, func(tx *store.Tx) error {
		for e, err := range bucket().Range(tx, "") {
			if err != nil {
				return err
			}
			if err := e.Value.check(); err != nil {
				return fmt.Errorf("the record %q: %w: %w", e.Key, store.ErrDamaged, err)
			}
			if e.Key != e.Value.key() {
				return fmt.Errorf("the record %q: %w: its content has the key %q", e.Key, store.ErrDamaged, e.Value.key())
			}
			g.all[e.Key] = e.Value
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read grant records: %w", err)
	}
	return g, nil
}

// The resource, which has no space, comes first.
func (r Record) key() string { return r.Resource + " " + r.ID }

func (r Record) check() error {
	switch {
	case r.Resource == "" || strings.Contains(r.Resource, " "):
		return fmt.Errorf("%q is not a valid resource name, want for example intel.com/sriov", r.Resource)
	case r.ID == "":
		return errors.New("it has no device id")
	}
	return nil
}

// All returns the records by resource and id.
func (g *Grants) All() []Record {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return slices.SortedFunc(maps.Values(g.all), compare)
}

func compare(a, b Record) int {
	return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID))
}

// Put writes all records or none, replacing those of the same device and
// resource. It precedes the answer to Allocate.
func (g *Grants) Put(ctx context.Context, records []Record) error {
	for _, r := range records {
		if err := r.check(); err != nil {
			return fmt.Errorf("store the grant record of %q: %w", r.ID, err)
		}
	}
	return g.write(ctx, "store grant records", records, nil)
}

// Remove removes records. A record replaced meanwhile is kept: the device was
// allocated again.
func (g *Grants) Remove(ctx context.Context, records []Record) error {
	return g.write(ctx, "remove grant records", nil, records)
}

func (g *Grants) write(ctx context.Context, what string, put, remove []Record) error {
	if len(put)+len(remove) == 0 {
		return nil
	}
	select {
	case <-g.writeToken:
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	defer func() { g.writeToken <- struct{}{} }()
	// The token excludes other writers.
	remove = slices.DeleteFunc(slices.Clone(remove), func(r Record) bool {
		had, ok := g.all[r.key()]
		return !ok || !had.At.Equal(r.At)
	})
	if err := g.store.Update(ctx, func(tx *store.Tx) error {
		for _, r := range put {
			if err := bucket().Put(tx, r.key(), r); err != nil {
				return err
			}
		}
		for _, r := range remove {
			if err := bucket().Delete(tx, r.key()); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range put {
		g.all[r.key()] = r
	}
	for _, r := range remove {
		delete(g.all, r.key())
	}
	return nil
}
