package gate

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// changes returns what an event does to the resources.
func (r *rig) changes(event func()) string {
	type state struct {
		phase    Phase
		openings int
		stopping bool
	}
	now := func() map[string]state {
		all := map[string]state{}
		for name, r := range r.gate.resources {
			all[name] = state{r.phase, r.openings, r.stopping}
		}
		return all
	}
	before := now()
	event()
	var out []string
	after := now()
	for _, name := range r.gate.names() {
		switch was, is := before[name], after[name]; {
		case is.openings > was.openings:
			out = append(out, "open "+name)
		case is.stopping && !was.stopping:
			out = append(out, "shutdown "+name)
		case is.phase == Stopped && was.phase != Stopped:
			out = append(out, "halt "+name)
		case was.phase == Offered && is.phase != Offered:
			out = append(out, "close "+name)
		}
	}
	return strings.Join(out, ", ")
}

// held returns a gate with a holder and an offered resource.
func held(t *testing.T, claim Claim) (*rig, *Session) {
	t.Helper()
	r := newRig()
	first, err := r.gate.Enable(noon, "first", claim)
	if err != nil {
		t.Fatalf("the first claim is refused: %v", err)
	}
	if got := r.changes(r.scanned); got != "open a" {
		t.Fatalf("after the scan: %q", got)
	}
	r.at(0, registered(nil), listens, sent(1))
	return r, first
}

func (r *rig) scanned() {
	r.gate.Scanned(noon, r.gate.scan, map[string][]Device{"a": {testDevice("a", 0, true), testDevice("a", 1, true)}}, nil)
}

// withdrawn is what the kubelet does after a withdrawal.
func (r *rig) withdrawn(now time.Time, a Answer) {
	r.gate.Sent(now, "a", r.stream, r.stream.Seq)
	r.gate.Confirmed(now, "a", r.queries, a)
}

func codeOf(err error) codes.Code {
	if end, is := err.(*End); is && end != nil {
		return end.Code
	}
	return codes.OK
}

func ended(s *Session) (code codes.Code, over bool) {
	if s.End == nil {
		return codes.OK, false
	}
	return s.End.Code, true
}

func TestOwnership(t *testing.T) {
	for name, c := range map[string]struct {
		holder, claim Claim
		later         time.Duration
		lost          bool
		want          codes.Code
		reason        string
	}{
		"a newer generation":                  {holder: Claim{UID: "u", Generation: 5}, claim: Claim{UID: "u", Generation: 6}},
		"the same generation":                 {holder: Claim{UID: "u", Generation: 5}, claim: Claim{UID: "u", Generation: 5}},
		"an older generation":                 {holder: Claim{UID: "u", Generation: 5, Node: "n1"}, claim: Claim{UID: "u", Generation: 4}, want: codes.FailedPrecondition, reason: `generation 4 is older than generation 5, with which the config daemon of node "n1" holds`},
		"an older one of another node state":  {holder: Claim{UID: "u", Generation: 5}, claim: Claim{UID: "v", Generation: 1}},
		"an older one, uids not known":        {holder: Claim{Generation: 5}, claim: Claim{Generation: 4}},
		"an older one, own uid not known":     {holder: Claim{UID: "u", Generation: 5}, claim: Claim{Generation: 4}},
		"an older one, the holder's uid not":  {holder: Claim{Generation: 5}, claim: Claim{UID: "u", Generation: 4}},
		"an older one, the holder gone":       {holder: Claim{UID: "u", Generation: 5}, lost: true, claim: Claim{UID: "u", Generation: 4}},
		"an older one while holding":          {holder: Claim{UID: "u", Generation: 5, Hold: time.Minute}, lost: true, claim: Claim{UID: "u", Generation: 4}},
		"an older one, the lease run out":     {holder: Claim{UID: "u", Generation: 5, Lease: time.Second}, later: time.Second, claim: Claim{UID: "u", Generation: 4}},
		"an older one, the lease not run out": {holder: Claim{UID: "u", Generation: 5, Lease: time.Second}, later: time.Second - 1, claim: Claim{UID: "u", Generation: 4}, want: codes.FailedPrecondition, reason: "older"},
		"the hash of the configuration":       {claim: Claim{Hash: "h"}},
		"another hash":                        {claim: Claim{Hash: "i"}, want: codes.FailedPrecondition, reason: `config_hash is "i", but the plugin's configuration has the hash "h"`},
	} {
		t.Run(name, func(t *testing.T) {
			r, first := held(t, c.holder)
			if c.lost {
				r.gate.Disconnect(noon, first)
			}
			_, err := r.gate.Enable(noon.Add(c.later), "second", c.claim)
			if code := codeOf(err); code != c.want || err != nil && !strings.Contains(err.Error(), c.reason) {
				t.Errorf("the second stream: %v, want %v with %q", err, c.want, c.reason)
			}
			code, over := ended(first)
			if err != nil {
				if over {
					t.Errorf("the first stream ends though the second is refused: %v", code)
				}
				return
			}
			wantFirst := codes.Aborted
			if c.later >= time.Second {
				wantFirst = codes.DeadlineExceeded
			}
			if over == c.lost || over && code != wantFirst {
				t.Errorf("the first stream: %v %v", over, code)
			}
			if s := r.gate.Status(); s.Holding != Live || s.Generation != c.claim.Generation || s.UID != c.claim.UID {
				t.Errorf("status %+v", s)
			}
		})
	}
}

