package watch

import "time"

// leave has the handler let go of a plugin as soon as its name's turn has come.
func (m *machine) leave(s *socket) {
	m.close(s)
	m.act(s, forgetAlive)
	s.doing, s.alarm = awaitingLeave, 0
	s.status.NextTry = time.Time{}
	if m.turns.enter(s) {
		m.granted(s)
	} else {
		m.set(s, DeRegistering)
	}
}

// deregistered: the handler has let go, or says why not.
func (m *machine) deregistered(token uint64, f *failure) {
	s := m.result(token)
	s.held = f != nil
	m.ended(s, DeRegistering, s.held)
	m.giveTurn(s)
	switch {
	case s.refusal != nil: // of the Register that was cut off
		m.notify(s)
	case f != nil:
		m.stay(s, *f)
	case s.failure != nil:
		failure := *s.failure
		s.failure = nil
		m.fail(s, failure)
	case s.gone || m.closing:
		m.settle(s)
	default: // it was in the way of the next attempt
		m.again(s)
	}
}

// stay: the handler could not let go; it is asked again after a pause, before
// anything else happens to this socket.
func (m *machine) stay(s *socket, f failure) {
	m.rest(s, f)
	switch {
	case m.closing:
		m.left = append(m.left, s.status.Type+" "+s.status.Name+": "+f.text)
		s.held = false
		m.settle(s)
	case s.gone && s.place != nil && s.place.next:
		m.orphan(s)
	}
}

// orphan gives the place to the next socket: a handler that cannot let go of
// the last one must not keep a live plugin out of use. The orphan is asked for
// again until it works, or until the same instance is registered anew.
func (m *machine) orphan(s *socket) {
	p := s.place
	m.set(s, Gone)
	s.place = nil
	m.orphans[s.status.instance()] = s
	m.follow(p)
}

// supersede forgets the orphan whose instance is about to be registered again:
// its DeRegister would now take away the new registration.
func (m *machine) supersede(s *socket) {
	o := m.orphans[s.status.instance()]
	if o == nil {
		return
	}
	if o.doing == awaitingLeave {
		m.turns.withdraw(o)
	}
	o.held = false
	m.settle(o)
}
