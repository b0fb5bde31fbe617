package grpcline

import (
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// stirs lets an idle line do its part until it ends, as long as the time.
func stirs(i *Idle, within time.Duration) (ended bool) {
	for begun := time.Now(); time.Since(begun) < within; time.Sleep(time.Millisecond) {
		if !i.Stir() {
			return true
		}
	}
	return false
}

func rest(t *testing.T, l *Line) *Idle {
	t.Helper()
	i, err := l.Rest()
	must(t, err)
	t.Cleanup(func() { _ = i.Close() })
	return i
}

// A server with little patience may end a line of a machine that stands still,
// so it is given more of it until it does not.
func TestIdleStays(t *testing.T) {
	for within := time.Second; ; within *= 2 {
		if staysIdle(t, within) {
			return
		}
		if within > 10*time.Second {
			t.Fatal("the server ended an idle line")
		}
	}
}

// staysIdle lets a server ask two idle lines twice for a sign of life.
func staysIdle(t *testing.T, within time.Duration) bool {
	_, l := serve(t, &service{info: named("n")}, grpc.KeepaliveParams(keepalive.ServerParameters{Time: within, Timeout: within}))
	fresh := dial(t, l.raw.RemoteAddr().String())
	must(t, fresh.Greet())
	_, err := ask(t, l)
	must(t, err)
	one, two := rest(t, l), rest(t, fresh)
	ended := make(chan bool)
	go func() { ended <- stirs(one, within*27/10) }() // two pings
	other := stirs(two, within*27/10)
	return !<-ended && !other
}

func TestIdleEnds(t *testing.T) {
	for name, end := range map[string]func(*grpc.Server){"stop": (*grpc.Server).Stop, "graceful stop": (*grpc.Server).GracefulStop} {
		server, l := serve(t, &service{info: named("n")})
		_, err := ask(t, l)
		must(t, err)
		i := rest(t, l)
		stopped := make(chan struct{})
		go func() { defer close(stopped); end(server) }()
		if !stirs(i, patience) {
			t.Errorf("%s: the line did not end", name)
		}
		must(t, i.Close())
		<-stopped
	}
}

func TestNoRest(t *testing.T) {
	l := answering(t, func(s *script) { s.begin().data(named1).end(); _ = s.WriteGoAway(1, 0, nil) })
	_, err := ask(t, l)
	must(t, err)
	if _, err := l.Rest(); err == nil {
		t.Error("the server goes away, and the line rests")
	}
	one, two := net.Pipe()
	defer two.Close()
	if _, err := New(one, time.Second).Rest(); err == nil {
		t.Error("a pipe rests, which has no descriptor")
	}
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
