package grpcline

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// script is what a server writes after it has read the call on stream 1.
type script struct {
	*http2.Framer
	out bytes.Buffer
	enc *hpack.Encoder
	buf bytes.Buffer
}

func newScript() *script {
	s := &script{}
	s.Framer = http2.NewFramer(&s.out, nil)
	s.Framer.AllowIllegalWrites = true
	s.enc = hpack.NewEncoder(&s.buf)
	return s
}

func (s *script) block(fields ...string) []byte {
	s.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = s.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(s.buf.Bytes())
}

func (s *script) headers(end bool, fields ...string) *script {
	_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: s.block(fields...), EndHeaders: true, EndStream: end})
	return s
}

func (s *script) begin() *script {
	return s.headers(false, ":status", "200", "content-type", "application/grpc")
}

func (s *script) data(b string) *script { _ = s.WriteData(1, false, []byte(b)); return s }
func (s *script) end(fields ...string) *script {
	return s.headers(true, append([]string{"grpc-status", "0"}, fields...)...)
}

const named1 = "\x00\x00\x00\x00\x03\x12\x01n" // a PluginInfo with the name n

// answering serves one connection, and then does what more there is to do.
func answering(t *testing.T, write func(s *script), then ...func(net.Conn)) *Line {
	return dial(t, listen(t, func(l net.Listener) {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		readCall(c)
		s := newScript()
		_ = s.WriteSettings()
		write(s)
		_, _ = c.Write(s.out.Bytes())
		for _, f := range then {
			f(c)
		}
		_, _ = io.Copy(io.Discard, c)
	}))
}

// readCall reads up to the end of the first call.
func readCall(c net.Conn) {
	_, _ = io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
	frames := http2.NewFramer(nil, c)
	for {
		frame, err := frames.ReadFrame()
		if data, ok := frame.(*http2.DataFrame); err != nil || ok && data.StreamEnded() {
			return
		}
	}
}

func TestOddAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		write func(s *script)
		code  codes.Code
		text  string
	}{
		"plain": {write: func(s *script) { s.begin().data(named1).end() }},
		"in pieces, with all that may come between": {write: func(s *script) {
			_ = s.WritePing(false, [8]byte{1})
			_ = s.WriteWindowUpdate(0, 1000)
			s.begin()
			_ = s.WriteRawFrame(0xfa, 0, 0, []byte("unknown frames are ignored"))
			_ = s.WritePriority(1, http2.PriorityParam{Weight: 3})
			for _, b := range named1 {
				s.data(string(b)).data("")
			}
			_ = s.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20})
			_ = s.WriteDataPadded(3, true, []byte("of another stream"), make([]byte, 20))
			s.end()
		}},
		"headers in pieces": {write: func(s *script) {
			b := s.block(":status", "200", "content-type", "application/grpc+proto", "a", strings.Repeat("b", 1000))
			_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:5]})
			_ = s.WriteContinuation(1, false, b[5:100])
			_ = s.WriteContinuation(1, true, b[100:])
			s.data(named1).end()
		}},
		"goes away after this": {write: func(s *script) {
			_ = s.WriteGoAway(1, http2.ErrCodeNo, nil)
			s.begin().data(named1).end()
		}},
		"trailers only": {func(s *script) {
			s.headers(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "5", "grpc-message", "a%20b%")
		}, codes.NotFound, "a%20b%"},
		"goes away":         {func(s *script) { _ = s.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, nil) }, codes.Unavailable, "ENHANCE_YOUR_CALM"},
		"refused":           {func(s *script) { _ = s.WriteRSTStream(1, http2.ErrCodeRefusedStream) }, codes.Unavailable, "REFUSED_STREAM"},
		"cancelled":         {func(s *script) { _ = s.WriteRSTStream(1, http2.ErrCodeCancel) }, codes.Canceled, "CANCEL"},
		"reset":             {func(s *script) { s.begin(); _ = s.WriteRSTStream(1, http2.ErrCodeProtocol) }, codes.Internal, "PROTOCOL_ERROR"},
		"no status":         {func(s *script) { s.begin().data(named1).headers(true, "a", "b") }, codes.Internal, "without a status"},
		"no trailers":       {func(s *script) { s.begin(); _ = s.WriteData(1, true, []byte(named1)) }, codes.Internal, "without a status"},
		"no number":         {func(s *script) { s.begin().data(named1).headers(true, "grpc-status", "ok") }, codes.Internal, "without a status"},
		"no message":        {func(s *script) { s.begin().end() }, codes.Internal, "not one message"},
		"two messages":      {func(s *script) { s.begin().data(named1 + named1).end() }, codes.Internal, "not one message"},
		"part of a message": {func(s *script) { s.begin().data(named1[:6]).end() }, codes.Internal, "not one message"},
		"compressed":        {func(s *script) { s.begin().data("\x01" + named1[1:]).end() }, codes.Internal, "compressed"},
		"no protobuf":       {func(s *script) { s.begin().data("\x00\x00\x00\x00\x01\xff").end() }, codes.Internal, "cannot be read"},
		"other content":     {func(s *script) { s.headers(false, ":status", "200", "content-type", "text/html") }, codes.Internal, "text/html"},
		"large headers":     {func(s *script) { s.headers(false, ":status", "200", "a", strings.Repeat("b", 20<<10)) }, codes.Unavailable, ""},
		"push": {func(s *script) {
			_ = s.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
		}, codes.Internal, "pushes"},
		"frame larger than agreed": {func(s *script) { s.begin().data(strings.Repeat("x", 20<<10)) }, codes.Unavailable, "too large"},
		"bad compression": {func(s *script) {
			_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff}, EndHeaders: true})
		}, codes.Unavailable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			info, err := ask(t, answering(t, c.write))
			got := status.Convert(err)
			if got.Code() != c.code || !strings.Contains(got.Message(), c.text) || err == nil && info.Name != "n" {
				t.Errorf("got %v, %v; want %s: %s", info, err, c.code, c.text)
			}
		})
	}
}

