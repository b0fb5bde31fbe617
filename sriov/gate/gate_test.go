package gate

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
)

func endOf(actions []Action, session string) (EndStream, bool) {
	for _, a := range actions {
		if e, is := a.(EndStream); is && e.Session == session {
			return e, true
		}
	}
	return EndStream{}, false
}

func directives(actions []Action) string {
	var out []string
	for _, a := range actions {
		if to, is := a.(Forward); is {
			switch to.Event.(type) {
			case Open:
				out = append(out, "open "+to.Resource)
			case Close:
				out = append(out, "close "+to.Resource)
			case Shutdown:
				out = append(out, "shutdown "+to.Resource)
			case Halt:
				out = append(out, "halt "+to.Resource)
			}
		}
	}
	return strings.Join(out, ", ")
}

func held(t *testing.T, claim Claim) *Gate {
	t.Helper()
	c := New(Config{Controlled: true})
	c.Step(noon, Configured{Hash: "h", Resources: []string{"a"}})
	if e, is := endOf(c.Step(noon, Enable{Session: "first", Claim: claim}), "first"); is {
		t.Fatalf("the first claim is refused: %+v", e)
	}
	if got := directives(c.Step(noon, Scanned{Seq: c.scan})); got != "open a" {
		t.Fatalf("after the scan: %q", got)
	}
	c.Step(noon, Reported{Resource: "a", Report: Report{Phase: Offered, Epoch: c.epoch}})
	return c
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
			m := held(t, c.holder)
			if c.lost {
				m.Step(noon, StreamClosed{Session: "first"})
			}
			out := m.Step(noon.Add(c.later), Enable{Session: "second", Claim: c.claim})
			e, refused := endOf(out, "second")
			if e.Code != c.want || !strings.Contains(e.Reason, c.reason) || refused != (c.want != codes.OK) {
				t.Errorf("the second stream: %v %+v, want %v with %q", refused, e, c.want, c.reason)
			}
			first, over := endOf(out, "first")
			if refused {
				if over {
					t.Errorf("the first stream ends though the second is refused: %+v", first)
				}
				return
			}
			wantFirst := codes.Aborted
			if c.later >= time.Second {
				wantFirst = codes.DeadlineExceeded
			}
			if over == c.lost || over && first.Code != wantFirst {
				t.Errorf("the first stream: %v %+v", over, first)
			}
			if s := m.Status(); s.Holding != Live || s.Generation != c.claim.Generation || s.UID != c.claim.UID {
				t.Errorf("status %+v", s)
			}
		})
	}
}

func TestTakeoverDoesNotWithdraw(t *testing.T) {
	m := held(t, Claim{Generation: 5})
	if got := directives(m.Step(noon, Enable{Session: "second", Claim: Claim{Generation: 6}})); got != "" {
		t.Errorf("a take-over says %q to the resources", got)
	}
	if got := directives(m.Step(noon, StreamClosed{Session: "first"})); got != "" {
		t.Errorf("the end of a superseded stream says %q", got)
	}
	if got := directives(m.Step(noon, StreamClosed{Session: "second"})); got != "close a" {
		t.Errorf("the loss of the holder says %q", got)
	}
}

func TestTakeoverPublishesStatus(t *testing.T) {
	m := held(t, Claim{Generation: 5})
	before := m.Status()
	var published []Status
	for _, a := range m.Step(noon, Enable{Session: "second", Claim: Claim{Generation: 5}}) {
		if p, is := a.(Publish); is {
			published = append(published, p.Status)
		}
	}
	if diff := cmp.Diff([]Status{before}, published); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	for _, a := range m.Step(noon, StreamClosed{Session: "first"}) {
		if p, is := a.(Publish); is {
			t.Errorf("published again without a change: %+v", p)
		}
	}
}

