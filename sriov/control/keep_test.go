package control

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/sriov/gate"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// paper steps a keep by hand.
type paper struct {
	t *testing.T
	k *keep
	s time.Duration // since noon
}

func newPaper(t *testing.T) *paper { return &paper{t: t, k: &keep{}} }

// step tells an event, and compares what is to be done.
func (p *paper) step(e keepEvent, want ...string) {
	p.t.Helper()
	if got := words(p.k.step(noon.Add(p.s), e)); strings.Join(got, ", ") != strings.Join(want, ", ") {
		p.t.Fatalf("at %s, %T: got %q, want %q", p.s, e, got, want)
	}
}

// wait goes to the next moment at which something is to be done.
func (p *paper) wait(most time.Duration, want ...string) {
	p.t.Helper()
	at := p.k.next()
	if at.IsZero() || at.Sub(noon.Add(p.s)) > most {
		p.t.Fatalf("at %s: next is at %s", p.s, at)
	}
	p.s = at.Sub(noon)
	p.step(tick{}, want...)
}

func (p *paper) state(want KeeperState) {
	p.t.Helper()
	if got := p.k.told.State; got != want {
		p.t.Fatalf("at %s: state %s, want %s (%s)", p.s, got, want, p.k.told.Reason)
	}
}

func words(all []keepAction) []string {
	var said []string
	for _, a := range all {
		switch a := a.(type) {
		case open:
			said = append(said, fmt.Sprintf("open %d gen %d", a.stream, a.claim.Generation))
		case drop:
			said = append(said, fmt.Sprintf("drop %d", a.stream))
		case beat:
			said = append(said, fmt.Sprintf("beat %d", a.stream))
		case withdraw:
			said = append(said, fmt.Sprintf("withdraw %q", a.session))
		case answer:
			said = append(said, fmt.Sprintf("answer %d %t %v", a.ask, a.result.Acknowledged, a.err != nil))
		case lost:
			said = append(said, "lost "+a.by)
		}
	}
	return said
}

func plugin(code codes.Code, reason string) failure {
	return failure{said: true, code: code, reason: reason, err: &End{code, reason}}
}

var (
	gone   = failure{nobody: true, reason: "nobody", err: ErrNobody}
	broke  = failure{reason: "broke", err: errors.New("broke")}
	gen    = func(n int64) Claim { return Claim{Generation: n} }
	hears  = func(id uint64) statusHeard { return statusHeard{stream: id, session: fmt.Sprint("s", id)} }
	refuse = func(id uint64, f failure) streamEnded { return streamEnded{id, f} }
)

// held is a paper that holds generation 1 in stream 1.
func held(t *testing.T, c Claim) *paper {
	p := newPaper(t)
	p.step(wanted{c}, "open 1 gen 1")
	p.state(StateEnabling)
	p.step(hears(1))
	p.state(StateHeld)
	return p
}

func TestKeepRestarts(t *testing.T) {
	p := held(t, gen(1))
	p.step(wanted{gen(1)}) // nothing changes
	p.s = 10 * time.Second
	p.step(refuse(1, broke), "lost connection")
	p.state(StateEnabling)
	p.wait(soonPause, "open 2 gen 1")
	for id := uint64(2); id < 12; id++ {
		p.step(refuse(id, gone))
		p.state(StateNobody)
		p.wait(soonMost, fmt.Sprintf("open %d gen 1", id+1))
	}
	p.step(hears(12))
	p.state(StateHeld)
	if p.k.told.Reason != "" {
		t.Errorf("reason %q", p.k.told.Reason)
	}
}

func TestKeepStartsOverOnlyAfterAWhile(t *testing.T) {
	p := held(t, gen(1))
	var pauses []time.Duration
	for id := uint64(1); id < 6; id++ {
		p.step(refuse(id, broke), "lost connection")
		before := p.s
		p.wait(soonMost, fmt.Sprintf("open %d gen 1", id+1))
		pauses = append(pauses, p.s-before)
		p.step(hears(id + 1))
	}
	if pauses[0] != soonPause || pauses[4] <= 4*soonPause {
		t.Errorf("pauses %v", pauses)
	}
	p.s += steady
	p.step(refuse(6, broke), "lost connection")
	p.wait(soonPause, "open 7 gen 1")
}

