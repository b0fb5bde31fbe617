package store

import (
	"context"
	"sync"
)

// views are the running Views. bbolt does not reuse the pages that they read,
// with one exception: after a failed commit that is in the page cache, it reads
// the freelist of that commit, in which pages of earlier transactions are free.
// No commit follows before those Views have ended.
type views struct {
	mu      sync.Mutex
	current *viewGroup
	earlier chan struct{} // closed when the Views that began before the last failed commit have ended
}

type viewGroup struct {
	running int
	ended   chan struct{} // nil: no commit failed since
}

// begin is called before the transaction of a View begins, end after its end.
func (v *views) begin() (end func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.current == nil {
		v.current = &viewGroup{}
	}
	g := v.current
	g.running++
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if g.running--; g.running == 0 && g.ended != nil {
			close(g.ended)
		}
	}
}

// commitFailed is called after await.
func (v *views) commitFailed() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if g := v.current; g != nil && g.running > 0 {
		g.ended = make(chan struct{})
		v.current, v.earlier = nil, g.ended
	}
}

// await returns when the Views that began before the last failed commit have
// ended.
func (v *views) await(ctx context.Context) error {
	v.mu.Lock()
	earlier := v.earlier
	v.mu.Unlock()
	if earlier == nil {
		return nil
	}
	select {
	case <-earlier:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