func TestLoss(t *testing.T) {
	t.Run("hold", func(t *testing.T) {
		m := held(t, Claim{Hold: time.Second})
		if got := directives(m.Step(noon, StreamClosed{Session: "first"})); got != "" {
			t.Errorf("the loss says %q", got)
		}
		if s := m.Status(); s.Holding != Lost || !s.HoldEnds.Equal(noon.Add(time.Second)) {
			t.Errorf("status %+v", s)
		}
		if got := directives(m.Step(noon.Add(time.Second), Expired{Timer: TimerHold})); got != "close a" {
			t.Errorf("the end of the hold says %q", got)
		}
	})
	t.Run("a return within the hold", func(t *testing.T) {
		m := held(t, Claim{Hold: time.Second})
		m.Step(noon, StreamClosed{Session: "first"})
		m.Step(noon, Enable{Session: "second"})
		if got := directives(m.Step(noon.Add(time.Second), Expired{Timer: TimerHold})); got != "" || m.Status().Holding != Live {
			t.Errorf("the old hold says %q, %+v", got, m.Status())
		}
	})
	t.Run("lease", func(t *testing.T) {
		m := held(t, Claim{Lease: time.Second})
		beat := m.Step(noon.Add(900*time.Millisecond), Heartbeat{Call: 1, Session: "first"})
		if got := directives(m.Step(noon.Add(time.Second), Expired{Timer: TimerLease})); got != "" {
			t.Errorf("a lease that was renewed ends: %q, %+v", got, beat)
		}
		out := m.Step(noon.Add(1900*time.Millisecond), Expired{Timer: TimerLease})
		if e, over := endOf(out, "first"); directives(out) != "close a" || !over || e.Code != codes.DeadlineExceeded {
			t.Errorf("the end of the lease: %q, %+v", directives(out), e)
		}
	})
	t.Run("hold of a lease", func(t *testing.T) {
		m := held(t, Claim{Lease: time.Second, Hold: time.Second})
		if got := directives(m.Step(noon.Add(time.Second), Expired{Timer: TimerLease})); got != "" {
			t.Errorf("the end of the lease says %q", got)
		}
		if got := directives(m.Step(noon.Add(2*time.Second), Expired{Timer: TimerHold})); got != "close a" {
			t.Errorf("the end of the hold says %q", got)
		}
	})
	t.Run("another configuration", func(t *testing.T) {
		m := held(t, Claim{Hash: "h", Hold: time.Hour})
		out := m.Step(noon, Configured{Hash: "i", Resources: []string{"a"}})
		if e, _ := endOf(out, "first"); directives(out) != "close a" || e.Code != codes.Aborted {
			t.Errorf("it says %q, %+v", directives(out), e)
		}
	})
}

func TestWithdrawalAfterLossTimesOut(t *testing.T) {
	m := held(t, Claim{})
	m.Step(noon, StreamClosed{Session: "first"})
	early := m.Step(noon.Add(time.Second), Expired{Timer: TimerWithdraw})
	if len(early) != 1 || early[0] != (Set{Timer: TimerWithdraw, At: noon.Add(m.cfg.WithdrawTimeout)}) {
		t.Errorf("a timer that is early: %+v", early)
	}
	m.Step(noon.Add(m.cfg.WithdrawTimeout), Expired{Timer: TimerWithdraw})
	if s := m.Status(); s.State != Failed || !strings.Contains(s.Error, "not withdrawn within 10s: a: ") {
		t.Errorf("status %+v", s)
	}
	m.Step(noon.Add(time.Minute), Reported{Resource: "a", Report: Report{Phase: Withdrawn, Epoch: m.epoch}})
	if s := m.Status(); s.State != Initializing || s.Error != "" {
		t.Errorf("status %+v", s)
	}
}

func TestState(t *testing.T) {
	m := held(t, Claim{})
	state := func(want State) {
		t.Helper()
		if s := m.Status(); s.State != want {
			t.Errorf("state %s, want %s: %+v", s.State, want, s)
		}
	}
	report := func(r Report) {
		r.Epoch = m.epoch
		m.Step(noon, Reported{Resource: "a", Report: r})
	}
	state(Serving)
	report(Report{Phase: Offered, Devices: 2})
	state(Initializing) // the kubelet has no stream
	report(Report{Phase: Offered, Devices: 2, Error: "e"})
	state(Failed)
	report(Report{Phase: Offered, Devices: 2, Offered: 1, Streaming: true})
	state(Serving)
	if s := m.Status(); s.Pools != 1 || s.Devices != 1 {
		t.Errorf("status %+v", s)
	}
	m.Step(noon, StreamClosed{Session: "first"})
	state(Stopping)
	report(Report{Phase: Withdrawn, Devices: 2, Streaming: true})
	state(Initializing)
	m.Step(noon, Enable{Session: "second"})
	state(Initializing)
	m.Step(noon, Scanned{Seq: m.scan})
	state(Initializing) // the resource has not reported the new epoch
	report(Report{Phase: Offered, Devices: 2, Offered: 2, Streaming: true})
	state(Serving)
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
			m := held(t, Claim{Lease: c.lease})
			for _, a := range m.Step(noon.Add(c.after), Heartbeat{Call: 7, Session: c.session}) {
				if b, is := a.(HeartbeatReply); is {
					if b.Call != 7 || b.Code != c.want || (b.Code == codes.OK) != (b.Lease == c.lease && b.Reason == "") {
						t.Errorf("%+v, want %v", b, c.want)
					}
					return
				}
			}
			t.Error("no answer")
		})
	}
}

func answers(actions []Action) []DisableReply {
	var out []DisableReply
	for _, a := range actions {
		if d, is := a.(DisableReply); is {
			out = append(out, d)
		}
	}
	return out
}

