package watch

import (
	"testing"
	"time"
)

func TestDeRegisterFails(t *testing.T) {
	s := newSim(t, nil)
	s.registered("a", "n")
	s.gone("a")
	for _, want := range []float64{.5, 1, 2} {
		s.want("deregister a")
		s.failed(deRegister, "a", failure{step: DeRegistering, text: sorry})
		s.phase("a", Failed)
		if got := s.pauses(); got != time.Duration(want*1e9) {
			t.Fatalf("a pause of %s, want %v s", got, want)
		}
	}
	s.want("deregister a")
	s.ok(deRegister, "a")
	s.phase("a", Gone)
}

// A handler that cannot let go of the last plugin keeps out the next one for
// one more try only.
func TestOrphans(t *testing.T) {
	stuck := failure{step: DeRegistering, text: sorry}
	prepare := func(t *testing.T) (s *sim, orphan uint64) {
		s = newSim(t, func(r *rules) { r.Concurrency = 10 })
		s.registered("a", "n")
		s.gone("a")
		s.failed(deRegister, "a", stuck)
		s.found("a")
		s.want("deregister a", "deregister a")
		orphan = s.token("a")
		s.failed(deRegister, "a", stuck)
		s.want("ask a")
		return s, orphan
	}
	t.Run("same instance again", func(t *testing.T) {
		s, _ := prepare(t)
		s.asked("a", "T", "n")
		s.ok(validate, "a")
		s.ok(register, "a")
		s.ok(tell, "a")
		s.want("validate a", "register a", "tell a")
		s.after(time.Hour)
		s.want() // the orphan is forgotten
		if len(s.m.sockets) != 1 || len(s.m.orphans) != 0 {
			t.Errorf("left: %v, %v", s.m.sockets, s.m.orphans)
		}
	})
	t.Run("same instance while it waits", func(t *testing.T) {
		s, _ := prepare(t)
		s.asked("a", "T", "n")
		s.want("validate a")
		s.after(time.Minute)
		s.ok(validate, "a")
		s.ok(register, "a")
		s.want("register a", "tell a")
		if len(s.m.turns) != 0 {
			t.Error("the orphan still waits for its turn")
		}
	})
	t.Run("another instance", func(t *testing.T) {
		s, orphan := prepare(t)
		s.asked("a", "T", "other")
		s.ok(validate, "a")
		s.ok(register, "a")
		s.ok(tell, "a")
		s.want("validate a", "register a", "tell a")
		s.after(time.Second)
		s.want("deregister a")
		s.result(deRegister, orphan, nil)
		s.phase("a", Registered)
		if len(s.m.orphans) != 0 || len(s.m.sockets) != 1 {
			t.Errorf("left: %v", s.m.orphans)
		}
	})
}

func TestCutOffAndNotTakenBack(t *testing.T) {
	s := newSim(t, nil)
	s.found("a")
	s.asked("a", "T", "n")
	s.ok(validate, "a")
	s.failed(register, "a", failure{text: sorry, cut: true})
	s.failed(deRegister, "a", failure{step: DeRegistering, text: sorry})
	s.ok(tell, "a")
	s.did = nil
	s.pauses()
	s.want("deregister a") // before anything else
	s.ok(deRegister, "a")
	s.want("ask a")
}

func TestNotifyFailsAndDeRegisterToo(t *testing.T) {
	s := newSim(t, nil)
	s.found("a")
	s.asked("a", "T", "n")
	s.ok(validate, "a")
	s.ok(register, "a")
	s.failed(tell, "a", failure{step: Notifying, text: "deaf"})
	s.failed(deRegister, "a", failure{step: DeRegistering, text: sorry})
	s.want("ask a", "validate a", "register a", "tell a", "deregister a")
	s.pauses()
	s.want("deregister a") // before anything else
	s.ok(deRegister, "a")
	s.phase("a", Failed)
	if got := s.m.places["a"].now.status; got.Step != Notifying || got.Error != "deaf" {
		t.Errorf("status %+v", got)
	}
	s.pauses()
	s.want("ask a")
}
