package vm

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/wire"
)

// newUnbootedGuest returns a guest without QEMU; the test acts as its agent.
func newUnbootedGuest(t *testing.T) *Guest {
	t.Helper()
	g := testkit.Value(prepareGuest(Spec{Name: "unborn"}.withDefaults()))(t)
	g.work.Go(g.accept)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func call(t *testing.T, g *Guest, hello string) net.Conn {
	t.Helper()
	conn := testkit.Value(net.Dial("tcp", g.listener.Addr().String()))(t)
	t.Cleanup(func() { conn.Close() })
	testkit.Value(io.WriteString(conn, hello))(t)
	return conn
}

func hello(t *testing.T, h wire.Hello) string {
	t.Helper()
	var b strings.Builder
	testkit.Must(t, wire.Write(&b, h))
	return b.String()
}

func TestUnauthenticatedConnectionsAreClosed(t *testing.T) {
	g := newUnbootedGuest(t)
	for name, text := range map[string]string{
		"wrong token": hello(t, wire.Hello{Version: wire.Version, Token: "guessed"}),
		"no hello":    "GET / HTTP/1.1\r\n",
	} {
		conn := call(t, g, text)
		if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v", name, err)
		}
	}
	select {
	case err := <-g.ready:
		t.Errorf("an unauthenticated connection made the guest ready (%v)", err)
	case <-g.idle:
		t.Error("an unauthenticated connection was kept")
	default:
	}
}

func TestAgentFaultFailsBoot(t *testing.T) {
	for want, h := range map[string]wire.Hello{
		"build both from the same tree":                  {Version: wire.Version + 1},
		"guest setup failed: load kernel module /lib/xy": {Version: wire.Version, Fault: "load kernel module /lib/xy"},
	} {
		g := newUnbootedGuest(t)
		h.Token = g.token
		call(t, g, hello(t, h))
		if err := g.waitReady(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

func TestBootTimesOutWithoutAgent(t *testing.T) {
	g := newUnbootedGuest(t)
	g.spec.BootTime = 50 * time.Millisecond
	if err := g.waitReady(t.Context()); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "was not ready in time") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := g.Run(ctx, "true"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no idle connection") {
		t.Errorf("%v", err)
	}
}

// playAgent answers one request as the agent and sends the request to the returned
// channel.
func playAgent(t *testing.T, g *Guest, answer func(net.Conn, *wire.Frames)) <-chan wire.Request {
	t.Helper()
	conn := call(t, g, hello(t, wire.Hello{Version: wire.Version, Token: g.token}))
	asked := make(chan wire.Request, 1)
	go func() {
		defer conn.Close()
		r, err := wire.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			t.Errorf("read the host's request: %v", err)
		}
		asked <- r
		answer(conn, wire.NewFrames(conn))
	}()
	return asked
}

func TestProcessExitIsUnknownAfterDisconnect(t *testing.T) {
	g := newUnbootedGuest(t)
	asked := playAgent(t, g, func(_ net.Conn, f *wire.Frames) {
		if err := errors.Join(f.Send(wire.Started, []byte(`{"pid":7}`)), f.Send(wire.Stdout, []byte("half a li"))); err != nil {
			t.Error(err)
		}
	})
	out, err := g.Run(t.Context(), "prog", "arg")
	if r := <-asked; r.Op != wire.OpExec || strings.Join(r.Exec.Argv, " ") != "prog arg" {
		t.Errorf("got request %+v", r)
	}
	var exit *ExitError
	if out != "half a li" || err == nil || errors.As(err, &exit) {
		t.Errorf("got output %q, error %v", out, err)
	}
}

func TestAgentErrorsAreReturned(t *testing.T) {
	g := newUnbootedGuest(t)
	reply := func(conn net.Conn, _ *wire.Frames) {
		if err := wire.Write(conn, wire.Reply{Error: "no such file"}); err != nil {
			t.Error(err)
		}
	}
	for name, ask := range map[string]func() error{
		"dial": func() error { _, err := g.Dial(t.Context(), "unix", "/run/x.sock"); return err },
		"pull": func() error { _, err := g.ReadFile(t.Context(), "/x"); return err },
		"push": func() error { return g.WriteFile(t.Context(), "/x", []byte("data"), 0o600) },
	} {
		playAgent(t, g, reply)
		if err := ask(); err == nil || !strings.Contains(err.Error(), "no such file") || !strings.Contains(err.Error(), "guest unborn") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := g.WriteFile(t.Context(), "x", nil, 0o600); err == nil || !strings.Contains(err.Error(), "not absolute and clean") {
		t.Errorf("a relative path: %v", err)
	}
}

// Dial returns when its context ends, even if the agent does not reply.
func TestDialEndsWithItsContext(t *testing.T) {
	g := newUnbootedGuest(t)
	silent := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	playAgent(t, g, func(net.Conn, *wire.Frames) { cancel(); <-silent }) // it has read the request
	defer close(silent)
	if _, err := g.Dial(ctx, "tcp", "127.0.0.1:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
