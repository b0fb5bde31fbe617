package instance

import (
	"context"
	"errors"
	"sync"
)

// ErrClosed is returned by Next after Close.
var ErrClosed = errors.New("the subscription is closed")

// Feed notifies subscribers which keys have changed. A key is in a subscriber's
// queue at most once: a slow reader can skip intermediate changes, but never
// misses the last one. The zero value is ready to use.
type Feed[K comparable] struct {
	mu            sync.Mutex
	subscriptions map[*Subscription[K]]struct{}
}

// Subscription is the queue of one reader.
type Subscription[K comparable] struct {
	feed   *Feed[K]
	queue  []K
	queued map[K]bool
	wake   chan struct{} // has a token while the queue is not empty
	closed bool
}

// Touch reports a change to all subscribers. It never blocks.
func (f *Feed[K]) Touch(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.subscriptions {
		s.push(key)
	}
}

// Subscribe returns a subscription with the given keys in its queue.
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

// Next waits for a changed key; read its value after Next returns. The error is
// that of ctx, or ErrClosed.
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
		s.signal() // wake other waiting readers too
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
		s.queue = nil // release the array, which would grow otherwise
	}
	return key, true, nil
}

// Close ends the subscription and every waiting Next.
func (s *Subscription[K]) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.closed = true
	delete(s.feed.subscriptions, s)
	s.signal()
}
