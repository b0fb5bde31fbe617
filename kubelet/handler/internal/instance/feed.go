package instance

import (
	"context"
	"errors"
	"sync"
)

// ErrClosed is returned by Next after Close.
var ErrClosed = errors.New("the subscription is closed")

// Feed notifies subscribers which of some keyed things have changed. A key waits
// in a subscriber's queue at most once: a slow reader skips changes in between,
// never misses the last one, and holds at most one entry for each key. The zero
// value is ready.
type Feed[K comparable] struct {
	mu            sync.Mutex
	subscriptions map[*Subscription[K]]struct{}
}

// Subscription is the queue of one reader.
type Subscription[K comparable] struct {
	feed   *Feed[K]
	queue  []K
	queued map[K]bool
	wake   chan struct{} // holds a token while the queue is not empty
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

// Next waits for a key; its value is to be read after that. The error is that of
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
		s.signal() // for another reader that waits
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
		s.queue = nil // or the array would grow with each round
	}
	return key, true, nil
}

// Close ends the subscription, and a Next that waits.
func (s *Subscription[K]) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.closed = true
	delete(s.feed.subscriptions, s)
	s.signal()
}
