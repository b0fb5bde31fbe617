package control

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/sriov/gate"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

type (
	event            interface{ apply(p *script) }
	enableRequested  struct{ claim gate.Claim }
	disableRequested struct{ call uint64 }
	waiterCanceled   struct{ call uint64 }
	statusReceived   struct {
		stream  uint64
		session string
	}
	streamEnded struct {
		stream uint64
		cause  failure
	}
	heartbeatDone struct {
		stream uint64
		cause  *failure
	}
	disableDone struct {
		result gate.Withdrawal
		cause  *failure
	}
	timerExpired struct{}
)

func (e enableRequested) apply(p *script)  { p.k.enable(e.claim) }
func (e disableRequested) apply(p *script) { p.k.disable(p.call(e.call)) }
func (e waiterCanceled) apply(p *script)   { p.k.cancel(p.call(e.call)) }
func (e statusReceived) apply(p *script)   { p.k.received(p.stream(e.stream), e.session, gate.Status{}) }
func (e streamEnded) apply(p *script)      { p.k.ended(p.stream(e.stream), e.cause) }
func (e heartbeatDone) apply(p *script)    { p.k.beaten(p.stream(e.stream), e.cause) }
func (e disableDone) apply(p *script)      { p.k.disabled(e.result, e.cause) }
func (timerExpired) apply(*script)         {}

// script is a dialer that records what it is asked for. Streams and calls have
// numbers from 1.
type script struct {
	k       *renewal
	streams []*stream
	calls   map[uint64]*disableCall
	said    []string

	opens, beats func(stream uint64)
	closes       func(stream uint64)
	disables     func()
	answers      func(call uint64, d *disableCall)
}

func newScript() *script {
	p := &script{calls: map[uint64]*disableCall{}}
	p.k = &renewal{dialer: p}
	return p
}

func (p *script) call(n uint64) *disableCall {
	if p.calls[n] == nil {
		p.calls[n] = &disableCall{}
	}
	return p.calls[n]
}

// stream returns one that does not exist, too.
func (p *script) stream(n uint64) *stream {
	if n == 0 || n > uint64(len(p.streams)) {
		return &stream{}
	}
	return p.streams[n-1]
}

func (p *script) number(s *stream) uint64 { return uint64(slices.Index(p.streams, s) + 1) }

func (p *script) say(format string, args ...any) {
	p.said = append(p.said, fmt.Sprintf(format, args...))
}

func (p *script) open(s *stream) {
	p.streams = append(p.streams, s)
	n := p.number(s)
	s.cancel = func() {
		p.say("drop %d", n)
		p.closes(n)
	}
	p.say("open %d gen %d", n, s.claim.Generation)
	p.opens(n)
}

func (p *script) heartbeat(s *stream, _ time.Duration) {
	p.say("beat %d", p.number(s))
	p.beats(p.number(s))
}

func (p *script) disable(session string) {
	p.say("withdraw %q", session)
	p.disables()
}

func (p *script) lost(code string) { p.say("lost %s", code) }

// step returns what an event causes.
func (p *script) step(now time.Time, e event) []string {
	p.said = nil
	p.k.step(now, func() { e.apply(p) })
	for _, n := range slices.Sorted(maps.Keys(p.calls)) {
		if d := p.calls[n]; d.done {
			delete(p.calls, n)
			p.say("answer %d %t %v", n, d.result.Acknowledged, d.err != nil)
			p.answers(n, d)
		}
	}
	return p.said
}

type machine struct {
	t *testing.T
	*script
	s time.Duration
}

func newMachine(t *testing.T) *machine {
	p := newScript()
	p.opens, p.beats, p.closes = func(uint64) {}, func(uint64) {}, func(uint64) {}
	p.disables, p.answers = func() {}, func(uint64, *disableCall) {}
	return &machine{t: t, script: p}
}

