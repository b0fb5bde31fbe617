package watchtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/kubelet/watch"
)

const good = "GetInfo, Validate, Register, Notify(true)"

// Calls and notifications when a step fails once; the next attempt begins with
// GetInfo.
func outcomes() []Case {
	refused := func(text string) string { return fmt.Sprintf("Notify(false, %q)", "RegisterPlugin error -- "+text) }
	hang := func(ctx context.Context, n int) error {
		return inFirst(n, func() error { <-ctx.Done(); return ctx.Err() })
	}
	fail := func(_ context.Context, n int) error {
		return inFirst(n, func() error { return errors.New("out of order") })
	}
	handlerFails := func(_ context.Context, _ watch.Plugin, n int) error { return fail(nil, n) }
	handlerPanics := func(_ context.Context, _ watch.Plugin, n int) error {
		return inFirst(n, func() error { panic("out of order") })
	}
	twice := strings.Replace(good, "GetInfo", "GetInfo ×2", 1)
	// Half a second off the kubelet's interval: an attempt that ends between
	// its reconciler's check (each second) and start is made twice.
	slow := func(s *Stage) func(context.Context, watch.Plugin, int) error {
		return func(ctx context.Context, _ watch.Plugin, n int) error {
			return inFirst(n, func() error { return pause(ctx, 2500*time.Millisecond) })
		}
	}
	plain := func(*Stage) {}
	return append([]Case{
		step("success", good, Script{}, plain),
		step("GetInfo fails", twice, Script{GetInfo: fail}, plain),
		step("GetInfo hangs", twice, Script{GetInfo: hang}, plain),
		step("GetInfo takes 0.3 s", good, Script{GetInfo: func(ctx context.Context, _ int) error { return pause(ctx, 300*time.Millisecond) }}, plain),
		step("Validate fails", "GetInfo, Validate, "+refused("plugin validation failed with err: out of order")+", "+good, Script{},
			func(s *Stage) { s.Validate = handlerFails }),
		step("Validate takes 2.5 s", good, Script{}, func(s *Stage) { s.Validate = slow(s) }),
		step("Register fails", "GetInfo, Validate, Register, "+refused("plugin registration failed with err: out of order")+", "+good, Script{},
			func(s *Stage) { s.Register = handlerFails }),
		step("Register takes 2.5 s", good, Script{}, func(s *Stage) { s.Register = slow(s) }),
		step("Notify(true) fails", good+", DeRegister, "+good, Script{Notify: fail}, plain),
		step("Notify(true) hangs", good+", DeRegister, "+good, Script{Notify: hang}, plain),
		step("Notify(false) fails", "GetInfo, Validate, "+refused("plugin validation failed with err: out of order")+", "+good,
			Script{Notify: fail}, func(s *Stage) { s.Validate = handlerFails }),
		step("Notify(false) hangs", "GetInfo, Validate, "+refused("plugin validation failed with err: out of order")+", "+good,
			Script{Notify: hang}, func(s *Stage) { s.Validate = handlerFails }),
		step("every step fails once", "GetInfo ×2, Validate, "+refused("plugin validation failed with err: out of order")+
			", GetInfo, Validate, Register, "+refused("plugin registration failed with err: out of order")+", "+good,
			Script{GetInfo: fail}, func(s *Stage) { s.Validate, s.Register = handlerFails, handlerFails }),
		differs(step("Validate panics", "GetInfo, Validate, "+refused("plugin validation failed with err: panic: out of order")+", "+good, Script{},
			func(s *Stage) { s.Validate = handlerPanics }), "a.sock: GetInfo, Validate, "+good,
			"a panic is an error like any other; the kubelet does not notify the plugin"),
		differs(step("Register panics", "GetInfo, Validate, Register, DeRegister, "+refused("plugin registration failed with err: panic: out of order")+", "+good, Script{},
			func(s *Stage) { s.Register = handlerPanics }), "a.sock: GetInfo, Validate, Register",
			"a panic is an error like any other, and a partial registration is rolled back; the kubelet treats the plugin as registered and never notifies it"),
		differs(failedDeregistration("DeRegister fails", "DeRegister ×2", handlerFails), "a.sock: Validate, Register, DeRegister",
			"a failed deregistration is retried; the kubelet's handlers cannot report a failure"),
		differs(failedDeregistration("DeRegister panics", "DeRegister ×2", handlerPanics), "a.sock: Validate, Register, DeRegister",
			"a panic is an error like any other"),
		lostConnection(),
		unknownType(refused("no handler registered for plugin type: Unheard at socket DIR/a.sock")),
	}, peers()...)
}

// step ends when the plugin was notified.
func step(name, want string, script Script, prepare func(*Stage)) Case {
	return Case{Group: "outcomes", Name: name, Want: "a.sock: " + want, Run: func(s *Stage) string {
		prepare(s)
		s.Start()
		s.Serve("a.sock", script)
		// If it never comes, the outcome shows it.
		s.reach("a.sock", "Notify(true)", strings.Count(want, "Notify(true)"), 15*time.Second)
		s.WaitIdle()
		return s.Calls()
	}}
}

