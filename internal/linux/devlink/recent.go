package devlink

import (
	"context"
	"errors"
	"maps"
	"sync"
)

// ErrLate: drivers have not answered yet. Devices come from the last answer.
var ErrLate = errors.New("drivers have not yet reported what their devices support: one of them is busy, or hangs")

// Recent queries drivers in a goroutine, one request at a time, and caches the
// last answer. A request takes seconds while a driver creates virtual
// functions, and never ends if a driver hangs.
type Recent struct {
	Ask func(context.Context) (map[Handle]Device, error) // nil: Kernel.Devices

	mu      sync.Mutex
	running *request
	last    map[Handle]Device // never modified
}

type request struct {
	done    chan struct{}
	late    bool // a caller's deadline has passed; guarded by Recent.mu
	devices map[Handle]Device
	err     error
}

// Devices is like Kernel.Devices, but waits only until the context ends, or not
// at all if the same request has already outlasted another caller's deadline:
// ErrLate, with the devices of the last answer. Devices of failing drivers are
// from the last answer too.
func (r *Recent) Devices(ctx context.Context) (map[Handle]Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	a := r.running
	if a == nil {
		a = &request{done: make(chan struct{})}
		r.running = a
		go r.query(context.WithoutCancel(ctx), a)
	}
	late, last := a.late, r.last
	r.mu.Unlock()
	if late {
		return last, ErrLate
	}
	select {
	case <-a.done:
		return a.devices, a.err
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	a.late = a.late || errors.Is(ctx.Err(), context.DeadlineExceeded)
	if a.late {
		return r.last, ErrLate
	}
	return r.last, ctx.Err()
}

func (r *Recent) query(ctx context.Context, a *request) {
	devices := r.Ask
	if devices == nil {
		devices = Kernel{}.Devices
	}
	a.devices, a.err = devices(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.err != nil {
		merged := map[Handle]Device{}
		maps.Copy(merged, r.last)
		for h, d := range a.devices {
			merged[h] = d.or(merged[h])
		}
		a.devices = merged
	}
	r.last, r.running = a.devices, nil
	close(a.done)
}
