package devlink

import (
	"context"
	"errors"
	"maps"
	"sync"
)

// ErrLate: drivers have not answered yet. What they said before goes with it.
var ErrLate = errors.New("drivers have not said what their devices can do: one of them is busy, or hangs")

// Recent asks drivers on a goroutine of its own, one at a time, and remembers
// what they said: behind one that makes virtual functions the kernel takes
// seconds, behind one that hangs it takes for ever, and that goroutine with it.
// Its zero value asks this machine's kernel.
type Recent struct {
	Ask func(context.Context) (map[Handle]Device, error) // nil: Kernel's Devices

	mu    sync.Mutex
	under *asking
	last  map[Handle]Device // not changed after it was made
}

// asking is under way until done is closed.
type asking struct {
	done    chan struct{}
	late    bool // somebody waited as long as he would; guarded by Recent.mu
	devices map[Handle]Device
	err     error
}

// Devices is what drivers say, as Kernel's. It waits for that until the context
// ends, unless somebody has already done so in vain; the error is then ErrLate,
// and the devices are as they were before. So are those whose drivers fail.
func (r *Recent) Devices(ctx context.Context) (map[Handle]Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	a := r.under
	if a == nil {
		a = &asking{done: make(chan struct{})}
		r.under = a
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
	if !a.late {
		return r.last, ctx.Err()
	}
	return r.last, ErrLate
}

func (r *Recent) ask(ctx context.Context, a *asking) {
	devices := r.Ask
	if devices == nil {
		devices = Kernel{}.Devices
	}
	a.devices, a.err = devices(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.err != nil {
		told := maps.Clone(r.last)
		if told == nil {
			told = map[Handle]Device{}
		}
		for h, d := range a.devices {
			told[h] = d.or(told[h])
		}
		a.devices = told
	}
	r.last, r.under = a.devices, nil
	close(a.done)
}
