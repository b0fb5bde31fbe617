package gate

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func offeredResource(t *testing.T) *rig {
	t.Helper()
	r := newRig()
	for i, c := range []struct {
		event event
		want  string
	}{
		{snapshot(Device{ID: "x", Healthy: true, Function: "x", PF: "p"}, Device{ID: "y", Healthy: true, Function: "y", PF: "q"}), ""},
		{opens, "register"},
		{listens, "send [x y]"},
		{registered(nil), ""},
		{sent(1), ""},
	} {
		if got := r.at(0, c.event); got != c.want {
			t.Fatalf("step %d: %q, want %q", i+1, got, c.want)
		}
		if n := r.report().Offered; i < 4 && n != 0 {
			t.Fatalf("step %d: %d devices count as offered before the kubelet has a list", i+1, n)
		}
	}
	if s := r.report(); s.Offered != 2 || s.Phase != Offered || !s.Streaming {
		t.Fatalf("report %+v", s)
	}
	return r
}

type timedEvent struct {
	ms    int
	event event
	want  string
}

func TestResource(t *testing.T) {
	allocate := func(call int) event { return allocates(call, "x") }
	const refused = `refuse: devices of this resource cannot be allocated now (phase withdrawing)`
	for name, moments := range map[string][]timedEvent{
		"a withdrawal with nothing running": {
			{0, closes, "send [-x -y]"},
			{3, sent(2), "confirm"},
			{4, confirmed(true, 1), "arm confirm 54"},
			{54, tick, "confirm"},
			{55, confirmedEarlier, ""},
			{55, confirmed(true, 0), "arm quiet 1055"},
			{1000, tick, ""},
			{1055, tick, "send []"},
		},
		"a withdrawal from a suspended kubelet": {
			{0, closes, "send [-x -y]"},
			{3, sent(2), "confirm"},
			{9000, confirmed(true, 0), "arm quiet 10000"},
			{10000, tick, "send []"},
		},
		"a withdrawal from a kubelet that does not answer PodResources": {
			{0, closes, "send [-x -y]"},
			{3, sent(2), "confirm"},
			{2003, unanswered("timeout"), "arm confirm 2053"},
			{2053, tick, "confirm"},
			{2054, confirmed(true, 0), "arm quiet 3054"},
			{3054, tick, "send []"},
		},
		"a withdrawal with a call": {
			{0, allocate(1), "admit"},
			{0, closes, "arm drain 500"},
			{1, allocate(2), refused},
			{100, checks(1), refused},
			{101, ends(1), "send [-x -y]"},
			{102, sent(2), "confirm"},
			{103, confirmed(false, 0), "arm quiet 1103"},
			{1000, allocate(3), "refuse: devices of this resource cannot be allocated now (phase withdrawn), arm quiet 2000"},
			{1103, tick, ""},
			{2000, tick, "send []"},
		},
		"a call that times out": {
			{0, allocate(1), "admit"},
			{0, closes, "arm drain 500"},
			{500, tick, "send [-x -y]"},
			{501, sent(2), ""},
			{9000, ends(1), "confirm"},
			{9001, confirmed(false, 0), "arm quiet 10001"},
			{10001, tick, "send []"},
		},
		"opened again during a call": {
			{0, allocate(1), "admit"},
			{0, closes, "arm drain 500"},
			{1, opens, ""},
			{2, checks(1), "refuse: the devices were withdrawn while the call was in flight; recreate the pod"},
			{3, ends(1), ""},
			{4, allocate(2), "admit"},
			{5, checks(2), "approve"},
		},
		"removed device": {
			{0, allocate(1), "admit"},
			{0, snapshot(Device{ID: "y", Healthy: true}), "send [-x y]"},
			{1, sent(2), ""},
			{2, checks(1), `refuse: device "x" does not exist`},
			{2, ends(1), "arm quiet 1002"},
			{1002, tick, "send [y]"},
		},
		"removed and restored device": {
			{0, snapshot(Device{ID: "y", Healthy: true}), "send [-x y]"},
			{1, sent(2), "arm quiet 1001"},
			{2, snapshot(Device{ID: "x", Healthy: true}, Device{ID: "y", Healthy: false}), "send [x -y]"},
			{3, allocates(1, "x", "y"), `refuse: device "y" is not healthy`},
			{1001, tick, ""},
		},
		"all devices removed": {
			{0, allocate(1), "admit"},
			{0, snapshot(), "send [-x -y]"},
			{1, sent(2), ""},
			{2, ends(1), "arm quiet 1002"},
			{1002, tick, "send []"},
		},
		"a lost stream": {
			{0, hangup(1), "arm register 2000"},
			{2000, tick, "register"},
			{2000, registered(errors.New("e")), "arm register 6000"},
			{6000, tick, "register"},
			{6000, registered(errors.New("e")), "arm register 14000"},
			{14000, tick, "register"},
			{14000, registered(nil), "arm register 30000"},
			{30000, tick, "register"},
			{30000, registered(nil), "arm register 60000"},
			{30001, listens, "send [x y]"},
			{60000, tick, ""},
		},
		"a stable stream resets the backoff": {
			{0, hangup(1), "arm register 2000"},
			{2000, tick, "register"},
			{2000, listens, "send [x y]"},
			{12000, hangup(2), "arm register 14000"},
		},
		"a stream that the kubelet opens by itself": {
			{0, hangup(1), "arm register 2000"},
			{500, listens, "send [x y]"},
			{2000, tick, ""},
			{2100, hangup(1), ""},
		},
		"a kubelet that starts again": {
			{0, hangup(1), "arm register 2000"},
			{100, kubeletStarted, "arm register 1000"},
			{1000, tick, "register"},
		},
		"a kubelet that starts before its old stream ends": {{0, kubeletStarted, ""}, {100, hangup(1), "arm register 1100"}},
		"a kubelet that starts again while withdrawn": {
			{0, closes, "send [-x -y]"},
			{1, hangup(1), "arm register 2001, confirm"},
			{2, confirmed(false, 0), "arm quiet 1002"},
			{2001, tick, "register"},
			{2001, listens, "send []"},
		},
		"an undelivered list": {{0, closes, "send [-x -y]"}, {1, sent(1), ""}, {2, sent(2), "confirm"}},
		"an empty first list after a call": {
			{0, hangup(1), "arm register 2000"},
			{0, closes, "confirm"},
			{1, confirmed(false, 0), "arm quiet 1001"},
			{1001, tick, ""},
			{1500, allocate(1), "refuse: devices of this resource cannot be allocated now (phase withdrawn)"},
			{1600, listens, "arm quiet 2500"},
			{2500, tick, "send []"},
		},
		"shutdown": {
			{0, shutsDown, "send [-x -y]"},
			{1, sent(2), "confirm"},
			{2, opens, ""},
			{2, confirmed(true, 0), "arm quiet 1002"},
			{1002, tick, "send []"},
			{1003, sent(3), "arm linger 1103"},
			{1103, tick, "stop"},
			{1104, allocate(9), "refuse: the plugin is shutting down"},
			{1104, listens, ""},
		},
		"halt": {{0, allocate(1), "admit"}, {0, halts, "stop"}, {0, checks(1), "refuse: the plugin is shutting down"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := offeredResource(t)
			for i, m := range moments {
				if got := r.at(m.ms, m.event); !same(got, m.want) {
					t.Fatalf("step %d at %d ms: %q, want %q", i+1, m.ms, got, m.want)
				}
			}
		})
	}
}