func (p *machine) step(e event, want ...string) {
	p.t.Helper()
	if got := p.script.step(noon.Add(p.s), e); !sameWords(got, want) {
		p.t.Fatalf("at %s, %T: got %q, want %q", p.s, e, got, want)
	}
}

// sameWords ignores the order: an answer is read after the rest.
func sameWords(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func (p *machine) wait(most time.Duration, want ...string) {
	p.t.Helper()
	at := p.k.next()
	if at.IsZero() || at.Sub(noon.Add(p.s)) > most {
		p.t.Fatalf("at %s: next is at %s", p.s, at)
	}
	p.s = at.Sub(noon)
	p.step(timerExpired{}, want...)
}

func (p *machine) state(want RenewerState) {
	p.t.Helper()
	if got := p.k.published.State; got != want {
		p.t.Fatalf("at %s: state %s, want %s (%s)", p.s, got, want, p.k.published.Reason)
	}
}

func plugin(code codes.Code, reason string) failure {
	return failure{answered: true, code: code, reason: reason, err: &gate.End{Code: code, Reason: reason}}
}

var (
	gone     = failure{notServed: true, reason: "not served", err: ErrNotServed}
	broke    = failure{reason: "broke", err: errors.New("broke")}
	gen      = func(n int64) gate.Claim { return gate.Claim{Generation: n} }
	received = func(id uint64) statusReceived { return statusReceived{stream: id, session: fmt.Sprint("s", id)} }
	refuse   = func(id uint64, f failure) streamEnded { return streamEnded{id, f} }
)

func held(t *testing.T, c gate.Claim) *machine {
	p := newMachine(t)
	p.step(enableRequested{c}, "open 1 gen 1")
	p.state(StateEnabling)
	p.step(received(1))
	p.state(StateHeld)
	return p
}

func TestRenewalRestarts(t *testing.T) {
	p := held(t, gen(1))
	p.step(enableRequested{gen(1)})
	p.s = 10 * time.Second
	p.step(refuse(1, broke), "lost connection")
	p.state(StateEnabling)
	p.wait(fastBackoff, "open 2 gen 1")
	for id := uint64(2); id < 12; id++ {
		p.step(refuse(id, gone))
		p.state(StateNotServed)
		p.wait(maxFastBackoff, fmt.Sprintf("open %d gen 1", id+1))
	}
	p.step(received(12))
	p.state(StateHeld)
	if p.k.published.Reason != "" {
		t.Errorf("reason %q", p.k.published.Reason)
	}
}

func TestRenewalResetsBackoffOfStableStreams(t *testing.T) {
	p := held(t, gen(1))
	var pauses []time.Duration
	for id := uint64(1); id < 6; id++ {
		p.step(refuse(id, broke), "lost connection")
		before := p.s
		p.wait(maxFastBackoff, fmt.Sprintf("open %d gen 1", id+1))
		pauses = append(pauses, p.s-before)
		p.step(received(id + 1))
	}
	if pauses[0] != fastBackoff || pauses[4] <= 4*fastBackoff {
		t.Errorf("pauses %v", pauses)
	}
	p.s += backoffReset
	p.step(refuse(6, broke), "lost connection")
	p.wait(fastBackoff, "open 7 gen 1")
}

func TestRenewalIsRefused(t *testing.T) {
	p := newMachine(t)
	p.step(enableRequested{gen(1)}, "open 1 gen 1")
	var last time.Duration
	for id := uint64(1); id < 15; id++ {
		p.step(refuse(id, plugin(codes.FailedPrecondition, "another hash")))
		p.state(StateRefused)
		p.step(enableRequested{gen(1)}) // does not shorten the backoff
		before := p.s
		p.wait(maxSlowBackoff, fmt.Sprintf("open %d gen 1", id+1))
		if pause := p.s - before; pause < last || pause < slowBackoff {
			t.Fatalf("pause %s after %s", pause, last)
		} else {
			last = pause
		}
	}
	if last != maxSlowBackoff {
		t.Errorf("the last pause is %s", last)
	}
	p.step(refuse(15, plugin(codes.FailedPrecondition, "another hash")))
	p.step(enableRequested{gen(2)}, "open 16 gen 2")
}

func TestRenewalStopsWhenSuperseded(t *testing.T) {
	for state, why := range map[RenewerState]failure{
		StateSuperseded: {answered: true, code: codes.Aborted, superseded: true, reason: "superseded"},
		StateDisabled:   plugin(codes.OK, "disabled"),
	} {
		p := held(t, gen(1))
		p.step(refuse(1, why), "lost "+why.code.String())
		p.state(state)
		if at := p.k.next(); !at.IsZero() {
			t.Errorf("%s: something is to be done at %s", state, at)
		}
		p.s = time.Hour
		p.step(timerExpired{})
		p.step(enableRequested{gen(1)}, "open 2 gen 1")
	}
	p := held(t, gen(1))
	p.step(refuse(1, plugin(codes.Aborted, "the configuration changed")), "lost Aborted")
	p.state(StateRefused)
	p.wait(slowBackoff, "open 2 gen 1")
}

func TestRenewalTakesOverFromItself(t *testing.T) {
	p := held(t, gen(1))
	p.step(enableRequested{gen(2)}, "open 2 gen 2")
	p.state(StateHeld)
	p.step(refuse(1, failure{answered: true, code: codes.Aborted, superseded: true}))
	p.step(received(2))
	p.state(StateHeld)
	p.step(enableRequested{gen(3)}, "open 3 gen 3")
	p.step(received(3), "drop 2")
	p.step(refuse(2, plugin(codes.Aborted, "")))
	p.state(StateHeld)
	if p.k.published.Held.Generation != 3 {
		t.Errorf("held %+v", p.k.published.Held)
	}
	p.step(enableRequested{gen(4)}, "open 4 gen 4")
	p.step(refuse(4, plugin(codes.FailedPrecondition, "hash")))
	p.state(StateRefused)
	if s := p.k.published; s.Held.Generation != 3 || s.Desired.Generation != 4 || s.Reason != "hash" {
		t.Errorf("%+v", s)
	}
	p.wait(slowBackoff, "open 5 gen 4")
}

func TestRenewalOfTheProposal(t *testing.T) {
	p := newMachine(t)
	p.step(enableRequested{gate.Claim{Generation: 1, Lease: time.Second}}, "open 1 gen 1")
	p.step(statusReceived{stream: 1})
	p.state(StateHeld)
	p.wait(suspendCheckInterval)
	p.step(enableRequested{gen(2)}, "drop 1", "open 2 gen 2")
	p.step(statusReceived{stream: 2})
	p.step(disableRequested{1}, `withdraw ""`)
	p.step(disableDone{cause: new(plugin(codes.Unimplemented, "what"))}, "drop 2", "answer 1 false false")
	p.state(StateIdle)
}

func TestRenewalSendsHeartbeats(t *testing.T) {
	p := held(t, gate.Claim{Generation: 1, Lease: 3 * time.Second})
	for range 5 {
		before := p.s
		p.wait(time.Second, "beat 1")
		if p.s-before != time.Second {
			t.Errorf("a heartbeat after %s", p.s-before)
		}
		p.step(heartbeatDone{stream: 1})
	}
	p.wait(time.Second, "beat 1")
	p.step(heartbeatDone{1, new(plugin(codes.FailedPrecondition, "an answer"))})
	p.wait(time.Second, "beat 1")
	p.step(heartbeatDone{1, new(plugin(codes.Unimplemented, ""))})
	p.wait(suspendCheckInterval)
	p.step(refuse(1, plugin(codes.DeadlineExceeded, "no Heartbeat")), "lost DeadlineExceeded")
	p.wait(fastBackoff, "open 2 gen 1") // not suspended: fewer events without heartbeats
}

// Heartbeats notice a plugin that hangs, whatever the lease. One that fails after
// a suspension of this process is repeated first.
func TestRenewalNoticesAHungPlugin(t *testing.T) {
	for _, lease := range []time.Duration{0, time.Minute, time.Hour} {
		p := held(t, gate.Claim{Generation: 1, Lease: lease})
		p.wait(suspendCheckInterval)
		p.wait(suspendCheckInterval, "beat 1")
		p.step(heartbeatDone{stream: 1})
		p.wait(suspendCheckInterval)
		p.wait(suspendCheckInterval, "beat 1")
		p.s += max(lease, suspendGap)
		p.step(heartbeatDone{1, &broke}, "beat 1")
		p.state(StateHeld)
		for range 3 {
			p.wait(suspendCheckInterval)
		}
		p.step(heartbeatDone{1, &broke}, "drop 1", "lost connection")
		p.state(StateEnabling)
		p.step(refuse(1, broke))
		p.wait(fastBackoff, "open 2 gen 1")
	}
}

func TestRenewalSuspendedProcess(t *testing.T) {
	over := plugin(codes.DeadlineExceeded, "no Heartbeat")
	for name, of := range map[string]struct {
		lease time.Duration
		still time.Duration
		cause failure
		want  RenewerState
	}{
		"lease":                 {time.Second, 3 * time.Second, over, StateStale},
		"broken":                {time.Second, 3 * time.Second, broke, StateStale},
		"the plugin stood":      {9 * time.Second, 3 * time.Second, over, StateEnabling},
		"no lease":              {0, time.Minute, broke, StateStale},
		"no lease, not so long": {0, 10 * time.Second, broke, StateEnabling},
		"the plugin ended":      {time.Second, 3 * time.Second, plugin(codes.Unavailable, "stops"), StateEnabling},
	} {
		t.Run(name, func(t *testing.T) {
			p := held(t, gate.Claim{Generation: 1, Lease: of.lease})
			p.s = of.still
			p.script.step(noon.Add(p.s), timerExpired{})
			p.step(refuse(1, of.cause), "lost "+of.cause.label())
			p.state(of.want)
			p.step(enableRequested{gen(2)}, "open 2 gen 2")
		})
	}
}

func TestRenewalDisables(t *testing.T) {
	done := disableDone{result: gate.Withdrawal{Acknowledged: true}}
	idle := func(name string, then func(*machine)) {
		t.Run(name, func(t *testing.T) {
			p := newMachine(t)
			p.step(disableRequested{1}, `withdraw ""`)
			then(p)
		})
	}
	holding := func(name string, then func(*machine)) {
		t.Run(name, func(t *testing.T) {
			p := held(t, gen(1))
			p.step(disableRequested{1}, `withdraw "s1"`)
			then(p)
		})
	}
	holding("held", func(p *machine) {
		p.state(StateDisabling)
		p.step(disableRequested{2})
		p.step(disableDone{cause: new(plugin(codes.DeadlineExceeded, "not yet"))}, `withdraw "s1"`)
		p.step(done, "drop 1", "answer 1 true false", "answer 2 true false")
		p.state(StateIdle)
		p.step(refuse(1, plugin(codes.OK, "")))
		p.state(StateIdle)
	})
	holding("another holds", func(p *machine) {
		p.step(disableDone{cause: new(plugin(codes.FailedPrecondition, "another"))}, `withdraw ""`)
		p.step(done, "drop 1", "answer 1 true false")
	})
	idle("no holder", func(p *machine) {
		p.step(done, "answer 1 true false")
	})
	idle("not controlled", func(p *machine) {
		p.step(disableDone{cause: new(plugin(codes.FailedPrecondition, "not in controlled mode"))}, "answer 1 false false")
	})
	idle("not served", func(p *machine) {
		p.step(disableDone{cause: &gone}, "answer 1 false false")
		p.state(StateIdle)
	})
	idle("no permission", func(p *machine) {
		p.step(disableDone{cause: &failure{permanent: true, err: errors.New("permission")}}, "answer 1 false true")
	})
	holding("restart meanwhile", func(p *machine) {
		p.step(disableDone{cause: &broke})
		p.step(refuse(1, broke))
		for range 10 {
			p.wait(maxFastBackoff, `withdraw ""`)
			p.step(disableDone{cause: &gone})
		}
		p.wait(maxFastBackoff, `withdraw ""`)
		p.step(done, "answer 1 true false")
	})
	idle("dies meanwhile", func(p *machine) {
		p.step(disableDone{cause: &broke})
		for range 10 {
			p.wait(maxFastBackoff, `withdraw ""`)
			p.step(disableDone{cause: &gone})
		}
		p.wait(maxFastBackoff, `withdraw ""`)
		p.step(done, "answer 1 true false")
	})
	idle("the plugin stops", func(p *machine) {
		p.step(disableDone{cause: new(plugin(codes.Unavailable, "the plugin stops"))})
		p.wait(fastBackoff, `withdraw ""`)
		p.step(disableDone{cause: new(plugin(codes.Internal, "odd"))}, "answer 1 false true")
	})
	idle("another client enables", func(p *machine) {
		p.step(disableDone{cause: new(plugin(codes.Aborted, "another"))}, "answer 1 false true")
	})
	t.Run("on its way", func(t *testing.T) {
		// The plugin might accept it after answering Disable.
		p := newMachine(t)
		p.step(enableRequested{gen(1)}, "open 1 gen 1")
		p.step(disableRequested{1}, `withdraw ""`)
		p.step(done)
		p.step(received(1))
		p.wait(fastBackoff, `withdraw "s1"`)
		p.step(done, "drop 1", "answer 1 true false")
	})
	holding("gives up", func(p *machine) {
		p.step(waiterCanceled{1})
		p.step(disableDone{cause: &broke})
		p.wait(fastBackoff, `withdraw "s1"`)
		p.step(done, "drop 1")
		p.state(StateIdle)
		if at := p.k.next(); !at.IsZero() {
			t.Errorf("something is to be done at %s", at)
		}
	})
	holding("enabled again", func(p *machine) {
		// DisableDevices in flight would end a new stream.
		p.step(enableRequested{gen(1)}, "answer 1 false true")
		p.step(refuse(1, plugin(codes.OK, "")))
		p.state(StateEnabling)
		p.step(done, "open 2 gen 1")
		p.step(received(2))
		p.step(disableRequested{2}, `withdraw "s2"`)
		p.step(enableRequested{gen(1)}, "answer 2 false true")
		p.step(done, "drop 2", "open 3 gen 1")
	})
}

func TestRenewalModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newScript()
		k := p.k
		now := noon
		streams := map[uint64]bool{}
		asks := map[uint64]bool{}
		beats := map[uint64]bool{}
		withdrawing, wants, acknowledged := false, false, false
		var lastAsk uint64
		p.opens = func(stream uint64) {
			if !wants || withdrawing || k.halted != "" {
				t.Fatalf("opened: wanted %t, withdrawing %t, halted %q", wants, withdrawing, k.halted)
			}
			streams[stream] = false
		}
		p.closes = func(stream uint64) {
			if _, stands := streams[stream]; !stands {
				t.Fatalf("stream %d is dropped twice", stream)
			}
			delete(streams, stream)
		}
		p.disables = func() {
			if withdrawing || wants {
				t.Fatal("a withdrawal that must not be")
			}
			withdrawing = true
		}
		p.beats = func(stream uint64) {
			if !streams[stream] || !wants || beats[stream] {
				t.Fatal("a heartbeat that must not be")
			}
			beats[stream] = true
		}
		p.answers = func(call uint64, d *disableCall) {
			if !asks[call] {
				t.Fatalf("call %d was not waiting", call)
			}
			delete(asks, call)
			acknowledged = acknowledged || d.result.Acknowledged
		}
		sendIt := func(e event) {
			acknowledged = false
			p.step(now, e)
			if acknowledged && len(streams) > 0 {
				t.Fatalf("acknowledged, and streams stand: %v", streams)
			}
			if len(streams) > 2 {
				t.Fatalf("%d streams", len(streams))
			}
			next := k.next()
			if wants && k.halted == "" && k.opening == nil && !withdrawing && (k.current == nil || !k.current.claim.Equal(*k.desired)) && next.IsZero() {
				t.Fatal("it stopped trying")
			}
			if len(asks) > 0 && !withdrawing && next.IsZero() {
				t.Fatal("it stopped withdrawing")
			}
			if !next.IsZero() && next.After(now.Add(maxSlowBackoff)) {
				t.Fatalf("next is at %s", next.Sub(now))
			}
		}
		why := rapid.Custom(func(t *rapid.T) failure {
			return rapid.SampledFrom([]failure{
				gone, broke, {permanent: true, err: errors.New("x")}, plugin(codes.OK, ""), plugin(codes.Aborted, ""), {answered: true, code: codes.Aborted, superseded: true},
				plugin(codes.FailedPrecondition, "f"), plugin(codes.Unavailable, "u"), plugin(codes.DeadlineExceeded, "d"), plugin(codes.Unimplemented, "n"),
				plugin(codes.Internal, "i"), plugin(codes.InvalidArgument, "a"),
			}).Draw(t, "why")
		})
		anyStream := func(t *rapid.T) uint64 { return rapid.Uint64Range(1, uint64(len(p.streams))+1).Draw(t, "stream") }
		t.Repeat(map[string]func(*rapid.T){
			"enable": func(t *rapid.T) {
				wants = true
				sendIt(enableRequested{gate.Claim{Generation: rapid.Int64Range(1, 3).Draw(t, "gen"), Lease: rapid.SampledFrom([]time.Duration{0, 3 * time.Second}).Draw(t, "lease")}})
				if len(asks) > 0 {
					t.Fatal("a caller still waits for a withdrawal")
				}
			},
			"disable": func(*rapid.T) {
				lastAsk++
				wants, asks[lastAsk] = false, true
				sendIt(disableRequested{lastAsk})
			},
			"give up": func(t *rapid.T) {
				id := rapid.Uint64Range(0, lastAsk).Draw(t, "ask")
				delete(asks, id)
				sendIt(waiterCanceled{id})
			},
			"status": func(t *rapid.T) {
				id := anyStream(t)
				if _, stands := streams[id]; !stands {
					t.Skip()
				}
				streams[id] = true
				session := rapid.SampledFrom([]string{"", fmt.Sprint("s", id)}).Draw(t, "session")
				sendIt(statusReceived{id, session})
			},
			"end": func(t *rapid.T) {
				id := anyStream(t)
				delete(streams, id)
				sendIt(streamEnded{id, why.Draw(t, "why")})
			},
			"withdrawn": func(t *rapid.T) {
				if !withdrawing {
					t.Skip()
				}
				withdrawing = false
				e := disableDone{result: gate.Withdrawal{Acknowledged: true}}
				if rapid.Bool().Draw(t, "fails") {
					e = disableDone{cause: new(why.Draw(t, "why"))}
				}
				sendIt(e)
			},
			"beaten": func(t *rapid.T) {
				id := anyStream(t)
				if !beats[id] {
					t.Skip()
				}
				delete(beats, id)
				e := heartbeatDone{stream: id}
				if rapid.Bool().Draw(t, "fails") {
					e.cause = new(why.Draw(t, "why"))
				}
				sendIt(e)
			},
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 20000).Draw(t, "ms")) * time.Millisecond)
				sendIt(timerExpired{})
			},
			"next": func(t *rapid.T) {
				next := k.next()
				if next.IsZero() {
					t.Skip()
				}
				if next.After(now) {
					now = next
				}
				sendIt(timerExpired{})
				if again := k.next(); !again.IsZero() && !again.After(now) {
					t.Fatalf("it would spin: %s", again.Sub(now))
				}
			},
		})
	})
}
