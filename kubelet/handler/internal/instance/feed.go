package instance

import (
	"context"
	"errors"
	"sync"
)

// ErrClosed: Close was called.
var ErrClosed = errors.New("the subscription is closed")

// Feed notifies subscribers of changed keys. A key is queued at most once: a
// slow reader never misses the last change. The zero value is ready.
type Feed[K comparable] struct {
	mu            sync.Mutex
	subscriptions map[*Subscription[K]]struct{}
}

// Subscription is a reader's queue.
type Subscription[K comparable] struct {
	feed   *Feed[K]
	queue  []K
	queued map[K]bool
	wake   chan struct{} // token while not empty
	closed bool
}

// Touch reports a change, and never blocks.
func (f *Feed[K]) Touch(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.subscriptions {
		s.push(key)
	}
}

// Subscribe returns a subscription with initial keys.
func (f *Feed[K]) Subscribe(first ...K) *Subscription[K] {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &Subscription[K]{feed: f, queued: map[K]bool{}, wake: make(chan struct{}, 1)}
	for _, key := range first {
		s.push(key)
	}
	if f.subscriptions == nil {
		f.subscriptions = map[*Subscription[K]]struct{}{}
	}
	f.subscriptions[s] = struct{}{}
	return s
}

func (s *Subscription[K]) push(key K) {
	if s.queued[key] {
		return
	}
	s.queued[key] = true
	s.queue = append(s.queue, key)
	s.signal()
}

func (s *Subscription[K]) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Next waits for a changed key; read its value afterwards. The error is that of
// ctx, or ErrClosed.
func (s *Subscription[K]) Next(ctx context.Context) (key K, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return key, err
		}
		if key, found, err := s.take(); found || err != nil {
			return key, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
		}
	}
}

func (s *Subscription[K]) take() (key K, found bool, err error) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	switch {
	case s.closed:
		s.signal() // other readers
		return key, false, ErrClosed
	case len(s.queue) == 0:
		return key, false, nil
	}
	key = s.queue[0]
	s.queue = s.queue[1:]
	delete(s.queued, key)
	if len(s.queue) > 0 {
		s.signal()
	} else {
		s.queue = nil // release the array
	}
	return key, true, nil
}

// Close ends waiting Next calls.
func (s *Subscription[K]) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.closed = true
	delete(s.feed.subscriptions, s)
	s.signal()
}
