package device

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// What Allocate and its like are refused for.
var (
	ErrUnknown   = errors.New("not known")
	ErrUnhealthy = errors.New("not healthy")
	ErrHeld      = errors.New("held already")
	ErrBusy      = errors.New("a call for it is under way")
)

// book says who holds which device of a resource.
type book map[string]entry

type entry struct {
	holder  string
	settled bool // the plugin has allocated it once
	running bool // a call for it is under way
}

// take marks devices for a holder while it asks the plugin: all of them or
// none. Those that it holds already may be asked for again.
func (b book) take(holder string, ids []string) error {
	for _, id := range ids {
		switch e, there := b[id]; {
		case there && e.running:
			return fmt.Errorf("device %s: %w, for %q", id, ErrBusy, e.holder)
		case there && e.holder != holder:
			return fmt.Errorf("device %s: %w, by %q", id, ErrHeld, e.holder)
		}
	}
	for _, id := range ids {
		b[id] = entry{holder: holder, settled: b[id].settled, running: true}
	}
	return nil
}

// settle ends what take began. Devices that the plugin refused are free again,
// unless they were held before.
func (b book) settle(ids []string, allocated bool) {
	for _, id := range ids {
		e := b[id]
		if !allocated && !e.settled {
			delete(b, id)
			continue
		}
		b[id] = entry{holder: e.holder, settled: true}
	}
}

// of lists what a holder has, by id, and fails while a call for any of it runs.
func (b book) of(holder string) ([]string, error) {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(b)) {
		if e := b[id]; e.holder == holder {
			if e.running {
				return nil, fmt.Errorf("device %s: %w, for %q", id, ErrBusy, holder)
			}
			ids = append(ids, id)
		}
	}
	return ids, nil
}
