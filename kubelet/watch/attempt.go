package watch

import (
	"fmt"
	"slices"
	"time"
)

// What the kubelet tells a plugin that was not registered.
const (
	tellPrefix     = "RegisterPlugin error -- "
	tellNoHandler  = "no handler registered for plugin type: %s at socket %s"
	tellValidation = "plugin validation failed with err: "
	tellRegister   = "plugin registration failed with err: "
)

// queue has a socket asked as soon as a lane is free.
func (m *machine) queue(s *socket) {
	s.doing = queued
	m.lanes.toAsk(s)
}

// again begins a new attempt: from scratch, but what the handler may still
// have of the last one goes first.
func (m *machine) again(s *socket) {
	switch s.pause = 0; {
	case m.closing:
	case s.held:
		m.leave(s)
	default:
		m.queue(s)
	}
}

// ask begins an attempt, or tries once more to connect in one.
func (m *machine) ask(s *socket) {
	s.doing, s.open = asking, true
	if s.pause == 0 {
		s.begun = m.now
		if s.anew {
			s.anew, s.status.Attempts = false, 0
		}
		s.status.Attempts++
		s.status.NextTry = time.Time{}
		m.set(s, Asking)
	}
	m.act(s, ask)
}

// asked: what the plugin said of itself, or why it said nothing.
func (m *machine) asked(token uint64, p Plugin, f *failure) {
	s := m.result(token)
	m.lanes.leave(s)
	switch {
	case s.gone || m.closing:
		m.settle(s)
	case f == nil:
		m.announced(s, p)
	case f.refused && s.failures == 0 && m.now.Sub(s.begun) < m.Dial:
		m.redial(s, *f)
	default:
		m.fail(s, *f)
	}
}

const (
	// Pauses between tries to connect to a new socket that refuses.
	shortest = 200 * time.Microsecond
	longest  = 250 * time.Millisecond
	// worthTelling is how long it may refuse before anybody hears of it.
	worthTelling = 100 * time.Millisecond
)

// redial: a new socket may be there an instant before somebody listens on it,
// and no event tells of that instant. One that has failed before is tried by
// the usual pauses only.
func (m *machine) redial(s *socket, f failure) {
	m.close(s)
	s.doing = redialling
	s.pause = min(max(2*s.pause, shortest), longest)
	m.wake(s, s.pause)
	if m.now.Sub(s.begun) >= worthTelling && s.status.Error != f.text {
		s.status.Step, s.status.Error, s.status.Reason = f.step, f.text, f.reason
		m.set(s, Asking)
	}
}

func (m *machine) announced(s *socket, p Plugin) {
	p.Socket = s.status.Socket
	if p.Endpoint == "" {
		p.Endpoint = p.Socket
	}
	s.status.Plugin, s.awaits = p, ""
	if !m.handled[p.Type] {
		s.awaits = p.Type
		text := fmt.Sprintf(tellNoHandler, p.Type, p.Socket)
		m.refuse(s, text, failure{step: Validating, text: text, reason: noHandler(p.Type, m.kinds())})
		return
	}
	s.doing = awaitingTurn
	if m.turns.enter(s) {
		m.granted(s)
	} else {
		m.set(s, Waiting)
	}
}

// granted: the socket has the turn of its name.
func (m *machine) granted(s *socket) {
	if s.doing == awaitingLeave {
		s.doing = deregistering
		m.set(s, DeRegistering)
		m.act(s, deRegister)
		return
	}
	s.doing = validating
	m.set(s, Validating)
	m.act(s, validate)
}

// giveTurn passes the turn of the name on.
func (m *machine) giveTurn(s *socket) {
	if next := m.turns.leave(s); next != nil {
		m.granted(next)
	}
}

// validated: the handler takes the plugin, or says why not.
func (m *machine) validated(token uint64, f *failure) {
	s := m.result(token)
	switch {
	case s.gone || m.closing:
		m.giveTurn(s)
		m.settle(s)
	case f != nil:
		m.giveTurn(s)
		m.refuse(s, tellValidation+f.text, *f)
	default:
		m.supersede(s)
		s.doing, s.held = registering, true
		m.set(s, Registering)
		m.act(s, register)
	}
}