func TestTakeoverDoesNotWithdraw(t *testing.T) {
	r, first := held(t, Claim{Generation: 5})
	var second *Session
	if got := r.changes(func() { second, _ = r.gate.Enable(noon, "second", Claim{Generation: 6}) }); got != "" {
		t.Errorf("a take-over says %q to the resources", got)
	}
	if got := r.changes(func() { r.gate.Disconnect(noon, first) }); got != "" {
		t.Errorf("the end of a superseded stream says %q", got)
	}
	if got := r.changes(func() { r.gate.Disconnect(noon, second) }); got != "close a" {
		t.Errorf("the loss of the holder says %q", got)
	}
}

func TestLoss(t *testing.T) {
	t.Run("hold", func(t *testing.T) {
		r, first := held(t, Claim{Hold: time.Second})
		if got := r.changes(func() { r.gate.Disconnect(noon, first) }); got != "" {
			t.Errorf("the loss says %q", got)
		}
		if s := r.gate.Status(); s.Holding != Lost || !s.HoldEnds.Equal(noon.Add(time.Second)) || !r.gate.Next().Equal(s.HoldEnds) {
			t.Errorf("status %+v", s)
		}
		if got := r.changes(func() { r.gate.Tick(noon.Add(time.Second)) }); got != "close a" {
			t.Errorf("the end of the hold says %q", got)
		}
	})
	t.Run("a return within the hold", func(t *testing.T) {
		r, first := held(t, Claim{Hold: time.Second})
		r.gate.Disconnect(noon, first)
		_, err := r.gate.Enable(noon, "second", Claim{})
		if got := r.changes(func() { r.gate.Tick(noon.Add(time.Second)) }); err != nil || got != "" || r.gate.Status().Holding != Live {
			t.Errorf("the old hold says %q, %+v, %v", got, r.gate.Status(), err)
		}
	})
	t.Run("lease", func(t *testing.T) {
		r, first := held(t, Claim{Lease: time.Second})
		_, err := r.gate.Heartbeat(noon.Add(900*time.Millisecond), "first")
		if got := r.changes(func() { r.gate.Tick(noon.Add(time.Second)) }); got != "" {
			t.Errorf("a lease that was renewed ends: %q, %v", got, err)
		}
		got := r.changes(func() { r.gate.Tick(noon.Add(1900 * time.Millisecond)) })
		if code, over := ended(first); got != "close a" || !over || code != codes.DeadlineExceeded {
			t.Errorf("the end of the lease: %q, %v", got, code)
		}
	})
	t.Run("hold of a lease", func(t *testing.T) {
		r, _ := held(t, Claim{Lease: time.Second, Hold: time.Second})
		if got := r.changes(func() { r.gate.Tick(noon.Add(time.Second)) }); got != "" {
			t.Errorf("the end of the lease says %q", got)
		}
		if got := r.changes(func() { r.gate.Tick(noon.Add(2 * time.Second)) }); got != "close a" {
			t.Errorf("the end of the hold says %q", got)
		}
	})
	t.Run("another configuration", func(t *testing.T) {
		r, first := held(t, Claim{Hash: "h", Hold: time.Hour})
		got := r.changes(func() { r.gate.Configure(noon, "i", []string{"a"}) })
		if code, _ := ended(first); got != "close a" || code != codes.Aborted {
			t.Errorf("it says %q, %v", got, code)
		}
	})
}

