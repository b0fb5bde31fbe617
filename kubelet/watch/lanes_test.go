package watch

import (
	"fmt"
	"testing"
	"time"
)

func TestTurns(t *testing.T) {
	s := newSim(t, func(r *rules) { r.Concurrency = 10 })
	s.registered("a", "n")
	s.found("b", "c", "x")
	s.want("ask b", "ask c", "ask x")
	s.asked("b", "T", "n")
	s.asked("c", "T", "n")
	s.asked("x", "T", "another")
	s.want("validate b", "validate x")
	s.phase("c", Waiting)
	s.gone("a") // waits behind c
	s.ok(validate, "b")
	s.want("register b")
	s.ok(register, "b")
	s.want("validate c", "tell b")
	s.failed(validate, "c", broken)
	s.want("deregister a", "tell c: RegisterPlugin error -- plugin validation failed with err: "+sorry)
	s.ok(deRegister, "a")
	s.phase("a", Gone)
	if len(s.m.turns) != 1 {
		t.Errorf("turns left: %v", s.m.turns)
	}
}

func TestWithdrawnFromTurn(t *testing.T) {
	s := newSim(t, nil)
	s.found("a", "b")
	s.asked("a", "T", "n")
	s.asked("b", "T", "n")
	s.want("ask a", "ask b", "validate a")
	s.gone("b")
	s.phase("b", Gone)
	s.failed(validate, "a", broken)
	s.want("tell a: RegisterPlugin error -- plugin validation failed with err: " + sorry)
	if len(s.m.turns) != 0 {
		t.Errorf("turns left: %v", s.m.turns)
	}
}

func TestLanes(t *testing.T) {
	s := newSim(t, nil) // 2 at a time, 8 aside, 8 that hung before
	var all []string
	for i := range 30 {
		all = append(all, fmt.Sprintf("p%02d", i))
	}
	s.found(all...)
	s.want("ask p00", "ask p01")
	for i := 2; i < 10; i += 2 { // the first ones hang, and are moved aside
		s.after(patience)
		s.want("ask "+all[i], "ask "+all[i+1])
	}
	s.after(patience)
	s.want() // nobody moves any more
	s.asked("p09", "T", "n")
	s.want("validate p09", "ask p10")
	hung := failure{step: Asking, text: "slow", hung: true}
	s.failed(ask, "p00", hung) // makes room aside for p08
	s.after(patience)
	s.want("ask p11")
	s.ok(validate, "p09")
	s.ok(register, "p09")
	s.want("register p09")
	s.failed(ask, "p10", broken) // who is told comes before who is asked
	s.want("tell p09")
	s.after(time.Second)
	s.want("ask p00") // in the lane of those that hung
	if l := s.m.lanes; l.fast != 2 || l.slow != 8 || l.hung != 1 {
		t.Errorf("lanes: %d, %d, %d", l.fast, l.slow, l.hung)
	}
}

// A queue that is never empty stays as large as what waits in it.
func TestQueue(t *testing.T) {
	var q queue
	next := 0
	for i := range 10_000 {
		q.push(&socket{token: uint64(i), doing: queued})
		if i%7 == 0 { // gives up
			q.waiting[len(q.waiting)-1].doing = nothing
		}
		if i < 10 {
			continue
		}
		if next%7 == 0 {
			next++
		}
		if s := q.pop(queued); s == nil || s.token != uint64(next) {
			t.Fatalf("got %v, want %d", s, next)
		}
		if next++; q.first == len(q.waiting) {
			break
		}
	}
	if cap(q.waiting) > 100 || next < 60 {
		t.Errorf("room for %d, after %d", cap(q.waiting), next)
	}
}
