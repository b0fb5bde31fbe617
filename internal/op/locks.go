package op

import (
	"context"
	"slices"
	"sync"
)

// Locks is a set of named mutexes, whose zero value is ready to use.
type Locks struct {
	mu    sync.Mutex
	held  map[string]bool
	queue []*lockWaiter
}

type lockWaiter struct {
	keys []string
	turn chan struct{} // closed when keys are held
}

// Lock acquires all keys atomically, in the order of arrival. unlock is
// idempotent. Lock never holds some keys while it waits for others, so callers
// cannot deadlock. The error is that of ctx.
func (l *Locks) Lock(ctx context.Context, keys ...string) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := l.enqueue(keys)
	select {
	case <-w.turn:
	case <-ctx.Done():
		if l.withdraw(w) {
			return nil, ctx.Err()
		}
	}
	return l.unlock(w), nil
}

// TryLock is Lock without waiting; false: a key is held or awaited.
func (l *Locks) TryLock(keys ...string) (unlock func(), ok bool) {
	w := l.enqueue(keys)
	if l.withdraw(w) {
		return nil, false
	}
	return l.unlock(w), true
}

func (l *Locks) enqueue(keys []string) *lockWaiter {
	own := slices.Clone(keys)
	slices.Sort(own)
	w := &lockWaiter{keys: slices.Compact(own), turn: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, w)
	l.dispatch()
	return w
}

func (l *Locks) unlock(w *lockWaiter) func() {
	return sync.OnceFunc(func() { l.release(w) })
}

// withdraw stops a wait; false: w already holds its keys.
func (l *Locks) withdraw(w *lockWaiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.Index(l.queue, w)
	if at < 0 {
		return false
	}
	l.queue = slices.Delete(l.queue, at, at+1)
	l.dispatch()
	return true
}

func (l *Locks) release(w *lockWaiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range w.keys {
		delete(l.held, key)
	}
	l.dispatch()
}

func (l *Locks) dispatch() {
	if l.held == nil {
		l.held = map[string]bool{}
	}
	claimed := map[string]bool{}
	l.queue = slices.DeleteFunc(l.queue, func(w *lockWaiter) bool {
		free := !slices.ContainsFunc(w.keys, func(key string) bool { return claimed[key] || l.held[key] })
		for _, key := range w.keys {
			if free {
				l.held[key] = true
			} else {
				claimed[key] = true
			}
		}
		if free {
			close(w.turn)
		}
		return free
	})
}