func TestWithdrawalAfterLossTimesOut(t *testing.T) {
	r, first := held(t, Claim{})
	m := r.gate
	m.Disconnect(noon, first)
	m.Tick(noon.Add(time.Second))
	if s := m.Status(); s.State != Stopping || m.timers[TimerWithdraw] != noon.Add(m.cfg.WithdrawTimeout) {
		t.Errorf("before the deadline: %+v, %v", s, m.timers)
	}
	m.Tick(noon.Add(m.cfg.WithdrawTimeout))
	if s := m.Status(); s.State != Failed || !strings.Contains(s.Error, "not withdrawn within 10s: a: ") {
		t.Errorf("status %+v", s)
	}
	r.withdrawn(noon.Add(time.Minute), Answer{})
	if s := m.Status(); s.State != Initializing || s.Error != "" {
		t.Errorf("status %+v", s)
	}
}

func TestState(t *testing.T) {
	r := newRig()
	first, _ := r.gate.Enable(noon, "first", Claim{})
	state := func(want State) {
		t.Helper()
		if s := r.gate.Status(); s.State != want {
			t.Errorf("state %s, want %s: %+v", s.State, want, s)
		}
	}
	state(Initializing)
	r.gate.Scanned(noon, r.gate.scan, nil, nil)
	state(Serving) // no device
	r.scanned()
	state(Initializing) // the kubelet has no stream
	r.at(0, registered(errors.New("e")))
	state(Failed)
	r.at(2000, tick, listens)
	state(Initializing) // nor a list
	r.at(2000, sent(1))
	state(Serving)
	if s := r.gate.Status(); s.Pools != 1 || s.Devices != 2 {
		t.Errorf("status %+v", s)
	}
	r.gate.Disconnect(noon, first)
	state(Stopping)
	r.withdrawn(noon, Answer{})
	state(Initializing)
	_, err := r.gate.Enable(noon, "second", Claim{})
	state(Initializing)
	r.scanned()
	state(Serving)
	if err != nil {
		t.Error(err)
	}
}

func TestHeartbeat(t *testing.T) {
	for name, c := range map[string]struct {
		lease   time.Duration
		session string
		after   time.Duration
		want    codes.Code
	}{
		"of the holder":   {time.Second, "first", 999 * time.Millisecond, codes.OK},
		"too late":        {time.Second, "first", time.Second, codes.FailedPrecondition},
		"of another":      {time.Second, "other", 0, codes.FailedPrecondition},
		"without session": {time.Second, "", 0, codes.FailedPrecondition},
		"without lease":   {0, "first", time.Hour, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := held(t, Claim{Lease: c.lease})
			lease, err := r.gate.Heartbeat(noon.Add(c.after), c.session)
			if codeOf(err) != c.want || err == nil && lease != c.lease {
				t.Errorf("%s, %v, want %v", lease, err, c.want)
			}
		})
	}
}

