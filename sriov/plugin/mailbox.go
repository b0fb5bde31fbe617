package plugin

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cleatproject/cleat/sriov/gate"
)

// mailbox takes what others tell one goroutine, in order. Nobody waits who puts
// something in, so that two goroutines may tell each other.
type mailbox[T any] struct {
	mu      sync.Mutex
	letters []T
	bell    chan struct{} // rings when there may be letters
}

func newMailbox[T any]() *mailbox[T] { return &mailbox[T]{bell: make(chan struct{}, 1)} }

func (m *mailbox[T]) put(letter T) {
	m.mu.Lock()
	m.letters = append(m.letters, letter)
	m.mu.Unlock()
	ring(m.bell)
}

func (m *mailbox[T]) take() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.letters
	m.letters = nil
	return all
}

// ring leaves a sign in a channel of one, if there is none yet.
func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// alarms are the timers of one machine, for the goroutine that owns it.
type alarms struct {
	at    map[gate.Timer]time.Time
	timer *time.Timer // fires at the earliest
}

func newAlarms() *alarms {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &alarms{at: map[gate.Timer]time.Time{}, timer: t}
}

func (a *alarms) set(name gate.Timer, at time.Time) {
	a.at[name] = at
	a.rearm()
}

// due returns the alarms whose time has come, and forgets them.
func (a *alarms) due(now time.Time) []gate.Timer {
	var names []gate.Timer
	for _, name := range slices.Sorted(maps.Keys(a.at)) {
		if !now.Before(a.at[name]) {
			names = append(names, name)
			delete(a.at, name)
		}
	}
	a.rearm()
	return names
}

func (a *alarms) rearm() {
	a.timer.Stop()
	var first time.Time
	for _, at := range a.at {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	if !first.IsZero() {
		a.timer.Reset(max(0, time.Until(first)))
	}
}
