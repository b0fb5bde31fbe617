package hostfs

import (
	"context"

	"github.com/cleatproject/cleat/errs"
)

// turn is the queue at one mount point.
type turn struct {
	slot    chan struct{} // holds one token while somebody works there
	waiting int           // and working
}

// begin waits for the others at a mount point. done lets the next one in.
func (m *Mounts) begin(ctx context.Context, target string) (done func(), err error) {
	m.mu.Lock()
	t := m.turns[target]
	if t == nil {
		t = &turn{slot: make(chan struct{}, 1)}
		m.turns[target] = t
	}
	t.waiting++
	m.mu.Unlock()
	leave := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if t.waiting--; t.waiting == 0 {
			delete(m.turns, target)
		}
	}
	select {
	case t.slot <- struct{}{}:
		return func() { <-t.slot; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, errs.Errorf(errs.Busy, "%s: another mount or unmount is under way there: %w", target, ctx.Err())
	}
}
