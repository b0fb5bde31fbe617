package gate

import (
	"errors"
	"testing"
	"time"
)

// What came of the last try to register stays to be seen while the next is under
// way: else the state would flutter for as long as the kubelet refuses.
func TestFailureStaysUntilTheNextAnswer(t *testing.T) {
	r, now := NewResource(), time.Unix(1000, 0)
	says := func(what, want string, e ResourceEvent) {
		t.Helper()
		now = now.Add(MaxPause)
		r.Step(now, e)
		if got := r.Report().Error; got != want {
			t.Errorf("%s: the resource says %q, want %q", what, got, want)
		}
	}
	r.Step(now, Snapshot{Devices: []Device{{ID: "a", Healthy: true}}})
	says("opened", "", Open{Epoch: 1})
	says("not served", "in use", Served{Err: errors.New("in use")})
	says("again", "in use", Fired{Timer: TimerRegister})
	says("served", "", Served{}) // and what was about serving is over
	says("refused", "no", Registered{Err: errors.New("no")})
	says("again", "no", Fired{Timer: TimerRegister})
	says("served", "no", Served{})
	says("registered", "", Registered{})
	says("listening", "", StreamUp{Stream: 1})
}
