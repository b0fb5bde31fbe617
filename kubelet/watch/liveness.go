package watch

import "time"

// liveness is what looking at a registered plugin's socket showed.
type liveness int

const (
	alive  liveness = iota // and a connection is held
	dead                   // nobody listens
	unsure                 // no permission, a full queue, no descriptor left
)

const (
	soon     = 100 * time.Millisecond // a socket may refuse for an instant before it is removed
	restless = 10 * time.Second       // a connection that lives shorter makes looks rarer,
	mostRare = 30 * time.Second       // up to this
)

func (s *socket) inUse() bool { return s.doing == nothing && s.status.Phase == Registered }

// hungUp: the plugin ended the connection that was held to see whether it
// lives. It may have its reasons, so this says nothing yet.
func (m *machine) hungUp(token uint64) {
	s := m.sockets[token]
	switch {
	case s == nil || !s.inUse() || m.closing:
	case m.now.Sub(s.heldSince) >= restless:
		s.pause = 0
		m.act(s, checkAlive)
	default:
		m.lookLater(s)
	}
}

func (m *machine) lookLater(s *socket) {
	s.pause = min(max(2*s.pause, 10*time.Millisecond), mostRare)
	m.wake(s, s.pause)
}

// checked: whether somebody serves a registered plugin's socket.
func (m *machine) checked(token uint64, found liveness, why failure) {
	s := m.result(token)
	switch {
	case s == nil || !s.inUse() || m.closing:
	case found == unsure:
		m.lookLater(s)
	case found == alive:
		s.heldSince, s.refused = m.now, false
		if s.status.Dead {
			m.revive(s)
		}
	case !s.refused:
		s.refused = true
		m.wake(s, soon)
	case !s.status.Dead:
		m.died(s, why)
	}
}

func (m *machine) died(s *socket, why failure) {
	s.status.Dead = true
	s.status.Step, s.status.Error, s.status.Reason = Registered, why.text, why.reason
	if m.Grace > 0 {
		m.wake(s, m.Grace)
		s.status.NextTry = m.now.Add(m.Grace)
	}
	m.set(s, Registered)
}

func (m *machine) revive(s *socket) {
	s.alarm, s.status.Dead, s.status.NextTry = 0, false, time.Time{}
	s.status.Step, s.status.Error, s.status.Reason = "", "", ""
	m.set(s, Registered)
}

// expire takes a plugin out of use that has been dead for the time of grace.
func (m *machine) expire(s *socket) {
	s.failure = &failure{step: Registered, text: s.status.Error, reason: s.status.Reason}
	s.status.Dead = false
	m.leave(s)
}
