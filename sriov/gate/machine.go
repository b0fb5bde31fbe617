package gate

import "time"

// machine is what a Gate and a Resource have in common: the time of the current
// event, the timers, and the actions so far.
type machine struct {
	now    time.Time
	timers map[Timer]time.Time
	out    []Action
}

// begin begins a step. A time before that of the last event counts as the last.
func (m *machine) begin(at time.Time) {
	if at.After(m.now) {
		m.now = at
	}
	m.out = nil
}

func (m *machine) do(a Action) { m.out = append(m.out, a) }

func (m *machine) set(name Timer, at time.Time) {
	m.timers[name] = at
	m.do(Set{Timer: name, At: at})
}

// due reports whether a timer's deadline has passed, and clears it then.
func (m *machine) due(name Timer) bool {
	at, isSet := m.timers[name]
	if !isSet || m.now.Before(at) {
		return false
	}
	delete(m.timers, name)
	return true
}

// expired is due for an Expired, which may be early.
func (m *machine) expired(name Timer) bool {
	if at, isSet := m.timers[name]; isSet && m.now.Before(at) {
		m.set(name, at)
		return false
	}
	return m.due(name)
}