// registered: the handler has the plugin, or says why not. From a call that
// was cut off something may be left, which is taken back at once.
func (m *machine) registered(token uint64, f *failure) {
	s := m.result(token)
	switch {
	case f == nil:
		m.giveTurn(s)
		m.notify(s)
	case f.cut:
		s.refusal = &refusal{tellPrefix + tellRegister + f.text, *f}
		s.doing = takingBack
		m.set(s, DeRegistering)
		m.act(s, deRegister)
	default:
		s.held = false
		m.giveTurn(s)
		m.refuse(s, tellRegister+f.text, *f)
	}
}

func (m *machine) refuse(s *socket, text string, f failure) {
	s.refusal = &refusal{tellPrefix + text, f}
	m.notify(s)
}

// notify has the plugin told as soon as a lane is free.
func (m *machine) notify(s *socket) {
	s.doing = queuedToTell
	m.lanes.toTell(s)
}

func (m *machine) tell(s *socket) {
	s.doing = telling
	m.set(s, Notifying)
	a := action{do: tell, token: s.token, plugin: s.status.Plugin}
	if s.refusal != nil {
		a.text = s.refusal.text
	}
	m.send(a)
}

// told: the plugin knows, or does not. Without its answer it is not in use.
func (m *machine) told(token uint64, f *failure) {
	s := m.result(token)
	m.lanes.leave(s)
	switch refusal := s.refusal; {
	case refusal != nil:
		s.refusal = nil
		refusal.hung = refusal.hung || f != nil && f.hung
		m.fail(s, refusal.failure)
	case f != nil:
		s.failure = f
		m.leave(s)
	case s.gone:
		m.settle(s)
	default:
		m.succeed(s)
	}
}

func (m *machine) succeed(s *socket) {
	s.doing, s.failures, s.hung, s.pause, s.refused = nothing, 0, false, 0, false
	s.status.Step, s.status.Error, s.status.Reason = "", "", ""
	m.ended(s, Registered, false)
	s.anew = true
	m.set(s, Registered)
	if m.closing {
		m.close(s)
		return
	}
	s.open, s.heldSince = false, m.now
	m.act(s, keep)
}

// fail ends an attempt; the next one comes after a pause.
func (m *machine) fail(s *socket, f failure) {
	m.close(s)
	m.ended(s, f.step, true)
	s.hung = f.hung
	m.rest(s, f)
	switch {
	case s.gone || m.closing:
		m.settle(s)
	case s.awaits != "" && m.handled[s.awaits]: // since a moment ago
		m.again(s)
	}
}

// rest notes a failure, and sets the alarm for the next attempt.
func (m *machine) rest(s *socket, f failure) {
	s.doing = nothing
	s.failures++
	pause := m.BackOff.pause(s.failures, m.random())
	m.wake(s, pause)
	s.status.Step, s.status.Error, s.status.Reason = f.step, f.text, f.reason
	s.status.NextTry = m.now.Add(pause)
	m.set(s, Failed)
}

// pause is the one after so many failures in a row.
func (b BackOff) pause(failures int, random float64) time.Duration {
	pause := b.First
	for range failures - 1 {
		if pause > b.Most/2 {
			pause = b.Most
			break
		}
		pause *= 2
	}
	return pause - time.Duration(random*b.Jitter*float64(pause))
}

// ended counts the end of an attempt, or of a call of DeRegister.
func (m *machine) ended(s *socket, phase Phase, failed bool) {
	o := outcome{phase: phase, failed: failed}
	if m.handled[s.status.Type] {
		o.kind = s.status.Type
	}
	if phase == Registered && !failed {
		o.took = m.now.Sub(s.status.Found)
	}
	m.next.outcomes = append(m.next.outcomes, o)
}

// kinds are the types that have a handler, in order.
func (m *machine) kinds() []string {
	kinds := make([]string, 0, len(m.handled))
	for kind := range m.handled {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return kinds
}
