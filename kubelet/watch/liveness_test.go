package watch

import (
	"testing"
	"time"
)

var ending = failure{step: Registered, text: "refused", reason: ofDeath}

func (s *sim) checked(path string, found liveness) {
	token := s.token(path)
	s.do(func() { s.m.checked(token, found, ending) })
}

func (s *sim) hungUp(path string) {
	token := s.token(path)
	s.do(func() { s.m.hungUp(token) })
}

func inUse(t *testing.T, grace time.Duration) *sim {
	s := newSim(t, func(r *rules) { r.Grace = grace })
	s.registered("a", "n")
	return s
}

func TestDeath(t *testing.T) {
	for _, grace := range []time.Duration{0, time.Minute} {
		s := inUse(t, grace)
		s.after(time.Hour)
		s.want()
		s.hungUp("a")
		s.want("check a")
		s.checked("a", dead)
		if s.m.places["a"].now.status.Dead {
			t.Error("one refusal is death")
		}
		s.pauses()
		s.want("check a")
		s.checked("a", dead)
		if got := s.m.places["a"].now.status; !got.Dead || got.Reason != ofDeath || got.Phase != Registered {
			t.Errorf("status %+v", got)
		}
		if grace == 0 {
			s.after(24 * time.Hour)
			s.want()
			continue
		}
		if got := s.pauses(); got != grace {
			t.Errorf("a grace of %s", got)
		}
		s.want("deregister a")
		s.ok(deRegister, "a")
		if got := s.m.places["a"].now.status; got.Dead || got.Phase != Failed || got.Step != Registered {
			t.Errorf("status %+v", got)
		}
		s.pauses()
		s.want("ask a")
	}
}

func TestRevival(t *testing.T) {
	s := inUse(t, time.Minute)
	s.hungUp("a")
	s.pauses()
	s.checked("a", dead)
	s.did = nil
	s.pauses()
	s.checked("a", dead)
	s.did = nil
	token := s.token("a")
	s.do(func() { s.m.act(s.m.sockets[token], checkAlive) })
	s.checked("a", alive)
	if got := s.m.places["a"].now.status; got.Dead || got.Error != "" || !got.NextTry.IsZero() {
		t.Errorf("status %+v", got)
	}
	s.did = nil
	s.after(time.Hour)
	s.want()
}

// A plugin that ends every connection soon is looked at ever more rarely.
func TestRestless(t *testing.T) {
	s := inUse(t, 0)
	var last time.Duration
	for range 20 {
		s.hungUp("a")
		last = s.pauses()
		s.want("check a")
		s.checked("a", alive)
	}
	if last != mostRare {
		t.Errorf("looks come every %s", last)
	}
	s.after(time.Minute)
	s.hungUp("a")
	s.want("check a") // at once, after a calm time
	s.checked("a", unsure)
	s.pauses()
	s.want("check a")
}

func TestNoLookAtWhatLeaves(t *testing.T) {
	s := inUse(t, 0)
	s.hungUp("a")
	s.pauses()
	s.want("check a")
	s.gone("a")
	s.want("deregister a")
	s.checked("a", dead)
	s.hungUp("a")
	s.ok(deRegister, "a")
	s.want()
	s.do(func() { s.m.hungUp(12345) })
}