// A server whose window takes less than a request gets none.
func TestSmallWindow(t *testing.T) {
	l := answering(t, func(s *script) {
		_ = s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100})
		s.begin().data(named1).end()
	})
	testkit.Value(ask(t, l))(t)
	if err := tell(t, l, strings.Repeat("x", 200)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
}

// bytesConn is a connection on which a server has said everything at once.
type bytesConn struct {
	net.Conn
	in io.Reader
}

func (c bytesConn) Read(b []byte) (int, error)      { return c.in.Read(b) }
func (c bytesConn) Write(b []byte) (int, error)     { return len(b), nil }
func (c bytesConn) SetDeadline(time.Time) error     { return nil }
func (c bytesConn) SetReadDeadline(time.Time) error { return nil }
func (c bytesConn) Close() error                    { return nil }

// Whatever a server says, a call ends, and nothing large is kept.
func FuzzCall(f *testing.F) {
	for _, write := range []func(s *script){
		func(s *script) { s.begin().data(named1).end() },
		func(s *script) { _ = s.WriteGoAway(0, http2.ErrCodeNo, nil) },
		func(s *script) { s.headers(true, ":status", "404") },
		func(s *script) { _ = s.WritePing(false, [8]byte{}); s.begin(); _ = s.WriteRSTStream(1, 8) },
	} {
		s := newScript()
		_ = s.WriteSettings()
		write(s)
		f.Add(s.out.Bytes())
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		l := New(bytesConn{in: bytes.NewReader(in)}, time.Second)
		var info registration.PluginInfo
		err := l.Call(t.Context(), time.Second, getInfo, &registration.InfoRequest{}, &info)
		if err == nil && len(info.Name) > len(in) {
			t.Errorf("%d bytes became a name of %d", len(in), len(info.Name))
		}
		_ = l.Call(t.Context(), time.Second, notify, &registration.RegistrationStatus{}, &registration.RegistrationStatusResponse{})
		if l.out.Len() > len(in)+1000 {
			t.Errorf("%d bytes are to be answered to %d", l.out.Len(), len(in))
		}
		_ = fmt.Sprint(err)
	})
}

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
	i := testkit.Value(l.Rest())(t)
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
	testkit.Must(t, fresh.Greet())
	testkit.Value(ask(t, l))(t)
	one, two := rest(t, l), rest(t, fresh)
	ended := make(chan bool)
	go func() { ended <- stirs(one, within*27/10) }() // two pings
	other := stirs(two, within*27/10)
	return !<-ended && !other
}

func TestIdleEnds(t *testing.T) {
	for name, end := range map[string]func(*grpc.Server){"stop": (*grpc.Server).Stop, "graceful stop": (*grpc.Server).GracefulStop} {
		server, l := serve(t, &service{info: named("n")})
		testkit.Value(ask(t, l))(t)
		i := rest(t, l)
		stopped := make(chan struct{})
		go func() { defer close(stopped); end(server) }()
		if !stirs(i, patience) {
			t.Errorf("%s: the line did not end", name)
		}
		testkit.Must(t, i.Close())
		<-stopped
	}
}

func TestNoRest(t *testing.T) {
	l := answering(t, func(s *script) { s.begin().data(named1).end(); _ = s.WriteGoAway(1, 0, nil) })
	testkit.Value(ask(t, l))(t)
	testkit.WantError(t, "the server goes away, and the line rests", testkit.Err(l.Rest()), nil)
	one, two := net.Pipe()
	defer two.Close()
	testkit.WantError(t, "a pipe rests, which has no descriptor", testkit.Err(New(one, time.Second).Rest()), nil)
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
