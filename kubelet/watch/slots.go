package watch

import (
	"context"
	"slices"
	"sync"
)

// slots bounds concurrent attempts. A socket's first attempts go before retries.
type slots struct {
	mu             sync.Mutex
	free           int
	first, retries []chan struct{} // waiting, in order; closed when it is their turn
}

func (s *slots) acquire(ctx context.Context, isRetry bool) error {
	s.mu.Lock()
	if s.free > 0 { // so none waits
		s.free--
		s.mu.Unlock()
		return nil
	}
	queue, turn := &s.first, make(chan struct{})
	if isRetry {
		queue = &s.retries
	}
	*queue = append(*queue, turn)
	s.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(*queue, turn); i >= 0 {
		*queue = slices.Delete(*queue, i, i+1)
	} else { // its turn came meanwhile
		s.next()
	}
	return ctx.Err()
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next()
}

// next, with mu held, passes a slot on.
func (s *slots) next() {
	for _, queue := range []*[]chan struct{}{&s.first, &s.retries} {
		if len(*queue) > 0 {
			close((*queue)[0])
			*queue = (*queue)[1:]
			return
		}
	}
	s.free++
}