func TestNotRegistered(t *testing.T) {
	r := newRig()
	for i, m := range []timedEvent{
		{0, snapshot(Device{ID: "x", Healthy: true}), ""},
		{0, kubeletStarted, ""},
		{0, allocates(1, "x"), "refuse: devices of this resource cannot be allocated now (phase idle)"},
		{0, closes, ""},
		{0, snapshot(), ""},
		{0, opens, ""},
		{0, closes, ""},
		{0, opens, ""},
		{0, snapshot(Device{ID: "x", Healthy: false}), "register"},
	} {
		if got := r.at(m.ms, m.event); got != m.want {
			t.Fatalf("step %d: %q, want %q", i+1, got, m.want)
		}
	}
	if got := newRig().at(0, shutsDown); got != "stop" {
		t.Errorf("the end of one that is not known: %q", got)
	}
}

func TestWithdrawnDevicesAreNotListed(t *testing.T) {
	r := newRig()
	r.at(0, snapshot(Device{ID: "x", Healthy: true}), opens, closes)
	if got := r.at(0, listens); got != "send []" {
		t.Errorf("the first list: %q", got)
	}
}

func TestEmptyFirstListWaitsForCalls(t *testing.T) {
	r := newRig()
	r.at(0, snapshot(Device{ID: "x", Healthy: true}), opens, allocates(1, "x"), snapshot())
	if got := r.at(0, listens); got != "" {
		t.Errorf("while the call runs: %q", got)
	}
	if got := r.at(5, ends(1)); got != "arm quiet 1005" {
		t.Errorf("after the call: %q", got)
	}
	if got := r.at(1005, tick); got != "send []" {
		t.Errorf("a second later: %q", got)
	}
}

func TestReportNamesWhatAWithdrawalWaitsFor(t *testing.T) {
	r := offeredResource(t)
	r.at(0, allocates(1, "x"), closes)
	want := func(words string) {
		t.Helper()
		if s := r.report(); !strings.Contains(s.Error, words) || s.Phase != Withdrawing || s.Offered != 0 {
			t.Errorf("report %+v, want %q", s, words)
		}
	}
	want("1 Allocate calls are still in flight")
	r.at(1, ends(1))
	want("has not read the list")
	r.at(2, sent(2), confirmed(true, 3))
	want("still has 3 allocatable")
	if got := r.at(52, tick); got != "confirm" {
		t.Errorf("asks again: %q", got)
	}
	if got := r.at(53, opens, closes, sent(4)); !strings.HasSuffix(got, "confirm") {
		t.Errorf("a second closing: %q", got)
	}
	// The answer was for the first closing.
	if got := r.at(54, confirmedEarlier); got != "" || r.phase != Withdrawing {
		t.Errorf("%q, %s", got, r.phase)
	}
	r.at(54, confirmed(true, 0, Held{ID: "x"}))
	if s := r.report(); s.Phase != Withdrawn || !r.confirmed || len(r.inUse) != 1 || s.Error != "" {
		t.Errorf("report %+v", s)
	}
}

// The state must not flap while the kubelet refuses.
func TestFailureStaysUntilTheNextAnswer(t *testing.T) {
	r, ms := newRig(), 0
	says := func(what, want string, e event) {
		t.Helper()
		ms += int(MaxBackoff.Milliseconds())
		r.at(ms, e)
		if got := r.report().Error; got != want {
			t.Errorf("%s: the resource says %q, want %q", what, got, want)
		}
	}
	r.at(0, snapshot(Device{ID: "a", Healthy: true}))
	says("opened", "", opens)
	says("not served", "in use", registered(errors.New("in use")))
	says("again", "in use", tick)
	says("refused", "no", registered(errors.New("no")))
	says("again", "no", tick)
	says("registered", "", registered(nil))
	says("listening", "", listens)
}
