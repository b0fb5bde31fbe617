package watch

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sim plays the world for a machine: a clock, and what it was told to do.
type sim struct {
	t   *testing.T
	m   *machine
	now time.Time
	did []string // actions since want, such as "validate a"
}

func newSim(t *testing.T, change func(*rules)) *sim {
	r := rules{
		Dial: 10 * time.Second, BackOff: BackOff{First: 500 * time.Millisecond, Most: 122 * time.Second},
		Concurrency: 2, random: func() float64 { return 0 },
	}
	if change != nil {
		change(&r)
	}
	s := &sim{t: t, m: newMachine(r), now: time.Unix(1000, 0)}
	s.handle("T")
	return s
}

var verbs = map[verb]string{
	ask: "ask", cancel: "cancel", validate: "validate", register: "register", tell: "tell",
	hangUp: "hang up", keep: "keep", deRegister: "deregister", checkAlive: "check", forgetAlive: "forget",
}

func (s *sim) do(f func()) {
	for _, a := range s.m.do(s.now, f).actions {
		did := verbs[a.do] + " " + a.plugin.Socket
		if a.do == tell {
			did += ": " + a.text
		}
		if a.do != hangUp && a.do != keep && a.do != forgetAlive {
			s.did = append(s.did, strings.TrimSuffix(did, ": "))
		}
	}
}

// want compares what was to be done since the last want.
func (s *sim) want(actions ...string) {
	s.t.Helper()
	if diff := cmp.Diff(strings.Join(actions, "; "), strings.Join(s.did, "; ")); diff != "" {
		s.t.Fatalf("want-, got+:\n%s", diff)
	}
	s.did = nil
}

func (s *sim) token(path string) uint64 { return s.m.places[path].now.token }

func (s *sim) handle(kind string) { s.do(func() { s.m.handle(kind) }) }
func (s *sim) found(paths ...string) {
	for _, path := range paths {
		s.do(func() { s.m.found(path) })
	}
}
func (s *sim) gone(path string)      { s.do(func() { s.m.gone(path) }) }
func (s *sim) after(d time.Duration) { s.now = s.now.Add(d); s.do(s.m.tick) }

func said(kind, name, endpoint string) Plugin {
	return Plugin{Type: kind, Name: name, Endpoint: endpoint}
}

func (s *sim) asked(path, kind, name string) {
	token := s.token(path)
	s.do(func() { s.m.asked(token, said(kind, name, ""), nil) })
}

// failed ends the action that runs for a path.
func (s *sim) failed(what verb, path string, f failure) { s.result(what, s.token(path), &f) }
func (s *sim) ok(what verb, path string)                { s.result(what, s.token(path), nil) }

func (s *sim) result(what verb, token uint64, f *failure) {
	s.do(func() {
		switch what {
		case ask:
			s.m.asked(token, Plugin{}, f)
		case validate:
			s.m.validated(token, f)
		case register:
			s.m.registered(token, f)
		case tell:
			s.m.told(token, f)
		case deRegister:
			s.m.deregistered(token, f)
		}
	})
}

// registered brings a socket to that phase.
func (s *sim) registered(path, name string) {
	s.t.Helper()
	s.found(path)
	s.asked(path, "T", name)
	s.ok(validate, path)
	s.ok(register, path)
	s.ok(tell, path)
	s.want("ask "+path, "validate "+path, "register "+path, "tell "+path)
	s.phase(path, Registered)
}

func (s *sim) phase(path string, want Phase) {
	s.t.Helper()
	switch p := s.m.places[path]; {
	case p == nil && want != Gone:
		s.t.Fatalf("%s is gone, want %s", path, want)
	case p != nil && p.now.status.Phase != want:
		s.t.Fatalf("%s is %s, want %s", path, p.now.status.Phase, want)
	}
}

// pauses lets time pass until the machine does something, and returns how long
// that was.
func (s *sim) pauses() time.Duration {
	begun := s.now
	for len(s.did) == 0 {
		at, any := s.m.alarmAt()
		if !any {
			s.t.Fatal("nothing will ever happen")
		}
		s.now = at
		s.do(s.m.tick)
	}
	return s.now.Sub(begun)
}

