// Package monitor guards a state machine without a goroutine of its own: one lock,
// callers that wait for a state, and a timer for the machine's next deadline.
package monitor

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"
)

// ErrClosed is that of a caller that waits at the end.
var ErrClosed = errors.New("the state machine has stopped")

// Monitor is safe for concurrent use. The functions that it calls hold its lock:
// they do not block and do not call it.
type Monitor struct {
	next func() time.Time
	tick func(now time.Time)

	mu      sync.Mutex
	timer   *time.Timer
	changed chan struct{} // closed by the next change
	closed  bool
}

// New returns a Monitor that calls tick at the deadline next, which is read after
// each call; zero: none.
func New(next func() time.Time, tick func(now time.Time)) *Monitor {
	m := &Monitor{next: next, tick: tick, changed: make(chan struct{})}
	m.timer = time.AfterFunc(math.MaxInt64, func() { m.Do(m.tick) })
	return m
}

// Do calls f, unless the monitor is closed, and wakes the callers that wait.
func (m *Monitor) Do(f func(now time.Time)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	f(time.Now())
	m.wake()
	if at := m.next(); at.IsZero() {
		m.timer.Stop()
	} else {
		m.timer.Reset(time.Until(at))
	}
}

func (m *Monitor) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Await calls ready, which changes nothing, until it holds. It fails when ctx ends,
// with its cause, and after Close with ErrClosed.
func (m *Monitor) Await(ctx context.Context, ready func() bool) error {
	for {
		m.mu.Lock()
		is, changed, closed := ready(), m.changed, m.closed
		m.mu.Unlock()
		switch {
		case is:
			return nil
		case closed:
			return ErrClosed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Close makes Do and the timer have no effect.
func (m *Monitor) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.closed = true
		m.timer.Stop()
		m.wake()
	}
}