func TestKeepIsRefused(t *testing.T) {
	p := newPaper(t)
	p.step(wanted{gen(1)}, "open 1 gen 1")
	var last time.Duration
	for id := uint64(1); id < 15; id++ {
		p.step(refuse(id, plugin(codes.FailedPrecondition, "another hash")))
		p.state(StateRefused)
		p.step(wanted{gen(1)}) // the same again is no reason to hurry
		before := p.s
		p.wait(slowMost, fmt.Sprintf("open %d gen 1", id+1))
		if pause := p.s - before; pause < last || pause < slowPause {
			t.Fatalf("pause %s after %s", pause, last)
		} else {
			last = pause
		}
	}
	if last != slowMost {
		t.Errorf("the last pause is %s", last)
	}
	// What comes with the next Enable is tried at once.
	p.step(refuse(15, plugin(codes.FailedPrecondition, "another hash")))
	p.step(wanted{gen(2)}, "open 16 gen 2")
}

// Whoever took over keeps the devices; an own Enable takes them again.
func TestKeepDoesNotFight(t *testing.T) {
	for state, why := range map[KeeperState]failure{
		StateSuperseded: {said: true, code: codes.Aborted, other: true, reason: "superseded"},
		StateDisabled:   plugin(codes.OK, "disabled"),
	} {
		p := held(t, gen(1))
		p.step(refuse(1, why), "lost "+why.code.String())
		p.state(state)
		if at := p.k.next(); !at.IsZero() {
			t.Errorf("%s: something is to be done at %s", state, at)
		}
		p.s = time.Hour
		p.step(tick{})
		p.step(wanted{gen(1)}, "open 2 gen 1")
	}
	p := held(t, gen(1))
	p.step(refuse(1, plugin(codes.Aborted, "the configuration changed")), "lost Aborted")
	p.state(StateRefused)
	p.wait(slowPause, "open 2 gen 1")
}

func TestKeepTakesOverFromItself(t *testing.T) {
	p := held(t, gen(1))
	p.step(wanted{gen(2)}, "open 2 gen 2")
	p.state(StateHeld)
	// Either order is possible.
	p.step(refuse(1, failure{said: true, code: codes.Aborted, other: true}))
	p.step(hears(2))
	p.state(StateHeld)
	p.step(wanted{gen(3)}, "open 3 gen 3")
	p.step(hears(3), "drop 2")
	p.step(refuse(2, plugin(codes.Aborted, "")))
	p.state(StateHeld)
	if p.k.told.Held.Generation != 3 {
		t.Errorf("held %+v", p.k.told.Held)
	}
	// What is refused leaves what was.
	p.step(wanted{gen(4)}, "open 4 gen 4")
	p.step(refuse(4, plugin(codes.FailedPrecondition, "hash")))
	p.state(StateHeld)
	if s := p.k.told; s.Held.Generation != 3 || s.Wanted.Generation != 4 || s.Reason != "hash" {
		t.Errorf("%+v", s)
	}
	p.wait(slowPause, "open 5 gen 4")
}

// A plugin that speaks the proposal may not know of taking over.
func TestKeepOfTheProposal(t *testing.T) {
	p := newPaper(t)
	p.step(wanted{Claim{Generation: 1, Lease: time.Second}}, "open 1 gen 1")
	p.step(statusHeard{stream: 1})
	p.state(StateHeld)
	if p.k.told.Extended {
		t.Error("it has no extensions")
	}
	p.wait(awake) // and no heartbeats
	p.step(wanted{gen(2)}, "drop 1", "open 2 gen 2")
	p.step(statusHeard{stream: 2})
	p.step(unwanted{1}, `withdraw ""`)
	p.step(withdrawn{why: new(plugin(codes.Unimplemented, "what"))}, "drop 2", "answer 1 false false")
	p.state(StateIdle)
}