func differs(c Case, kubelet, why string) Case {
	c.Kubelet, c.Why = kubelet, why
	return c
}

func inFirst(n int, do func() error) error {
	if n > 1 {
		return nil
	}
	return do()
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failedDeregistration: the first DeRegister fails.
func failedDeregistration(name, want string, do func(context.Context, watch.Plugin, int) error) Case {
	return Case{Group: "outcomes", Name: name, Want: "a.sock: Validate, Register, " + want, Run: func(s *Stage) string {
		s.DeRegister = do
		s.Start()
		p := s.Serve("a.sock", Script{})
		s.Await("a.sock", "Notify(true)", 1)
		s.Stop(p)
		s.reach("a.sock", "DeRegister", 2, 5*time.Second) // otherwise the outcome shows it
		s.WaitIdle()
		return s.Handled()
	}}
}

// The plugin closes the connection during Register, like one that restarts its
// server.
func lostConnection() Case {
	return Case{Group: "outcomes", Name: "connection lost during Register", Want: "a.sock: " + good, Run: func(s *Stage) string {
		var p *Plugin
		serving := make(chan struct{})
		s.Register = func(ctx context.Context, _ watch.Plugin, _ int) error {
			select {
			case <-serving:
			case <-ctx.Done():
				return ctx.Err()
			}
			p.HangUp()
			return pause(ctx, 1500*time.Millisecond)
		}
		s.Start()
		p = s.Serve("a.sock", Script{})
		close(serving)
		s.Await("a.sock", "Notify(true)", 1)
		s.WaitIdle()
		return s.Calls()
	}}
}

// The attempts never end, so only the first notification is checked.
func unknownType(notify string) Case {
	return Case{Group: "outcomes", Name: "type that has no handler", Want: "a.sock: GetInfo, " + notify, Run: func(s *Stage) string {
		s.Start()
		p := s.Serve("a.sock", Script{Type: "Unheard"})
		s.Await("a.sock", "Notify", 1)
		s.Stop(p)
		s.WaitIdle()
		calls := s.log.read()
		return s.short(render(calls[:min(2, len(calls))]))
	}}
}

// Servers that are not plugins.
func peers() []Case {
	return []Case{
		{Group: "outcomes", Name: "gRPC server without the registration service", Want: "a good plugin beside it is registered",
			Run: beside(func(s *Stage, l net.Listener) {
				foreign := grpc.NewServer()
				s.cleanups = append(s.cleanups, func() error { foreign.Stop(); return nil })
				go func() { _ = foreign.Serve(l) }()
			})},
		{Group: "outcomes", Name: "peer that accepts and sends nothing", Want: "a good plugin beside it is registered",
			Run: beside(func(*Stage, net.Listener) {})}, // the backlog accepts
		{Group: "outcomes", Name: "peer that closes the connection", Want: "a good plugin beside it is registered",
			Run: beside(func(s *Stage, l net.Listener) {
				go answer(l, nil)
			})},
		{Group: "outcomes", Name: "peer that speaks HTTP/1", Want: "a good plugin beside it is registered",
			Run: beside(func(s *Stage, l net.Listener) {
				go answer(l, []byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"))
			})},
		{Group: "outcomes", Name: "socket without a server, replaced by a live one", Want: "a.sock: Validate, Register",
			Kubelet: "a.sock: Validate, Register, DeRegister, Validate, Register",
			Why:     "an attempt belongs to one socket file; the kubelet's attempt reaches the next file and is then rolled back",
			Run: func(s *Stage) string {
				s.Start()
				s.Dead("a.sock")
				s.WaitIdle()
				check(os.Remove(s.Path("a.sock")))
				s.Serve("a.sock", Script{})
				s.Await("a.sock", "Notify(true)", 1)
				s.WaitIdle()
				return s.Handled()
			}},
	}
}

// Dead creates a socket without a server.
func (s *Stage) Dead(name string) {
	l, err := listen(s.Path(name))
	check(err)
	check(l.Close())
}

// beside serves something else beside a plugin.
func beside(odd func(*Stage, net.Listener)) func(*Stage) string {
	return func(s *Stage) string {
		s.Start()
		l, err := listen(s.Path("odd.sock"))
		check(err)
		s.cleanups = append(s.cleanups, func() error { _ = l.Close(); return nil })
		odd(s, l)
		s.WaitIdle()
		s.Serve("a.sock", Script{})
		s.Await("a.sock", "Notify(true)", 1)
		s.WaitIdle()
		if got := s.Calls(); got != "a.sock: "+good {
			return got
		}
		return "a good plugin beside it is registered"
	}
}

func answer(l net.Listener, words []byte) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write(words)
		_ = c.Close()
	}
}
