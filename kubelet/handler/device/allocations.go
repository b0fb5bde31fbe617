package device

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Errors of Allocate, Release and PreStart.
var (
	ErrUnknown   = errors.New("unknown")
	ErrUnhealthy = errors.New("not healthy")
	ErrHeld      = errors.New("already allocated")
	ErrBusy      = errors.New("another call is in flight")
)

// By device ID.
type allocations map[string]allocation

type allocation struct {
	holder    string
	allocated bool // before
	running   bool // an RPC is in flight
}

// reserve marks all devices while the plugin is called, or none. A holder can
// reserve its own again.
func (a allocations) reserve(holder string, ids []string) error {
	for _, id := range ids {
		switch e, there := a[id]; {
		case there && e.running:
			return fmt.Errorf("device %s: %w, for %q", id, ErrBusy, e.holder)
		case there && e.holder != holder:
			return fmt.Errorf("device %s: %w to %q", id, ErrHeld, e.holder)
		}
	}
	for _, id := range ids {
		a[id] = allocation{holder: holder, allocated: a[id].allocated, running: true}
	}
	return nil
}

// Devices that the plugin refused are free again, unless they were allocated
// before.
func (a allocations) finish(ids []string, allocated bool) {
	for _, id := range ids {
		e := a[id]
		if !allocated && !e.allocated {
			delete(a, id)
			continue
		}
		a[id] = allocation{holder: e.holder, allocated: true}
	}
}

// heldBy fails while an RPC for any of the devices is in flight.
func (a allocations) heldBy(holder string) ([]string, error) {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(a)) {
		if e := a[id]; e.holder == holder {
			if e.running {
				return nil, fmt.Errorf("device %s: %w, for %q", id, ErrBusy, holder)
			}
			ids = append(ids, id)
		}
	}
	return ids, nil
}