const sorry = "out of order"

var broken = failure{step: Asking, text: sorry}

func TestOutcomes(t *testing.T) {
	for name, c := range map[string]struct {
		play func(s *sim)
		want []string
		then Phase
	}{
		"success": {func(s *sim) { s.asked("a", "T", "n"); s.ok(validate, "a"); s.ok(register, "a"); s.ok(tell, "a") },
			[]string{"validate a", "register a", "tell a"}, Registered},
		"GetInfo fails": {func(s *sim) { s.failed(ask, "a", broken) }, nil, Failed},
		"type unknown": {func(s *sim) { s.asked("a", "U", "n"); s.ok(tell, "a") },
			[]string{"tell a: RegisterPlugin error -- no handler registered for plugin type: U at socket a"}, Failed},
		"Validate fails": {func(s *sim) { s.asked("a", "T", "n"); s.failed(validate, "a", broken); s.ok(tell, "a") },
			[]string{"validate a", "tell a: RegisterPlugin error -- plugin validation failed with err: " + sorry}, Failed},
		"Register fails": {func(s *sim) {
			s.asked("a", "T", "n")
			s.ok(validate, "a")
			s.failed(register, "a", broken)
			s.ok(tell, "a")
		}, []string{"validate a", "register a", "tell a: RegisterPlugin error -- plugin registration failed with err: " + sorry}, Failed},
		"Register cut off": {func(s *sim) {
			s.asked("a", "T", "n")
			s.ok(validate, "a")
			s.failed(register, "a", failure{text: sorry, cut: true})
			s.ok(deRegister, "a")
			s.failed(tell, "a", broken)
		}, []string{"validate a", "register a", "deregister a", "tell a: RegisterPlugin error -- plugin registration failed with err: " + sorry}, Failed},
		"Notify fails": {func(s *sim) {
			s.asked("a", "T", "n")
			s.ok(validate, "a")
			s.ok(register, "a")
			s.failed(tell, "a", broken)
			s.ok(deRegister, "a")
		}, []string{"validate a", "register a", "tell a", "deregister a"}, Failed},
		"Notify of a refusal fails": {func(s *sim) { s.asked("a", "U", "n"); s.failed(tell, "a", broken) },
			[]string{"tell a: RegisterPlugin error -- no handler registered for plugin type: U at socket a"}, Failed},
		"gone while asked": {func(s *sim) { s.gone("a"); s.asked("a", "T", "n") }, []string{"cancel a"}, Gone},
		"gone while validated": {func(s *sim) { s.asked("a", "T", "n"); s.gone("a"); s.ok(validate, "a") },
			[]string{"validate a"}, Gone},
		"gone while registered": {func(s *sim) {
			s.asked("a", "T", "n")
			s.ok(validate, "a")
			s.gone("a")
			s.ok(register, "a")
			s.ok(tell, "a")
			s.ok(deRegister, "a")
		}, []string{"validate a", "register a", "tell a", "deregister a"}, Gone},
		"gone while Register fails": {func(s *sim) {
			s.asked("a", "T", "n")
			s.ok(validate, "a")
			s.gone("a")
			s.failed(register, "a", broken)
			s.ok(tell, "a")
		}, []string{"validate a", "register a", "tell a: RegisterPlugin error -- plugin registration failed with err: " + sorry}, Gone},
		"gone while notified in vain": {func(s *sim) {
			s.asked("a", "T", "n")
			s.ok(validate, "a")
			s.ok(register, "a")
			s.gone("a")
			s.failed(tell, "a", broken)
			s.ok(deRegister, "a")
		}, []string{"validate a", "register a", "tell a", "deregister a"}, Gone},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, nil)
			s.found("a")
			s.want("ask a")
			c.play(s)
			s.want(c.want...)
			s.phase("a", c.then)
			if c.then != Failed {
				if !s.m.idle() {
					t.Errorf("%d actions run", s.m.running)
				}
				return
			}
			if pause := s.pauses(); pause != 500*time.Millisecond {
				t.Errorf("again after %s", pause)
			}
			s.want("ask a") // from scratch
		})
	}
}