func TestKeepBeats(t *testing.T) {
	p := held(t, Claim{Generation: 1, Lease: 3 * time.Second})
	for range 5 {
		before := p.s
		p.wait(time.Second, "beat 1")
		if p.s-before != time.Second {
			t.Errorf("a heartbeat after %s", p.s-before)
		}
		p.step(beaten{stream: 1})
	}
	p.wait(time.Second, "beat 1")
	p.step(beaten{1, &broke})
	if p.state(StateHeld); p.k.told.Reason != "Heartbeat: broke" {
		t.Errorf("reason %q", p.k.told.Reason)
	}
	p.wait(time.Second, "beat 1")
	p.step(beaten{1, new(plugin(codes.Unimplemented, ""))})
	p.wait(awake)
	p.step(refuse(1, plugin(codes.DeadlineExceeded, "no Heartbeat")), "lost DeadlineExceeded")
	p.wait(soonPause, "open 2 gen 1")
}

// A process that stood still may know what is no longer so.
func TestKeepStoodStill(t *testing.T) {
	over := plugin(codes.DeadlineExceeded, "no Heartbeat")
	for name, of := range map[string]struct {
		recheck bool
		lease   time.Duration
		still   time.Duration
		why     failure
		want    KeeperState
	}{
		"lease":                 {true, time.Second, 3 * time.Second, over, StateStale},
		"broken":                {true, time.Second, 3 * time.Second, broke, StateStale},
		"not asked for":         {false, time.Second, 3 * time.Second, over, StateEnabling},
		"the plugin stood":      {true, 9 * time.Second, 3 * time.Second, over, StateEnabling},
		"no lease":              {true, 0, time.Minute, broke, StateStale},
		"no lease, not so long": {true, 0, 10 * time.Second, broke, StateEnabling},
		"the plugin ended":      {true, time.Second, 3 * time.Second, plugin(codes.Unavailable, "stops"), StateEnabling},
	} {
		t.Run(name, func(t *testing.T) {
			p := held(t, Claim{Generation: 1, Lease: of.lease})
			p.k.recheck = of.recheck
			p.s = of.still
			p.k.step(noon.Add(p.s), tick{})
			p.step(refuse(1, of.why), "lost "+of.why.label())
			p.state(of.want)
			p.step(wanted{gen(2)}, "open 2 gen 2")
		})
	}
}