func TestDisable(t *testing.T) {
	answer := Answer{Known: true, InUse: []Held{{ID: "x", Pod: "p"}}}
	t.Run("acknowledged", func(t *testing.T) {
		r, first := held(t, Claim{Hold: time.Hour})
		var d *Disabling
		got := r.changes(func() { d = r.gate.Disable(noon, "first") })
		if _, over := ended(first); over || d.Done || got != "close a" || r.gate.Status().State != Stopping {
			t.Fatalf("%q, %+v", got, d)
		}
		r.withdrawn(noon, answer)
		code, over := ended(first)
		if !d.Done || d.Err != nil || !d.Acknowledged || !d.Confirmed || d.InUse[0].Pod != "p" || !over || code != codes.OK {
			t.Fatalf("%+v", d)
		}
		if d := r.gate.Disable(noon, ""); !d.Done || d.Err != nil {
			t.Fatalf("a repeat: %+v", d)
		}
	})
	t.Run("bound", func(t *testing.T) {
		r, first := held(t, Claim{})
		r.at(0, allocates(1, "a0"))
		d := r.gate.Disable(noon, "")
		r.gate.Tick(noon.Add(r.gate.cfg.WithdrawTimeout))
		code, _ := ended(first)
		if !d.Done || codeOf(d.Err) != codes.DeadlineExceeded || !strings.Contains(d.Err.Error(), "a: 1 Allocate calls are still in flight") || code != codes.DeadlineExceeded {
			t.Fatalf("%+v", d)
		}
		if s := r.gate.Status(); s.State != Failed || !strings.Contains(s.Error, "1 Allocate calls") {
			t.Fatalf("status %+v", s)
		}
		again := r.gate.Disable(noon.Add(time.Minute), "")
		r.at(60000, ends(1))
		r.withdrawn(noon.Add(time.Minute), answer)
		if !again.Done || again.Err != nil || r.gate.Status().State != Initializing {
			t.Fatalf("a repeat: %+v, %+v", again, r.gate.Status())
		}
	})
	t.Run("a second bound", func(t *testing.T) {
		r, _ := held(t, Claim{})
		r.gate.Disable(noon, "")
		r.gate.Tick(noon.Add(r.gate.cfg.WithdrawTimeout))
		d := r.gate.Disable(noon.Add(time.Minute), "")
		r.gate.Tick(noon.Add(time.Minute + r.gate.cfg.WithdrawTimeout))
		if !d.Done || codeOf(d.Err) != codes.DeadlineExceeded {
			t.Fatalf("%+v", d)
		}
	})
	t.Run("not confirmed", func(t *testing.T) {
		r, _ := held(t, Claim{})
		d := r.gate.Disable(noon, "")
		if r.withdrawn(noon, Answer{}); !d.Done || d.Err != nil || d.Confirmed {
			t.Fatalf("%+v", d)
		}
	})
	t.Run("not answered", func(t *testing.T) {
		r, _ := held(t, Claim{})
		d := r.gate.Disable(noon, "")
		if r.withdrawn(noon, Answer{Err: errors.New("no response")}); d.Done {
			t.Fatalf("%+v, though nothing is known about what the kubelet offers", d)
		}
		r.gate.Tick(noon.Add(r.gate.cfg.WithdrawTimeout))
		if codeOf(d.Err) != codes.DeadlineExceeded || !strings.Contains(d.Err.Error(), "a: no response") {
			t.Fatalf("%+v", d)
		}
		again := r.gate.Disable(noon.Add(time.Minute), "")
		if r.withdrawn(noon.Add(time.Minute), answer); !again.Done || again.Err != nil || !again.Confirmed || r.gate.Status().Error != "" {
			t.Fatalf("a repeat: %+v, %+v", again, r.gate.Status())
		}
	})
	t.Run("enabled meanwhile", func(t *testing.T) {
		r, first := held(t, Claim{})
		d := r.gate.Disable(noon, "")
		_, err := r.gate.Enable(noon, "second", Claim{})
		if code, _ := ended(first); err != nil || codeOf(d.Err) != codes.Aborted || code != codes.Aborted {
			t.Fatalf("%+v, %v", d, err)
		}
	})
	t.Run("of another session", func(t *testing.T) {
		r, _ := held(t, Claim{})
		if d := r.gate.Disable(noon, "other"); codeOf(d.Err) != codes.FailedPrecondition || r.gate.Status().Holding != Live {
			t.Fatalf("%+v", d)
		}
	})
	t.Run("before anything", func(t *testing.T) {
		if d := newRig().gate.Disable(noon, ""); !d.Done || d.Err != nil || !d.Confirmed {
			t.Fatalf("%+v", d)
		}
	})
}

