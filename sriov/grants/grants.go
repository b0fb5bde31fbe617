// Package grants records the devices that the device plugin allocated, so that a
// pool does not shrink when the plugin restarts: a function whose network device
// is in a pod's namespace looks like one without a network device. What a call
// returned without an error survives a power cut.
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

// Record is a device that was allocated to a container.
type Record struct {
	Resource string `json:"resource"` // full name
	ID       string `json:"id"`       // of the kubelet
	// Function is the device as it was then; of an auxiliary device its parent.
	Function  inventory.Function   `json:"function"`
	Auxiliary *inventory.Auxiliary `json:"auxiliary,omitempty"` // nil for a function; without its Parent
	At        time.Time            `json:"at"`
}

// Of is the record of a member of a resource's pool.
func Of(resource string, m inventory.Member, at time.Time) Record {
	r := Record{Resource: resource, ID: m.ID, Function: *m.Function, At: at.UTC().Round(0)}
	if m.Auxiliary != nil {
		a := *m.Auxiliary
		a.Parent = inventory.Function{} // it is Function
		r.Auxiliary = &a
	}
	return r
}

// Device is the device of a record. It shares the slices of the record.
func (r Record) Device() *inventory.Device {
	d := inventory.Device{ID: r.ID, Function: &r.Function, Auxiliary: r.Auxiliary}.Clone()
	return &d
}

// Role and Version are those of the store.
const (
	Role    = "sriov"
	Version = 1
)

func bucket() store.Bucket[Record] { return store.Bucket[Record]{Name: "grants"} }

// Grants can be used concurrently. The slices and pointers of records that it
// takes and returns must not be changed.
type Grants struct {
	store   *store.Store
	writing chan struct{} // one token: the right to read and then write

	mu  sync.RWMutex
	all map[string]Record // what is on disk, by key
}

// Open reads all records. Errors are those of package store; an invalid record is
// store.ErrDamaged.
func Open(ctx context.Context, s *store.Store) (*Grants, error) {
	g := &Grants{store: s, writing: make(chan struct{}, 1), all: map[string]Record{}}
	g.writing <- struct{}{}
	err := s.View(ctx, func(tx *store.Tx) error {
		for e, err := range bucket().Range(tx, "") {
			if err != nil {
				return err
			}
			if err := e.Value.check(); err != nil {
				return fmt.Errorf("the record %q: %w: %w", e.Key, store.ErrDamaged, err)
			}
			if e.Key != e.Value.key() {
				return fmt.Errorf("the record %q: %w: it is of %q", e.Key, store.ErrDamaged, e.Value.key())
			}
			g.all[e.Key] = e.Value
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read what was given out: %w", err)
	}
	return g, nil
}

// key has the resource first, whose name has no space.
func (r Record) key() string { return r.Resource + " " + r.ID }

func (r Record) check() error {
	switch {
	case r.Resource == "" || strings.Contains(r.Resource, " "):
		return fmt.Errorf("%q is no name of a resource, want for example intel.com/sriov", r.Resource)
	case r.ID == "":
		return errors.New("it names no device")
	}
	return nil
}

// All are the records, by resource and id.
func (g *Grants) All() []Record {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return slices.SortedFunc(maps.Values(g.all), compare)
}

func compare(a, b Record) int {
	return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID))
}

// Put writes all records or none. A record replaces that of the same resource and
// device. The plugin calls Put before it answers Allocate. Errors: a record
// without a resource or device, the context's, and those of the disk.
func (g *Grants) Put(ctx context.Context, records []Record) error {
	for _, r := range records {
		if err := r.check(); err != nil {
			return fmt.Errorf("remember that %q was given out: %w", r.ID, err)
		}
	}
	return g.write(ctx, "remember what was given out", records, nil)
}

// Remove removes records. One that was replaced meanwhile stays: the device was
// allocated again. Errors: the context's, and those of the disk.
func (g *Grants) Remove(ctx context.Context, records []Record) error {
	return g.write(ctx, "forget what was given out", nil, records)
}

func (g *Grants) write(ctx context.Context, what string, put, remove []Record) error {
	if len(put)+len(remove) == 0 {
		return nil
	}
	select {
	case <-g.writing:
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	defer func() { g.writing <- struct{}{} }()
	// Nobody else writes: what is read here stays as it is.
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