func TestKeepDisables(t *testing.T) {
	done := withdrawn{result: Withdrawal{Acknowledged: true}}
	idle := func(name string, then func(*paper)) {
		t.Run(name, func(t *testing.T) {
			p := newPaper(t)
			p.step(unwanted{1}, `withdraw ""`)
			then(p)
		})
	}
	holding := func(name string, then func(*paper)) {
		t.Run(name, func(t *testing.T) {
			p := held(t, gen(1))
			p.step(unwanted{1}, `withdraw "s1"`)
			then(p)
		})
	}
	holding("held", func(p *paper) {
		p.state(StateDisabling)
		p.step(unwanted{2})
		p.step(withdrawn{why: new(plugin(codes.DeadlineExceeded, "not yet"))}, `withdraw "s1"`)
		p.step(done, "drop 1", "answer 1 true false", "answer 2 true false")
		p.state(StateIdle)
		p.step(refuse(1, plugin(codes.OK, "")))
		p.state(StateIdle)
	})
	holding("another holds", func(p *paper) {
		p.step(withdrawn{why: new(plugin(codes.FailedPrecondition, "another"))}, `withdraw ""`)
		p.step(done, "drop 1", "answer 1 true false")
	})
	idle("nobody holds", func(p *paper) {
		p.step(done, "answer 1 true false")
	})
	idle("not controlled", func(p *paper) {
		p.step(withdrawn{why: new(plugin(codes.FailedPrecondition, "not in controlled mode"))}, "answer 1 false false")
	})
	idle("nobody there", func(p *paper) {
		p.step(withdrawn{why: &gone}, "answer 1 false false")
		p.state(StateIdle)
	})
	idle("may not", func(p *paper) {
		p.step(withdrawn{why: &failure{fixed: true, err: errors.New("permission")}}, "answer 1 false true")
	})
	holding("restart meanwhile", func(p *paper) {
		p.step(withdrawn{why: &broke})
		p.step(refuse(1, broke))
		for range 10 {
			p.wait(soonMost, `withdraw ""`)
			p.step(withdrawn{why: &gone})
		}
		p.wait(soonMost, `withdraw ""`)
		p.step(done, "answer 1 true false")
	})
	idle("dies meanwhile", func(p *paper) { // of a keeper that had no stream
		p.step(withdrawn{why: &broke})
		for range 10 {
			p.wait(soonMost, `withdraw ""`)
			p.step(withdrawn{why: &gone})
		}
		p.wait(soonMost, `withdraw ""`)
		p.step(done, "answer 1 true false")
	})
	idle("the plugin stops", func(p *paper) {
		p.step(withdrawn{why: new(plugin(codes.Unavailable, "the plugin stops"))})
		p.wait(soonPause, `withdraw ""`)
		p.step(withdrawn{why: new(plugin(codes.Internal, "odd"))}, "answer 1 false true")
	})
	idle("somebody enables", func(p *paper) {
		p.step(withdrawn{why: new(plugin(codes.Aborted, "another"))}, "answer 1 false true")
	})
	t.Run("on its way", func(t *testing.T) {
		// The plugin may accept what was asked for after it has said that nobody holds.
		p := newPaper(t)
		p.step(wanted{gen(1)}, "open 1 gen 1")
		p.step(unwanted{1}, `withdraw ""`)
		p.step(done)
		p.step(hears(1))
		p.wait(soonPause, `withdraw "s1"`)
		p.step(done, "drop 1", "answer 1 true false")
	})
	holding("gives up", func(p *paper) {
		// Who waited does so no longer; the stream is ended all the same.
		p.step(askGone{1})
		p.step(withdrawn{why: &broke})
		p.wait(soonPause, `withdraw "s1"`)
		p.step(done, "drop 1")
		p.state(StateIdle)
		if at := p.k.next(); !at.IsZero() {
			t.Errorf("something is to be done at %s", at)
		}
	})
	holding("enabled again", func(p *paper) {
		// The DisableDevices under way would end what is opened now.
		p.step(wanted{gen(1)}, "answer 1 false true")
		p.step(refuse(1, plugin(codes.OK, "")))
		p.state(StateEnabling)
		p.step(done, "open 2 gen 1")
		p.step(hears(2))
		p.step(unwanted{2}, `withdraw "s2"`)
		p.step(wanted{gen(1)}, "answer 2 false true")
		p.step(done, "drop 2", "open 3 gen 1") // whatever became of it
	})
}

