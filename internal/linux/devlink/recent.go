package devlink

import (
	"context"
	"errors"
	"maps"
	"sync"
)

// ErrLate: drivers have not answered yet. The devices that come with it are those
// of the last answer.
var ErrLate = errors.New("drivers have not yet reported what their devices support: one of them is busy, or hangs")

// Recent asks drivers on a goroutine of its own, one request at a time, and keeps
// the last answer: with a driver that creates virtual functions the request takes
// seconds; with one that hangs the request, and this goroutine, never end. Its zero
// value asks this machine's kernel.
type Recent struct {
	Ask func(context.Context) (map[Handle]Device, error) // nil: Kernel.Devices

	mu      sync.Mutex
	running *request
	last    map[Handle]Device // never modified
}

// request is complete when done is closed.
type request struct {
	done    chan struct{}
	late    bool // a caller's deadline has passed; guarded by Recent.mu
	devices map[Handle]Device
	err     error
}

// Devices returns what Kernel.Devices does. It waits for the answer until the
// context ends, unless another caller's deadline has already passed; the error is
// then ErrLate, with the devices of the last answer. Devices whose drivers fail
// are also as in the last answer.
func (r *Recent) Devices(ctx context.Context) (map[Handle]Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	a := r.running
	if a == nil {
		a = &request{done: make(chan struct{})}
		r.running = a
		go r.ask(context.WithoutCancel(ctx), a)
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

func (r *Recent) ask(ctx context.Context, a *request) {
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
