package gate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type rig struct{ *Resource }

// at steps at a time in milliseconds after noon, and returns the actions but
// reports.
func (r *rig) at(ms int, events ...ResourceEvent) string {
	var out []string
	for _, e := range events {
		for _, a := range r.Step(noon.Add(time.Duration(ms)*time.Millisecond), e) {
			if s := describe(a); s != "" {
				out = append(out, s)
			}
		}
	}
	return strings.Join(out, ", ")
}

func describe(a Action) string {
	switch a := a.(type) {
	case Notify:
		return ""
	case Set:
		return fmt.Sprintf("arm %s %d", a.Timer, a.At.Sub(noon).Milliseconds())
	case Send:
		var ids []string
		for _, d := range a.Devices {
			if d.Healthy {
				ids = append(ids, d.ID)
			} else {
				ids = append(ids, "-"+d.ID)
			}
		}
		return fmt.Sprintf("send %v", ids)
	case Admit:
		return "admit"
	case Approve:
		return "approve"
	case Refuse:
		return "refuse: " + a.Reason
	}
	return strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", a), "gate."))
}

func offeredResource(t *testing.T) *rig {
	t.Helper()
	r := &rig{NewResource()}
	for _, c := range []struct {
		event ResourceEvent
		want  string
	}{
		{Snapshot{Devices: []Device{{ID: "x", Healthy: true, Function: "x", PF: "p"}, {ID: "y", Healthy: true, Function: "y", PF: "q"}}}, ""},
		{Open{Epoch: 1}, "serve"},
		{Served{}, "register"},
		{StreamUp{Stream: 1}, "send [x y]"},
		{Registered{}, ""},
		{Sent{Stream: 1, Seq: 1}, ""},
	} {
		if got := r.at(0, c.event); got != c.want {
			t.Fatalf("%T: %q, want %q", c.event, got, c.want)
		}
		if _, sent := c.event.(Sent); !sent && r.Report().Offered != 0 {
			t.Fatalf("%T: %d devices count as offered before the kubelet has a list", c.event, r.Report().Offered)
		}
	}
	if s := r.Report(); s.Offered != 2 || s.Phase != Offered || !s.Streaming {
		t.Fatalf("report %+v", s)
	}
	return r
}

type timedEvent struct {
	ms    int
	event ResourceEvent
	want  string
}

