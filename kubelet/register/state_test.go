package register

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/internal/unixsock"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }

func TestStates(t *testing.T) {
	place := func(r *record) { r.place(at(10)) }
	ask := func(r *record) { r.getInfo(at(12)) }
	yes := func(r *record) { r.notified(at(13), true, "") }
	no := func(text string) func(*record) { return func(r *record) { r.notified(at(13), false, text) } }
	miss := func(why error) func(*record) { return func(r *record) { r.miss(at(14), why) } }
	lose := func(r *record) { r.lose(at(14), errors.New("another process removed it")) }
	again := func(r *record) { r.place(at(15)) }
	live := fmt.Errorf("socket /x: %w (process 7)", unixsock.ErrLive)
	for name, c := range map[string]struct {
		events []func(*record)
		now    int
		want   State
		since  int
		reason []string
	}{
		"no directory":             {[]func(*record){miss(errors.New("the directory /d is not there"))}, 20, Absent, 0, []string{"/d"}},
		"other live socket":        {[]func(*record){miss(live)}, 20, Yielding, 14, []string{"process 7", "takes over"}},
		"other socket gone":        {[]func(*record){miss(live), again}, 20, Waiting, 15, nil},
		"in place":                 {[]func(*record){place}, 39, Waiting, 10, nil},
		"in place for long":        {[]func(*record){place}, 40, Silent, 40, []string{"30s", "/var/lib/kubelet", "microk8s", "mounted from the host", "107"}},
		"asked":                    {[]func(*record){place, ask}, 161, Asked, 12, nil},
		"asked long ago":           {[]func(*record){place, ask}, 162, Asked, 12, []string{"2m30s", "1 s"}},
		"yes":                      {[]func(*record){place, ask, yes}, 1000, Registered, 13, nil},
		"yes, and asked again":     {[]func(*record){place, ask, yes, ask}, 1000, Registered, 13, nil},
		"no":                       {[]func(*record){place, ask, no("words")}, 14, Refused, 13, []string{"host's error", "retries"}},
		"no, and asked again":      {[]func(*record){place, ask, no("words"), ask}, 14, Refused, 13, nil},
		"no, then yes":             {[]func(*record){place, ask, no("words"), ask, yes}, 14, Registered, 13, nil},
		"yes, after a duplicate":   {[]func(*record){place, ask, no("the name is already registered"), ask, yes}, 14, Asked, 13, []string{"registers again"}},
		"yes, then no":             {[]func(*record){place, ask, yes, ask, no("words")}, 14, Refused, 13, nil},
		"result without GetInfo":   {[]func(*record){place, yes}, 14, Waiting, 10, nil},
		"lost":                     {[]func(*record){place, ask, yes, lose}, 20, Absent, 14, []string{"another process removed it"}},
		"yes while lost":           {[]func(*record){place, ask, lose, yes}, 20, Absent, 14, nil},
		"put back":                 {[]func(*record){place, ask, yes, lose, again}, 20, Waiting, 15, nil},
		"late yes to the lost one": {[]func(*record){place, ask, lose, again, yes}, 20, Waiting, 15, nil},
		"recreated, no GetInfo":    {[]func(*record){place, ask, yes, lose, again}, 45, Silent, 45, nil},
		"a duplicate":              {[]func(*record){place, ask, no(`plugin "x" is already registered with a higher supported version`)}, 14, Refused, 13, []string{"another instance"}},
		"an unreachable endpoint":  {[]func(*record){place, ask, no("dial unix /run/csi.sock: connect: no such file or directory")}, 14, Refused, 13, []string{"on the host"}},
		"an unknown type":          {[]func(*record){place, ask, no("no handler registered for plugin type: X at socket Y")}, 14, Refused, 13, []string{"does not handle"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := record{missing: errors.New("not begun"), changed: noon}
			for _, e := range c.events {
				e(&r)
			}
			s := r.status(at(c.now), 30*time.Second)
			if s.State != c.want || !s.Since.Equal(at(c.since)) {
				t.Errorf("state %s since %v, want %s since %v", s.State, s.Since, c.want, at(c.since))
			}
			for _, word := range c.reason {
				if !strings.Contains(s.Reason, word) {
					t.Errorf("the reason lacks %q: %s", word, s.Reason)
				}
			}
			if bad := s.State == Absent || s.State == Yielding || s.State == Silent || s.State == Refused; bad && s.Reason == "" {
				t.Error("something is wrong and no reason is given")
			}
			if (s.State == Registered || s.State == Waiting) && s.Reason != "" || (s.State == Refused) != (s.Error != "") {
				t.Errorf("reason %q, error %q", s.Reason, s.Error)
			}
		})
	}
}