func TestPausesGrowAndBegin(t *testing.T) {
	s := newSim(t, nil)
	s.found("a")
	for _, want := range []float64{.5, 1, 2, 4, 8, 16, 32, 64, 122, 122} {
		s.want("ask a")
		s.failed(ask, "a", broken)
		if got := s.pauses(); got != time.Duration(want*1e9) {
			t.Fatalf("a pause of %s, want %v s", got, want)
		}
	}
	s.want("ask a")
	s.failed(ask, "a", broken)
	s.gone("a")
	s.found("a") // another socket owes nothing
	s.want("ask a")
	s.failed(ask, "a", broken)
	if got := s.pauses(); got != 500*time.Millisecond {
		t.Errorf("a new socket pauses for %s", got)
	}
	s.want("ask a")
	s.asked("a", "T", "n")
	s.ok(validate, "a")
	s.ok(register, "a")
	s.ok(tell, "a")
	if left := s.m.places["a"].now; left.failures != 0 || left.status.Error != "" || left.status.Attempts != 2 {
		t.Errorf("after success: %+v", left.status)
	}
}

func TestJitter(t *testing.T) {
	b := BackOff{First: time.Second, Most: time.Minute, Jitter: 0.2}
	for _, c := range []struct {
		random float64
		want   time.Duration
	}{{0, 4 * time.Second}, {0.5, 3600 * time.Millisecond}, {1, 3200 * time.Millisecond}} {
		if got := b.pause(3, c.random); got != c.want {
			t.Errorf("chance %v: %s, want %s", c.random, got, c.want)
		}
	}
	for _, most := range []time.Duration{time.Minute, math.MaxInt64} {
		if got := (BackOff{First: time.Second, Most: most}).pause(1<<40, 0); got != most {
			t.Errorf("after very many failures: %s", got)
		}
	}
}

// Between bind and listen a new socket refuses; that is one attempt.
func TestRefusedAtFirst(t *testing.T) {
	s := newSim(t, nil)
	s.found("a")
	s.want("ask a")
	refusing := failure{step: Asking, text: "refused", refused: true}
	var pauses []time.Duration
	for begun := s.now; s.now.Sub(begun) < 10*time.Second; s.want("ask a") {
		s.failed(ask, "a", refusing)
		pauses = append(pauses, s.pauses())
	}
	if at := s.m.places["a"].now.status; pauses[0] != shortest || slices.Max(pauses) > longest || at.Attempts != 1 || at.Phase != Asking || at.Error != "refused" {
		t.Errorf("pauses %v, status %+v", pauses, at)
	}
	s.failed(ask, "a", refusing)
	s.phase("a", Failed)
	if pause := s.pauses(); pause != 500*time.Millisecond {
		t.Errorf("then a pause of %s", pause)
	}
	s.want("ask a")
	s.failed(ask, "a", refusing) // an old socket that refuses is dead
	if pause := s.pauses(); pause != time.Second {
		t.Errorf("then a pause of %s", pause)
	}
	s.want("ask a")
}

func TestReplaced(t *testing.T) {
	s := newSim(t, nil)
	s.registered("a", "n")
	s.gone("a")
	s.want("deregister a")
	s.found("a")
	s.gone("a")
	s.found("a") // twice meanwhile; the last one counts
	s.want()
	s.ok(deRegister, "a")
	s.want("ask a")
	s.found("a") // without gone
	s.want("cancel a")
	s.asked("a", "T", "n")
	s.want("ask a")
	s.asked("a", "T", "other")
	s.want("validate a")
	s.gone("a")
	s.found("a")
	s.ok(validate, "a")
	s.want("ask a")
}

func TestHandlerAddedLater(t *testing.T) {
	s := newSim(t, nil)
	s.found("a", "b")
	s.asked("a", "U", "n")
	s.asked("b", "U", "m")
	s.ok(tell, "a") // while b is being told
	s.did = nil
	s.handle("U")
	s.want("ask a")
	s.ok(tell, "b")
	s.want("ask b")
	s.handle("V")
	s.want()
}