func TestDisable(t *testing.T) {
	withdrawn := func(m *Gate) Reported {
		return Reported{Resource: "a", Report: Report{Phase: Withdrawn, Epoch: m.epoch, Confirmed: true, InUse: []Held{{ID: "x", Pod: "p"}}}}
	}
	t.Run("acknowledged", func(t *testing.T) {
		m := held(t, Claim{Hold: time.Hour})
		old := withdrawn(m)
		out := m.Step(noon, Disable{Call: 1, Session: "first"})
		if _, over := endOf(out, "first"); over || len(answers(out)) > 0 || directives(out) != "close a" || m.Status().State != Stopping {
			t.Fatalf("%+v", out)
		}
		if out := m.Step(noon, old); len(answers(out)) > 0 {
			t.Fatalf("a report of an older epoch counts: %+v", out)
		}
		out = m.Step(noon, withdrawn(m))
		e, over := endOf(out, "first")
		if d := answers(out); len(d) != 1 || d[0].Code != codes.OK || !d[0].Confirmed || d[0].InUse[0].Pod != "p" || !over || e.Code != codes.OK {
			t.Fatalf("%+v", out)
		}
		if d := answers(m.Step(noon, Disable{Call: 2})); len(d) != 1 || d[0].Code != codes.OK {
			t.Fatalf("a repeat: %+v", d)
		}
	})
	t.Run("bound", func(t *testing.T) {
		m := held(t, Claim{})
		m.Step(noon, Disable{Call: 1})
		m.Step(noon, Reported{Resource: "a", Report: Report{Phase: Withdrawing, Epoch: m.epoch, Error: "a call runs"}})
		out := m.Step(noon.Add(m.cfg.WithdrawTimeout), Expired{Timer: TimerWithdraw})
		e, _ := endOf(out, "first")
		if d := answers(out); len(d) != 1 || d[0].Code != codes.DeadlineExceeded || !strings.Contains(d[0].Reason, "a: a call runs") || e.Code != codes.DeadlineExceeded {
			t.Fatalf("%+v", out)
		}
		if s := m.Status(); s.State != Failed || !strings.Contains(s.Error, "a call runs") {
			t.Fatalf("status %+v", s)
		}
		m.Step(noon.Add(time.Minute), Disable{Call: 2})
		if d := answers(m.Step(noon.Add(time.Minute), withdrawn(m))); len(d) != 1 || d[0].Code != codes.OK || m.Status().State != Initializing {
			t.Fatalf("a repeat: %+v, %+v", d, m.Status())
		}
	})
	t.Run("a second bound", func(t *testing.T) {
		m := held(t, Claim{})
		m.Step(noon, Disable{Call: 1})
		m.Step(noon.Add(m.cfg.WithdrawTimeout), Expired{Timer: TimerWithdraw})
		m.Step(noon.Add(time.Minute), Disable{Call: 2})
		if d := answers(m.Step(noon.Add(time.Minute+m.cfg.WithdrawTimeout), Expired{Timer: TimerWithdraw})); len(d) != 1 || d[0].Call != 2 || d[0].Code != codes.DeadlineExceeded {
			t.Fatalf("%+v", d)
		}
	})
	t.Run("not confirmed", func(t *testing.T) {
		m := held(t, Claim{})
		m.Step(noon, Disable{Call: 1})
		if d := answers(m.Step(noon, Reported{Resource: "a", Report: Report{Phase: Withdrawn, Epoch: m.epoch}})); len(d) != 1 || d[0].Code != codes.OK || d[0].Confirmed {
			t.Fatalf("%+v", d)
		}
	})
	t.Run("enabled meanwhile", func(t *testing.T) {
		m := held(t, Claim{})
		m.Step(noon, Disable{Call: 1})
		out := m.Step(noon, Enable{Session: "second"})
		e, _ := endOf(out, "first")
		if d := answers(out); len(d) != 1 || d[0].Code != codes.Aborted || e.Code != codes.Aborted {
			t.Fatalf("%+v", out)
		}
	})
	t.Run("of another session", func(t *testing.T) {
		m := held(t, Claim{})
		if d := answers(m.Step(noon, Disable{Call: 1, Session: "other"})); len(d) != 1 || d[0].Code != codes.FailedPrecondition || m.Status().Holding != Live {
			t.Fatalf("%+v", d)
		}
	})
	t.Run("before anything", func(t *testing.T) {
		m := New(Config{Controlled: true})
		m.Step(noon, Configured{Resources: []string{"a"}})
		if d := answers(m.Step(noon, Disable{Call: 1})); len(d) != 1 || d[0].Code != codes.OK || !d[0].Confirmed {
			t.Fatalf("%+v", d)
		}
	})
}