// In any sequence of calls, the state is Registered only while the last result
// was success and followed a GetInfo on the current socket.
func TestRegisteredNeedsResultForCurrentSocket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := record{missing: errors.New("not begun"), changed: noon}
		now := noon
		placed, asked, said := false, false, ""
		questions, losses, refusals := 0, 0, 0
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "seconds")) * time.Second)
			switch e := rapid.SampledFrom([]string{"place", "miss", "lose", "ask", "yes", "no"}).Draw(t, "event"); e {
			case "place":
				r.place(now)
				placed, asked, said = true, false, ""
			case "miss":
				r.miss(now, rapid.SampledFrom([]error{unixsock.ErrLive, errors.New("x")}).Draw(t, "why"))
				placed, asked, said = false, false, ""
			case "lose":
				r.lose(now, errors.New("gone"))
				losses++
				placed, asked, said = false, false, ""
			case "ask":
				r.getInfo(now)
				questions++
				asked = placed
			default:
				counts := r.notified(now, e == "yes", "text")
				if counts != asked {
					t.Fatalf("a word counts: %v, want %v", counts, asked)
				}
				if counts {
					said = e
				}
				if counts && e == "no" {
					refusals++
				}
			}
			s := r.status(now, 30*time.Second)
			if (s.State == Registered) != (said == "yes") || (s.State == Refused) != (said == "no") {
				t.Fatalf("state %s, and the host said %q", s.State, said)
			}
			if (s.State == Absent || s.State == Yielding) == placed {
				t.Fatalf("state %s, and there is a socket: %v", s.State, placed)
			}
			if s.Since.After(now) || s.Questions != questions || s.Losses != losses || s.Refusals != refusals {
				t.Fatalf("%+v at %v, want %d questions, %d losses, %d refusals", s, now, questions, losses, refusals)
			}
		}
	})
}

func TestReminders(t *testing.T) {
	var p reporter
	silent := Status{State: Silent, Reason: "no GetInfo"}
	for i, c := range []struct {
		at   int
		s    Status
		want bool
	}{
		{0, Status{State: Waiting}, true},
		{1, Status{State: Waiting}, false},
		{3600, Status{State: Waiting}, false},
		{30, silent, true},
		{32, silent, false},
		{89, silent, false},
		{90, silent, true},
		{209, silent, false},
		{210, silent, true},
		{300, Status{State: Refused, Error: "a", Reason: "r"}, true},
		{301, Status{State: Refused, Error: "a", Reason: "r"}, false},
		{302, Status{State: Refused, Error: "b", Reason: "r"}, true},
		{361, Status{State: Refused, Error: "b", Reason: "r"}, false},
		{362, Status{State: Refused, Error: "b", Reason: "r"}, true},
		{400, Status{State: Absent, Reason: "no directory"}, true},
		{401, Status{State: Absent, Reason: "no directory"}, false},
		{402, Status{State: Absent, Reason: "not a socket"}, true},
		{403, Status{State: Registered}, true},
		{9000, Status{State: Registered}, false},
	} {
		if got := p.due(c.s, at(c.at)); got != c.want {
			t.Errorf("%d: %s at %d s is logged: %v", i, c.s.State, c.at, got)
		}
	}
	now := at(10000)
	p.due(silent, now)
	for range 20 {
		now = now.Add(p.pause)
		if !p.due(silent, now) {
			t.Fatalf("no reminder after %v", p.pause)
		}
	}
	if p.pause != lastReminder {
		t.Errorf("the pause grows to %v", p.pause)
	}
}
