package watch

import (
	"math/rand/v2"
	"time"
)

// release retries until the plugin is deregistered. It stops when the host
// closes, and hands over to orphan when a socket waits for the path.
func (s *socket) release() {
	s.closeConn()
	for s.held {
		select { // only later changes interrupt the pause
		case <-s.changed:
		default:
		}
		s.update(DeRegistering, func(st *Status) { st.NextTry, st.Dead = time.Time{}, false })
		p := s.status.Plugin
		failed := s.deregister(s.calls, p)
		if s.held = failed != nil; !s.held {
			return
		}
		pause := s.fail(*failed)
		switch {
		case s.serving.Err() != nil:
			s.recordLeft(p, *failed)
			s.held = false
		case s.replaced():
			s.orphan(p, s.failures)
			s.held = false
		default:
			select {
			case <-time.After(pause):
			case <-s.changed:
			case <-s.serving.Done():
			}
		}
	}
}

func (s *socket) replaced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paths[s.path].next != nil
}

func (s *socket) fail(f failure) (pause time.Duration) {
	s.failures++
	pause = s.o.BackOff.pause(s.failures)
	s.update(Failed, func(st *Status) {
		st.Step, st.Error, st.Reason = f.step, f.text, f.reason
		st.NextTry = time.Now().Add(pause)
	})
	return pause
}

// pause ends early with the file, or with a missing handler's arrival.
func (s *socket) pause(f failure, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for !f.noHandler || s.handler(s.status.Type) == nil {
		select {
		case <-timer.C:
			return
		case <-s.ctx.Done():
			return
		case <-s.changed:
		}
	}
}

func (b BackOff) pause(failures int) time.Duration {
	pause := b.First
	for range failures - 1 {
		if pause > b.Most/2 {
			pause = b.Most
			break
		}
		pause *= 2
	}
	return pause - time.Duration(rand.Float64()*b.Jitter*float64(pause))
}
