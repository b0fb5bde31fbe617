package watch

import (
	"testing"
	"time"
)

var ending = failure{step: Registered, text: "refused", reason: ofDeath}

func (s *sim) checked(path string, found liveness) {
	token := s.token(path)
	s.do(func() { s.m.checked(token, found, ending) })
}

func (s *sim) hungUp(path string) {
	token := s.token(path)
	s.do(func() { s.m.hungUp(token) })
}

func inUse(t *testing.T, grace time.Duration) *sim {
	s := newSim(t, func(r *rules) { r.Grace = grace })
	s.registered("a", "n")
	s.after(firstLook)
	s.want("check a")
	return s
}

func TestDeath(t *testing.T) {
	for _, grace := range []time.Duration{0, time.Minute} {
		s := inUse(t, grace)
		s.checked("a", alive)
		s.after(time.Hour)
		s.want()
		s.hungUp("a")
		s.want("check a")
		s.checked("a", dead)
		if s.m.places["a"].now.status.Dead {
			t.Error("one refusal is death")
		}
		s.pauses()
		s.want("check a")
		s.checked("a", dead)
		if got := s.m.places["a"].now.status; !got.Dead || got.Reason != ofDeath || got.Phase != Registered {
			t.Errorf("status %+v", got)
		}
		if grace == 0 {
			s.after(24 * time.Hour)
			s.want()
			continue
		}
		if got := s.pauses(); got != grace {
			t.Errorf("a grace of %s", got)
		}
		s.want("deregister a")
		s.ok(deRegister, "a")
		if got := s.m.places["a"].now.status; got.Dead || got.Phase != Failed || got.Step != Registered {
			t.Errorf("status %+v", got)
		}
		s.pauses()
		s.want("ask a")
	}
}

func TestRevival(t *testing.T) {
	s := inUse(t, time.Minute)
	s.checked("a", dead)
	s.pauses()
	s.checked("a", dead)
	s.did = nil
	token := s.token("a")
	s.do(func() { s.m.act(s.m.sockets[token], checkAlive) })
	s.checked("a", alive)
	if got := s.m.places["a"].now.status; got.Dead || got.Error != "" || !got.NextTry.IsZero() {
		t.Errorf("status %+v", got)
	}
	s.did = nil
	s.after(time.Hour)
	s.want()
}

// A plugin that ends every connection soon is looked at ever more rarely.
func TestRestless(t *testing.T) {
	s := inUse(t, 0)
	s.checked("a", alive)
	var last time.Duration
	for range 20 {
		s.hungUp("a")
		last = s.pauses()
		s.want("check a")
		s.checked("a", alive)
	}
	if last != mostRare {
		t.Errorf("looks come every %s", last)
	}
	s.after(time.Minute)
	s.hungUp("a")
	s.want("check a") // at once, after a calm time
	s.checked("a", unsure)
	s.pauses()
	s.want("check a")
}

func TestNoLookAtWhatLeaves(t *testing.T) {
	s := inUse(t, 0)
	s.gone("a")
	s.want("deregister a")
	s.checked("a", dead)
	s.hungUp("a")
	s.ok(deRegister, "a")
	s.want()
	s.do(func() { s.m.hungUp(12345) })
}

func TestIdleHTTP(t *testing.T) {
	settings := "\x00\x00\x06\x04\x00\x00\x00\x00\x00" + "\x00\x05\x00\x00\x40\x00"
	window := "\x00\x00\x04\x08\x00\x00\x00\x00\x00" + "\x00\x00\x00\x01"
	ping := "\x00\x00\x08\x06\x00\x00\x00\x00\x00" + "12345678"
	settingsAck, pingAck := "\x00\x00\x00\x04\x01\x00\x00\x00\x00", "\x00\x00\x08\x06\x01\x00\x00\x00\x00"+"12345678"
	for name, c := range map[string]struct {
		in, out string
		bye     bool
	}{
		"nothing":         {},
		"settings":        {in: settings, out: settingsAck},
		"all":             {in: settings + settingsAck + window + ping + pingAck + ping, out: settingsAck + pingAck + pingAck},
		"go away":         {in: "\x00\x00\x08\x07\x00\x00\x00\x00\x00", bye: true},
		"large":           {in: "\x01\x00\x00\x00\x00\x00\x00\x00\x00", bye: true},
		"ping of 9 bytes": {in: "\x00\x00\x09\x06\x00\x00\x00\x00\x00" + "123456789", bye: true},
		"HTTP/1":          {in: "HTTP/1.1 400 Bad Request\r\n", bye: true},
	} {
		for _, size := range []int{1, 7, 1000} { // however it comes
			var h idleHTTP
			var out string
			var bye bool
			for in := c.in; in != "" && !bye; in = in[min(size, len(in)):] {
				var answer []byte
				answer, bye = h.read([]byte(in[:min(size, len(in))]))
				out += string(answer)
			}
			if bye != c.bye || !bye && out != c.out {
				t.Errorf("%s in pieces of %d: %q, bye %t; want %q, %t", name, size, out, bye, c.out, c.bye)
			}
		}
	}
}

// Whatever a peer says, little is kept of it, and it is understood the same way
// in one piece or in many.
func FuzzIdleHTTP(f *testing.F) {
	f.Add([]byte("\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678"), uint8(3))
	f.Add([]byte("\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00"), uint8(9))
	f.Fuzz(func(t *testing.T, in []byte, cut uint8) {
		var whole, parts idleHTTP
		want, wantBye := whole.read(in)
		at := min(int(cut), len(in))
		got, bye := parts.read(in[:at])
		if !bye {
			var more []byte
			more, bye = parts.read(in[at:])
			got = append(got, more...)
		}
		if bye != wantBye || !bye && string(got) != string(want) {
			t.Errorf("in one piece %q, %t; cut at %d %q, %t", want, wantBye, at, got, bye)
		}
		if len(whole.head) > frameHead+8 || len(want) > 2*len(in)+frameHead {
			t.Errorf("keeps %d bytes, answers %d to %d", len(whole.head), len(want), len(in))
		}
	})
}