func TestResource(t *testing.T) {
	allocate := func(call uint64) AllocateBegin { return AllocateBegin{Call: call, Devices: []string{"x"}} }
	const refused = `refuse: devices of this resource cannot be allocated now (phase withdrawing)`
	for name, moments := range map[string][]timedEvent{
		"a withdrawal with nothing running": {
			{0, Close{Epoch: 2}, "send [-x -y]"},
			{3, Sent{1, 2}, "confirm"},
			{4, Confirmed{Epoch: 2, Known: true, Offered: 1}, "arm confirm 54"},
			{54, Expired{TimerConfirm}, "confirm"},
			{55, Confirmed{Epoch: 1, Known: true}, ""},
			{55, Confirmed{Epoch: 2, Known: true}, "arm quiet 1055"},
			{1000, Expired{TimerRemove}, "arm quiet 1055"},
			{1055, Expired{TimerRemove}, "send []"},
		},
		"a withdrawal from a suspended kubelet": {
			{0, Close{Epoch: 2}, "send [-x -y]"},
			{3, Sent{1, 2}, "confirm"},
			{9000, Confirmed{Epoch: 2, Known: true}, "arm quiet 10000"},
			{10000, Expired{TimerRemove}, "send []"},
		},
		"a withdrawal with a call": {
			{0, allocate(1), "admit"},
			{0, Close{Epoch: 2}, "arm drain 500"},
			{1, allocate(2), refused},
			{100, AllocateCheck{Call: 1}, refused},
			{101, AllocateEnd{Call: 1}, "send [-x -y]"},
			{102, Sent{1, 2}, "confirm"},
			{103, Confirmed{Epoch: 2}, "arm quiet 1103"},
			{1000, allocate(3), "refuse: devices of this resource cannot be allocated now (phase withdrawn), arm quiet 2000"},
			{1103, Expired{TimerRemove}, "arm quiet 2000"},
			{2000, Expired{TimerRemove}, "send []"},
		},
		"a call that times out": {
			{0, allocate(1), "admit"},
			{0, Close{Epoch: 2}, "arm drain 500"},
			{500, Expired{TimerDrain}, "send [-x -y]"},
			{501, Sent{1, 2}, ""},
			{9000, AllocateEnd{Call: 1}, "confirm"},
			{9001, Confirmed{Epoch: 2}, "arm quiet 10001"},
			{10001, Expired{TimerRemove}, "send []"},
		},
		"opened again during a call": {
			{0, allocate(1), "admit"},
			{0, Close{Epoch: 2}, "arm drain 500"},
			{1, Open{Epoch: 3}, ""},
			{2, AllocateCheck{Call: 1}, "refuse: the devices were withdrawn while the call was in flight; recreate the pod"},
			{3, AllocateEnd{Call: 1}, ""},
			{4, allocate(2), "admit"},
			{5, AllocateCheck{Call: 2}, "approve"},
		},
		"removed device": {
			{0, allocate(1), "admit"},
			{0, Snapshot{Devices: []Device{{ID: "y", Healthy: true}}}, "send [-x y]"},
			{1, Sent{1, 2}, ""},
			{2, AllocateCheck{Call: 1}, `refuse: device "x" does not exist`},
			{2, AllocateEnd{Call: 1}, "arm quiet 1002"},
			{1002, Expired{TimerRemove}, "send [y]"},
		},
		"removed and restored device": {
			{0, Snapshot{Devices: []Device{{ID: "y", Healthy: true}}}, "send [-x y]"},
			{1, Sent{1, 2}, "arm quiet 1001"},
			{2, Snapshot{Devices: []Device{{ID: "x", Healthy: true}, {ID: "y", Healthy: false}}}, "send [x -y]"},
			{3, AllocateBegin{Call: 1, Devices: []string{"x", "y"}}, `refuse: device "y" is not healthy`},
			{1001, Expired{TimerRemove}, ""},
		},
		"all devices removed": {
			{0, allocate(1), "admit"},
			{0, Snapshot{}, "send [-x -y]"},
			{1, Sent{1, 2}, ""},
			{2, AllocateEnd{Call: 1}, "arm quiet 1002"},
			{1002, Expired{TimerRemove}, "send []"},
		},
		"a lost stream": {
			{0, StreamDown{1}, "arm register 2000"},
			{2000, Expired{TimerRegister}, "serve"},
			{2000, Served{Err: errors.New("e")}, "arm register 6000"},
			{6000, Expired{TimerRegister}, "serve"},
			{6000, Served{}, "register"},
			{6000, Registered{Err: errors.New("e")}, "arm register 14000"},
			{14000, Expired{TimerRegister}, "serve"},
			{14000, Served{}, "register"},
			{14000, Registered{}, "arm register 30000"},
			{30000, Expired{TimerRegister}, "serve"},
			{30000, Served{}, "register"},
			{30000, Registered{}, "arm register 60000"},
			{30001, StreamUp{2}, "send [x y]"},
			{60000, Expired{TimerRegister}, ""},
		},
		"a stable stream resets the backoff": {
			{0, StreamDown{1}, "arm register 2000"},
			{2000, Expired{TimerRegister}, "serve"},
			{2000, StreamUp{2}, "send [x y]"},
			{12000, StreamDown{2}, "arm register 14000"},
		},
		"a stream that the kubelet opens by itself": {
			{0, StreamDown{1}, "arm register 2000"},
			{500, StreamUp{2}, "send [x y]"},
			{2000, Expired{TimerRegister}, ""},
			{2100, StreamDown{1}, ""},
		},
		"a kubelet that starts again": {
			{0, StreamDown{1}, "arm register 2000"},
			{100, KubeletStarted{}, "arm register 1000"},
			{1000, Expired{TimerRegister}, "serve"},
		},
		"a kubelet that starts before its old stream ends": {{0, KubeletStarted{}, ""}, {100, StreamDown{1}, "arm register 1100"}},
		"a kubelet that starts again while withdrawn": {
			{0, Close{Epoch: 2}, "send [-x -y]"},
			{1, StreamDown{1}, "arm register 2001, confirm"},
			{2, Confirmed{Epoch: 2}, "arm quiet 1002"},
			{2001, Expired{TimerRegister}, "serve"},
			{2001, Served{}, "register"},
			{2001, StreamUp{2}, "send []"},
		},
		"an undelivered list": {{0, Close{Epoch: 2}, "send [-x -y]"}, {1, Sent{1, 1}, ""}, {2, Sent{1, 2}, "confirm"}},
		"an empty first list after a call": {
			{0, StreamDown{1}, "arm register 2000"},
			{0, Close{Epoch: 2}, "confirm"},
			{1, Confirmed{Epoch: 2}, "arm quiet 1001"},
			{1001, Expired{TimerRemove}, ""},
			{1500, allocate(1), "refuse: devices of this resource cannot be allocated now (phase withdrawn)"},
			{1600, StreamUp{2}, "arm quiet 2500"},
			{2500, Expired{TimerRemove}, "send []"},
		},
		"shutdown": {
			{0, Shutdown{Epoch: 2}, "send [-x -y]"},
			{1, Sent{1, 2}, "confirm"},
			{2, Open{Epoch: 3}, ""},
			{2, Confirmed{Epoch: 2, Known: true}, "arm quiet 1002"},
			{1002, Expired{TimerRemove}, "send []"},
			{1003, Sent{1, 3}, "arm linger 1103"},
			{1103, Expired{TimerStop}, "stop"},
			{1104, allocate(9), "refuse: the plugin is shutting down"},
			{1104, StreamUp{9}, ""},
		},
		"halt": {{0, allocate(1), "admit"}, {0, Halt{}, "stop"}, {0, AllocateCheck{1}, "refuse: the plugin is shutting down"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := offeredResource(t)
			for i, m := range moments {
				if got := r.at(m.ms, m.event); !same(got, m.want) {
					t.Fatalf("step %d, %T%+v at %d ms: %q, want %q", i+1, m.event, m.event, m.ms, got, m.want)
				}
			}
		})
	}
}

