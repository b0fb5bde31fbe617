package watch

import "time"

// lanes bound the conversations with plugins, in such a way that those that
// hang keep nobody waiting. Who is asked or told takes one of the places of
// the fast lane, and when it has not answered after some patience moves aside
// to the slow one, where there are more. Who hung the last time goes to a lane
// with others of that kind.
type lanes struct {
	limit            int // places of the fast lane
	fast, slow, hung int
	tells            queue // to be told; before those to be asked, who may come back later
	asks             queue
	suspects         queue // to be asked, and hung the last time
}

// lane is where a socket is.
type lane int

const (
	noLane lane = iota
	fastLane
	slowLane
	hungLane
)

const (
	patience = 50 * time.Millisecond
	slower   = 4 // times as many places in the two slow lanes as in the fast one
)

func (l *lanes) toTell(s *socket) { l.tells.push(s) }

func (l *lanes) toAsk(s *socket) {
	if s.hung {
		l.suspects.push(s)
	} else {
		l.asks.push(s)
	}
}

// dispatch begins the conversations for which there is a place.
func (m *machine) dispatch() {
	l := &m.lanes
	for l.fast < l.limit {
		s := l.tells.pop(queuedToTell)
		if s == nil {
			s = l.asks.pop(queued)
		}
		if s == nil {
			break
		}
		s.lane = fastLane
		l.fast++
		m.wake(s, patience)
		m.talk(s)
	}
	for l.hung < slower*l.limit {
		s := l.suspects.pop(queued)
		if s == nil {
			break
		}
		s.lane = hungLane
		l.hung++
		m.talk(s)
	}
}

func (m *machine) talk(s *socket) {
	if s.doing == queued {
		m.ask(s)
	} else {
		m.tell(s)
	}
}

// aside moves a socket out of the fast lane; false: there is no place.
func (l *lanes) aside(s *socket) bool {
	if s.lane != fastLane {
		return true
	}
	if l.slow >= slower*l.limit {
		return false
	}
	l.fast--
	l.slow++
	s.lane = slowLane
	return true
}

// leave gives the place back when a conversation is over.
func (l *lanes) leave(s *socket) {
	switch s.lane {
	case fastLane:
		l.fast--
	case slowLane:
		l.slow--
	case hungLane:
		l.hung--
	}
	s.lane, s.alarm = noLane, 0
}

// queue is first in, first out. Who no longer waits stays in it until it comes
// to the front.
type queue struct {
	waiting []*socket
	first   int
}

func (q *queue) push(s *socket) {
	if q.first > len(q.waiting)/2 { // so that it does not grow for ever
		kept := copy(q.waiting, q.waiting[q.first:])
		clear(q.waiting[kept:])
		q.waiting, q.first = q.waiting[:kept], 0
	}
	q.waiting = append(q.waiting, s)
}

// pop returns the first that still waits for this.
func (q *queue) pop(what doing) *socket {
	for q.first < len(q.waiting) {
		s := q.waiting[q.first]
		q.waiting[q.first] = nil
		q.first++
		if s.doing == what {
			return s
		}
	}
	return nil
}
