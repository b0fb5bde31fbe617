// Package actor runs a state machine on one goroutine: typed events in, typed
// actions out, and named timers that arrive as events. The state machine needs
// no lock and does no I/O; slow work runs on other goroutines, which send
// events.
package actor

import (
	"context"
	"sync"
	"time"
)

// Actor is the event loop of one state machine. Send is safe for concurrent use;
// Set and Clear are for the functions called by Run.
type Actor[E, A any] struct {
	mu    sync.Mutex
	queue []E
	ended bool

	wake chan struct{} // signals a non-empty queue

	timers map[string]alarm[E] // owned by the goroutine of Run
}

type alarm[E any] struct {
	at    time.Time
	event E
}

// New returns an actor, which queues events before Run.
func New[E, A any]() *Actor[E, A] {
	return &Actor[E, A]{wake: make(chan struct{}, 1), timers: map[string]alarm[E]{}}
}

// Send queues an event, in order, and never blocks. It returns false if Run has
// returned.
func (a *Actor[E, A]) Send(event E) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return false
	}
	a.queue = append(a.queue, event)
	a.signal()
	return true
}

// Set sets or resets a timer: its event is delivered once at that time,
// immediately if it has passed.
func (a *Actor[E, A]) Set(name string, at time.Time, event E) {
	a.timers[name] = alarm[E]{at: at, event: event}
}

// Clear clears a timer, if it is set.
func (a *Actor[E, A]) Clear(name string) { delete(a.timers, name) }

// Run calls step for each event and do for each action returned, on the calling
// goroutine, until ctx ends, whose cause it returns. Due timers precede queued
// events. Remaining events are dropped. Call it once.
func (a *Actor[E, A]) Run(ctx context.Context, step func(now time.Time, event E) []A, do func(action A)) error {
	defer a.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		event, ok := a.next(time.Now())
		if !ok {
			if err := a.wait(ctx, timer); err != nil {
				return err
			}
			continue
		}
		for _, action := range step(time.Now(), event) {
			do(action)
		}
	}
}

func (a *Actor[E, A]) next(now time.Time) (event E, ok bool) {
	if name, at, ok := a.earliest(); ok && !at.After(now) {
		event = a.timers[name].event
		delete(a.timers, name)
		return event, true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.queue) == 0 {
		return event, false
	}
	event = a.queue[0]
	clear(a.queue[:1]) // for garbage collection
	a.queue = a.queue[1:]
	return event, true
}

func (a *Actor[E, A]) wait(ctx context.Context, timer *time.Timer) error {
	timer.Stop()
	if _, at, ok := a.earliest(); ok {
		timer.Reset(time.Until(at))
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-a.wake:
	case <-timer.C:
	}
	return nil
}

// earliest orders timers by time and name, so that runs are reproducible.
func (a *Actor[E, A]) earliest() (name string, at time.Time, ok bool) {
	for n, alarm := range a.timers {
		if !ok || alarm.at.Before(at) || alarm.at.Equal(at) && n < name {
			name, at, ok = n, alarm.at, true
		}
	}
	return name, at, ok
}

func (a *Actor[E, A]) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *Actor[E, A]) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended, a.queue = true, nil
}
