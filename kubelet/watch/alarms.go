package watch

import (
	"container/heap"
	"time"
)

// alarms are the times at which sockets want to be woken. A socket has one at
// a time; one that no longer counts is dropped when it comes to the top.
type alarms struct {
	waiting alarmHeap
	last    uint64
}

type alarm struct {
	at     time.Time
	socket *socket
	number uint64
}

type alarmHeap []alarm

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h alarmHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *alarmHeap) Push(x any)        { *h = append(*h, x.(alarm)) }
func (h *alarmHeap) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = alarm{}
	*h = (*h)[:len(*h)-1]
	return last
}

// wake sets the alarm of a socket.
func (m *machine) wake(s *socket, after time.Duration) {
	m.alarms.last++
	s.alarm = m.alarms.last
	heap.Push(&m.alarms.waiting, alarm{at: m.now.Add(after), socket: s, number: s.alarm})
}

// alarmAt is when the machine wants to be told the time, if at all.
func (m *machine) alarmAt() (at time.Time, any bool) {
	for w := &m.alarms.waiting; w.Len() > 0; heap.Pop(w) {
		if first := (*w)[0]; first.socket.alarm == first.number {
			return first.at, true
		}
	}
	return time.Time{}, false
}

// tick: time has passed.
func (m *machine) tick() {
	for at, any := m.alarmAt(); any && !at.After(m.now); at, any = m.alarmAt() {
		s := heap.Pop(&m.alarms.waiting).(alarm).socket
		s.alarm = 0
		m.woken(s)
	}
}

func (m *machine) woken(s *socket) {
	switch {
	case s.doing == asking || s.doing == telling:
		if !m.lanes.aside(s) {
			m.wake(s, patience)
		}
	case s.doing == redialling:
		m.queue(s)
	case m.closing:
	case s.inUse() && s.status.Dead:
		m.expire(s)
	case s.inUse():
		m.act(s, checkAlive)
	case s.doing == nothing:
		m.again(s)
	}
}
