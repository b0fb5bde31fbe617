package watch

import (
	"context"
	"iter"
	"sync"
	"time"
)

// hub passes events to subscribers, which cannot delay the host.
type hub struct {
	mu     sync.Mutex
	serial uint64
	closed bool
	all    map[*subscriber]bool
}

// maxWaiting is a subscriber's queue length; older events are dropped.
const maxWaiting = 4096

type subscriber struct {
	hub     *hub
	waiting []Event
	lost    bool
	wake    chan struct{}
	gone    bool
}

func (h *hub) publish(now time.Time, s Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.serial++
	for sub := range h.all {
		if len(sub.waiting) == maxWaiting {
			sub.waiting = append(sub.waiting[:0], sub.waiting[maxWaiting/2:]...)
			sub.lost = true
		}
		sub.waiting = append(sub.waiting, Event{Serial: h.serial, Time: now, Status: s})
		sub.signal()
	}
}

func (h *hub) last() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.serial
}

func (s *subscriber) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (h *hub) subscribe() *subscriber {
	s := &subscriber{hub: h, wake: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = map[*subscriber]bool{}
	}
	if s.gone = h.closed; !s.gone {
		h.all[s] = true
	}
	return s
}

// Queued events are still delivered.
func (s *subscriber) leave() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.all, s)
	s.gone = true
	s.signal()
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for s := range h.all {
		s.gone = true
		s.signal()
	}
	h.all = nil
}

// An empty result means that the subscription has ended.
func (s *subscriber) take(ctx context.Context) []Event {
	for ctx.Err() == nil {
		s.hub.mu.Lock()
		events, gone := s.waiting, s.gone
		s.waiting = nil
		if s.lost && len(events) > 0 {
			events[0].Lost, s.lost = true, false
		}
		s.hub.mu.Unlock()
		if len(events) > 0 || gone {
			return events
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
		}
	}
	return nil
}

// Subscribe yields the events from now on, until ctx ends or the host is
// closed. It can be ranged over once. Event.Lost reports events that a slow
// subscriber lost.
func (h *Host) Subscribe(ctx context.Context) iter.Seq[Event] {
	s := h.hub.subscribe()
	unhook := context.AfterFunc(ctx, s.leave)
	return func(yield func(Event) bool) {
		defer unhook()
		defer s.leave()
		for {
			events := s.take(ctx)
			if len(events) == 0 {
				return
			}
			for _, e := range events {
				if !yield(e) {
					return
				}
			}
		}
	}
}