// same compares actions in any order: none of those below depends on another.
func same(a, b string) bool {
	x, y := strings.Split(a, ", "), strings.Split(b, ", ")
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

func TestNotRegistered(t *testing.T) {
	r := &rig{NewResource()}
	for i, m := range []timedEvent{
		{0, Snapshot{Devices: []Device{{ID: "x", Healthy: true}}}, ""},
		{0, KubeletStarted{}, ""},
		{0, AllocateBegin{Call: 1, Devices: []string{"x"}}, "refuse: devices of this resource cannot be allocated now (phase idle)"},
		{0, Close{Epoch: 1}, ""},
		{0, Snapshot{}, ""},
		{0, Open{Epoch: 2}, ""},
		{0, Close{Epoch: 3}, ""},
		{0, Open{Epoch: 4}, ""},
		{0, Snapshot{Devices: []Device{{ID: "x", Healthy: false}}}, "serve"},
	} {
		if got := r.at(m.ms, m.event); got != m.want {
			t.Fatalf("step %d, %T: %q, want %q", i+1, m.event, got, m.want)
		}
	}
	if got := (&rig{NewResource()}).at(0, Shutdown{Epoch: 1}); got != "stop" {
		t.Errorf("the end of one that is not known: %q", got)
	}
}

func TestWithdrawnDevicesAreNotListed(t *testing.T) {
	r := &rig{NewResource()}
	r.at(0, Snapshot{Devices: []Device{{ID: "x", Healthy: true}}}, Open{Epoch: 1}, Served{}, Close{Epoch: 2})
	if got := r.at(0, StreamUp{Stream: 1}); got != "send []" {
		t.Errorf("the first list: %q", got)
	}
}

func TestEmptyFirstListWaitsForCalls(t *testing.T) {
	r := &rig{NewResource()}
	r.at(0, Snapshot{Devices: []Device{{ID: "x", Healthy: true}}}, Open{Epoch: 1}, Served{}, AllocateBegin{Call: 1, Devices: []string{"x"}}, Snapshot{})
	if got := r.at(0, StreamUp{Stream: 1}); got != "" {
		t.Errorf("while the call runs: %q", got)
	}
	if got := r.at(5, AllocateEnd{Call: 1}); got != "arm quiet 1005" {
		t.Errorf("after the call: %q", got)
	}
	if got := r.at(1005, Expired{TimerRemove}); got != "send []" {
		t.Errorf("a second later: %q", got)
	}
}

func TestReportNamesWhatAWithdrawalWaitsFor(t *testing.T) {
	r := offeredResource(t)
	r.at(0, AllocateBegin{Call: 1, Devices: []string{"x"}}, Close{Epoch: 2})
	want := func(words string) {
		t.Helper()
		if s := r.Report(); !strings.Contains(s.Error, words) || s.Phase != Withdrawing || s.Offered != 0 {
			t.Errorf("report %+v, want %q", s, words)
		}
	}
	want("1 Allocate calls are still in flight")
	r.at(1, AllocateEnd{Call: 1})
	want("has not read the list")
	r.at(2, Sent{1, 2}, Confirmed{Epoch: 2, Known: true, Offered: 3})
	want("still has 3 allocatable")
	// The answer was for the first closing.
	if got := r.at(3, Close{Epoch: 3}, Confirmed{Epoch: 2, Known: true}); got != "" || r.phase != Withdrawing {
		t.Errorf("%q, %s", got, r.phase)
	}
	if got := r.at(52, Expired{TimerConfirm}); got != "confirm" {
		t.Errorf("asks again: %q", got)
	}
	if got := r.at(53, Close{Epoch: 4}, Confirmed{Epoch: 3, Known: true}); got != "confirm" || r.phase != Withdrawing {
		t.Errorf("a third closing while the second is asked about: %q, %s", got, r.phase)
	}
	r.at(54, Confirmed{Epoch: 4, Known: true, InUse: []Held{{ID: "x"}}})
	if s := r.Report(); s.Phase != Withdrawn || !s.Confirmed || len(s.InUse) != 1 || s.Error != "" {
		t.Errorf("report %+v", s)
	}
}

// The state must not flap while the kubelet refuses.
func TestFailureStaysUntilTheNextAnswer(t *testing.T) {
	r, now := NewResource(), time.Unix(1000, 0)
	says := func(what, want string, e ResourceEvent) {
		t.Helper()
		now = now.Add(MaxBackoff)
		r.Step(now, e)
		if got := r.Report().Error; got != want {
			t.Errorf("%s: the resource says %q, want %q", what, got, want)
		}
	}
	r.Step(now, Snapshot{Devices: []Device{{ID: "a", Healthy: true}}})
	says("opened", "", Open{Epoch: 1})
	says("not served", "in use", Served{Err: errors.New("in use")})
	says("again", "in use", Expired{Timer: TimerRegister})
	says("served", "", Served{})
	says("refused", "no", Registered{Err: errors.New("no")})
	says("again", "no", Expired{Timer: TimerRegister})
	says("served", "no", Served{})
	says("registered", "", Registered{})
	says("listening", "", StreamUp{Stream: 1})
}