func TestNotControlled(t *testing.T) {
	r := &rig{gate: New(Config{}, &recorder{})}
	r.gate.Configure(noon, "h", []string{"a"})
	if got := r.changes(r.scanned); got != "open a" {
		t.Fatalf("at the start: %q", got)
	}
	if _, err := r.gate.Enable(noon, "s", Claim{}); codeOf(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "--controlled-mode") {
		t.Errorf("Enable: %v", err)
	}
	var d *Disabling
	if got := r.changes(func() { d = r.gate.Disable(noon, "") }); codeOf(d.Err) != codes.FailedPrecondition || got != "" {
		t.Errorf("Disable: %q, %+v", got, d)
	}
	if got := r.changes(func() { r.gate.Configure(noon, "i", []string{"a", "b"}) }); got != "open b" {
		t.Errorf("a new resource: %q", got)
	}
}

func TestScanFails(t *testing.T) {
	r := newRig()
	m := r.gate
	_, err := m.Enable(noon, "s", Claim{})
	got := r.changes(func() { m.Scanned(noon, m.scan, nil, errors.New("sysfs is away")) })
	if s := m.Status(); err != nil || got != "" || s.State != Failed || s.Error != "sysfs is away" {
		t.Fatalf("%q, %+v, %v", got, s, err)
	}
	before := m.scan
	m.Tick(noon.Add(ScanRetryDelay))
	if s := m.Status(); s.State != Failed || s.Error != "sysfs is away" {
		t.Errorf("during the second scan: %+v", s)
	}
	if got := r.changes(func() { m.Scanned(noon, before, nil, nil) }); got != "" {
		t.Fatalf("an old scan opens: %q", got)
	}
	if got := r.changes(func() { m.Scanned(noon, m.scan, nil, nil) }); m.scan == before || got != "open a" || m.Status().Error != "" {
		t.Fatalf("the second scan: %q, %+v", got, m.Status())
	}
}

func TestResourcesAddedAndRemoved(t *testing.T) {
	r, _ := held(t, Claim{})
	m := r.gate
	if got := r.changes(func() { m.Configure(noon, "h", []string{"b"}) }); got != "shutdown a, open b" {
		t.Fatalf("a goes, b comes: %q", got)
	}
	m.Configure(noon, "h", []string{"a", "b"})
	m.on(noon, "a", (*resource).stop)
	m.Released(noon, "a")
	if a := m.resources["a"]; a == r.resource || a.phase != Offered {
		t.Fatalf("a is back: %+v", a)
	}
	m.Configure(noon, "h", []string{"a"})
	m.on(noon, "b", (*resource).stop)
	m.Released(noon, "b")
	if _, known := m.Status().Resources["b"]; known {
		t.Error("b has stopped and is still known")
	}
}

func TestRemovedResourceDoesNotFailThePlugin(t *testing.T) {
	r, _ := held(t, Claim{Generation: 1})
	m := r.gate
	m.Configure(noon, "h", []string{"b"})
	m.Scanned(noon, m.scan, nil, nil)
	r.withdrawn(noon, Answer{Known: true, Offered: 2})
	if s := m.Status(); s.State != Serving || s.Error != "" || s.Resources["a"].Error != "the kubelet still has 2 allocatable devices" {
		t.Errorf("the state is %s (%s), want %s", s.State, s.Error, Serving)
	}
}

func TestQuit(t *testing.T) {
	r, first := held(t, Claim{})
	m := r.gate
	got := r.changes(func() { m.Quit(noon) })
	if code, _ := ended(first); code != codes.Unavailable || got != "shutdown a" {
		t.Fatalf("%q, %v", got, code)
	}
	if _, err := m.Enable(noon, "s", Claim{}); codeOf(err) != codes.Unavailable {
		t.Errorf("Enable: %v", err)
	}
	if d := m.Disable(noon, ""); codeOf(d.Err) != codes.Unavailable {
		t.Errorf("Disable: %+v", d)
	}
	if got := r.changes(func() { m.Tick(noon.Add(m.cfg.WithdrawTimeout)) }); got != "halt a" || m.Exited() {
		t.Errorf("the bound says %q", got)
	}
	if m.Released(noon, "a"); !m.Exited() {
		t.Error("the plugin does not end")
	}
}