func TestNotControlled(t *testing.T) {
	m := New(Config{})
	m.Step(noon, Configured{Hash: "h", Resources: []string{"a"}})
	if got := directives(m.Step(noon, Scanned{Seq: 1})); got != "open a" {
		t.Fatalf("at the start: %q", got)
	}
	out := m.Step(noon, Enable{Session: "s"})
	if e, _ := endOf(out, "s"); e.Code != codes.FailedPrecondition || !strings.Contains(e.Reason, "--controlled-mode") {
		t.Errorf("Enable: %+v", out)
	}
	out = m.Step(noon, Disable{Call: 1})
	if d := answers(out); len(d) != 1 || d[0].Code != codes.FailedPrecondition || directives(out) != "" {
		t.Errorf("Disable: %+v", out)
	}
	if got := directives(m.Step(noon, Configured{Hash: "i", Resources: []string{"a", "b"}})); got != "open b" {
		t.Errorf("a new resource: %q", got)
	}
}

func TestScanFails(t *testing.T) {
	m := New(Config{Controlled: true})
	m.Step(noon, Configured{Resources: []string{"a"}})
	m.Step(noon, Enable{Session: "s"})
	out := m.Step(noon, Scanned{Seq: m.scan, Err: errors.New("sysfs is away")})
	if s := m.Status(); directives(out) != "" || s.State != Failed || s.Error != "sysfs is away" {
		t.Fatalf("%q, %+v", directives(out), s)
	}
	before := m.scan
	m.Step(noon.Add(ScanRetryDelay), Expired{Timer: TimerScan})
	if s := m.Status(); s.State != Failed || s.Error != "sysfs is away" {
		t.Errorf("during the second scan: %+v", s)
	}
	if got := directives(m.Step(noon.Add(ScanRetryDelay), Scanned{Seq: before})); got != "" {
		t.Fatalf("an old scan opens: %q", got)
	}
	if got := directives(m.Step(noon.Add(ScanRetryDelay), Scanned{Seq: m.scan})); m.scan == before || got != "open a" || m.Status().Error != "" {
		t.Fatalf("the second scan: %q, %+v", got, m.Status())
	}
}

func TestResourcesAddedAndRemoved(t *testing.T) {
	m := held(t, Claim{})
	if got := directives(m.Step(noon, Configured{Hash: "h", Resources: []string{"b"}})); got != "open b, shutdown a" {
		t.Fatalf("a goes, b comes: %q", got)
	}
	m.Step(noon, Configured{Hash: "h", Resources: []string{"a", "b"}})
	if got := directives(m.Step(noon, Reported{Resource: "a", Report: Report{Phase: Stopped}})); got != "open a" {
		t.Fatalf("a is back: %q", got)
	}
	m.Step(noon, Configured{Hash: "h", Resources: []string{"a"}})
	m.Step(noon, Reported{Resource: "b", Report: Report{Phase: Stopped}})
	if _, known := m.Status().Resources["b"]; known {
		t.Error("b has stopped and is still known")
	}
}

func TestRemovedResourceDoesNotFailThePlugin(t *testing.T) {
	c := held(t, Claim{Generation: 1})
	c.Step(noon, Configured{Hash: "h", Resources: []string{"b"}})
	c.Step(noon, Scanned{Seq: c.scan})
	c.Step(noon, Reported{Resource: "b", Report: Report{Phase: Offered, Epoch: c.epoch}})
	c.Step(noon, Reported{Resource: "a", Report: Report{Phase: Withdrawing, Epoch: c.epoch, Error: "the kubelet still has 2 allocatable devices"}})
	if s := c.Status(); s.State != Serving || s.Error != "" {
		t.Errorf("the state is %s (%s), want %s", s.State, s.Error, Serving)
	}
}

func TestQuit(t *testing.T) {
	m := held(t, Claim{})
	out := m.Step(noon, Quit{})
	if e, _ := endOf(out, "first"); e.Code != codes.Unavailable || directives(out) != "shutdown a" {
		t.Fatalf("%+v", out)
	}
	if e, _ := endOf(m.Step(noon, Enable{Session: "s"}), "s"); e.Code != codes.Unavailable {
		t.Errorf("Enable: %+v", e)
	}
	if d := answers(m.Step(noon, Disable{Call: 1})); d[0].Code != codes.Unavailable {
		t.Errorf("Disable: %+v", d)
	}
	if got := directives(m.Step(noon.Add(m.cfg.WithdrawTimeout), Expired{Timer: TimerWithdraw})); got != "halt a" {
		t.Errorf("the bound says %q", got)
	}
	out = m.Step(noon, Reported{Resource: "a", Report: Report{Phase: Stopped}})
	if _, is := out[len(out)-1].(Exit); !is {
		t.Errorf("at last: %+v", out)
	}
}