// A plugin and its socket, as bad as they come: whatever happens, the keeper does
// what it must, and never stops trying.
func TestKeepModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := &keep{recheck: rapid.Bool().Draw(t, "recheck")}
		now := noon
		streams := map[uint64]bool{} // that stand; true: accepted
		asks := map[uint64]bool{}
		beats := map[uint64]bool{}
		withdrawing, wants := false, false
		var lastAsk uint64
		tellIt := func(e keepEvent) {
			acknowledged := false
			for _, a := range k.step(now, e) {
				switch a := a.(type) {
				case open:
					if !wants || withdrawing || k.halted != "" {
						t.Fatalf("opened: wanted %t, withdrawing %t, halted %q", wants, withdrawing, k.halted)
					}
					streams[a.stream] = false
				case drop:
					if _, stands := streams[a.stream]; !stands {
						t.Fatalf("stream %d is dropped twice", a.stream)
					}
					delete(streams, a.stream)
				case withdraw:
					if withdrawing || wants {
						t.Fatal("a withdrawal that must not be")
					}
					withdrawing = true
				case beat:
					if !streams[a.stream] || !wants || beats[a.stream] {
						t.Fatal("a heartbeat that must not be")
					}
					beats[a.stream] = true
				case answer:
					if !asks[a.ask] {
						t.Fatalf("ask %d was not waiting", a.ask)
					}
					delete(asks, a.ask)
					acknowledged = acknowledged || a.result.Acknowledged
				}
			}
			if acknowledged && len(streams) > 0 {
				t.Fatalf("acknowledged, and streams stand: %v", streams)
			}
			if len(streams) > 2 {
				t.Fatalf("%d streams", len(streams))
			}
			next := k.next()
			if wants && k.halted == "" && k.opening == nil && !withdrawing && (k.line == nil || k.line.claim != *k.want) && next.IsZero() {
				t.Fatal("it stopped trying")
			}
			if len(asks) > 0 && !withdrawing && next.IsZero() {
				t.Fatal("it stopped withdrawing")
			}
			if !next.IsZero() && next.After(now.Add(slowMost)) {
				t.Fatalf("next is at %s", next.Sub(now))
			}
		}
		why := rapid.Custom(func(t *rapid.T) failure {
			return rapid.SampledFrom([]failure{
				gone, broke, {fixed: true, err: errors.New("x")}, plugin(codes.OK, ""), plugin(codes.Aborted, ""), {said: true, code: codes.Aborted, other: true},
				plugin(codes.FailedPrecondition, "f"), plugin(codes.Unavailable, "u"), plugin(codes.DeadlineExceeded, "d"), plugin(codes.Unimplemented, "n"),
				plugin(codes.Internal, "i"), plugin(codes.InvalidArgument, "a"),
			}).Draw(t, "why")
		})
		anyStream := func(t *rapid.T) uint64 { return rapid.Uint64Range(1, k.ids+1).Draw(t, "stream") }
		t.Repeat(map[string]func(*rapid.T){
			"enable": func(t *rapid.T) {
				wants = true
				tellIt(wanted{Claim{Generation: rapid.Int64Range(1, 3).Draw(t, "gen"), Lease: rapid.SampledFrom([]time.Duration{0, 3 * time.Second}).Draw(t, "lease")}})
				if len(asks) > 0 {
					t.Fatal("somebody still waits for a withdrawal")
				}
			},
			"disable": func(*rapid.T) {
				lastAsk++
				wants, asks[lastAsk] = false, true
				tellIt(unwanted{lastAsk})
			},
			"give up": func(t *rapid.T) {
				id := rapid.Uint64Range(0, lastAsk).Draw(t, "ask")
				delete(asks, id)
				tellIt(askGone{id})
			},
			"hear": func(t *rapid.T) {
				id := anyStream(t)
				if _, stands := streams[id]; !stands {
					t.Skip()
				}
				streams[id] = true
				session := rapid.SampledFrom([]string{"", fmt.Sprint("s", id)}).Draw(t, "session")
				tellIt(statusHeard{id, session, gate.Status{}})
			},
			"end": func(t *rapid.T) {
				id := anyStream(t)
				delete(streams, id)
				tellIt(streamEnded{id, why.Draw(t, "why")})
			},
			"withdrawn": func(t *rapid.T) {
				if !withdrawing {
					t.Skip()
				}
				withdrawing = false
				e := withdrawn{result: Withdrawal{Acknowledged: true}}
				if rapid.Bool().Draw(t, "fails") {
					e = withdrawn{why: new(why.Draw(t, "why"))}
				}
				tellIt(e)
			},
			"beaten": func(t *rapid.T) {
				id := anyStream(t)
				if !beats[id] {
					t.Skip()
				}
				delete(beats, id)
				e := beaten{stream: id}
				if rapid.Bool().Draw(t, "fails") {
					e.why = new(why.Draw(t, "why"))
				}
				tellIt(e)
			},
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 20000).Draw(t, "ms")) * time.Millisecond)
				tellIt(tick{})
			},
			"next": func(t *rapid.T) {
				next := k.next()
				if next.IsZero() {
					t.Skip()
				}
				if next.After(now) {
					now = next
				}
				tellIt(tick{})
				if again := k.next(); !again.IsZero() && !again.After(now) {
					t.Fatalf("it would spin: %s", again.Sub(now))
				}
			},
		})
	})
}
