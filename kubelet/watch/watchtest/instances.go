package watchtest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cleatproject/cleat/kubelet/watch"
)

// Several sockets of one name, and the contents of GetInfo.
func instances() []Case {
	return []Case{
		{Group: "instances", Name: "one name at an old and a new socket, the old one removed",
			Want: "new.sock: Validate(p), Register(p); old.sock: Validate(p), Register(p), DeRegister(p)",
			Run: func(s *Stage) string {
				s.Start()
				old := s.Serve("old.sock", Script{Name: "p"})
				s.Await("old.sock", "Notify(true)", 1)
				s.Serve("new.sock", Script{Name: "p"})
				s.Await("new.sock", "Notify(true)", 1)
				s.Stop(old)
				s.WaitIdle()
				return s.Handled()
			}},
		{Group: "instances", Name: "one name at three sockets at once", Want: "handler calls for the name: 1 at a time",
			Kubelet: "handler calls for the name: 3 at a time", Why: "handler calls are serial per name; the kubelet serialises them per path",
			Run: func(s *Stage) string {
				s.Register = func(ctx context.Context, _ watch.Plugin, _ int) error { return pause(ctx, s.Quiet/2) }
				for i := range 3 {
					s.Serve(fmt.Sprintf("%d.sock", i), Script{Name: "p"})
				}
				s.Start()
				for i := range 3 {
					s.Await(fmt.Sprintf("%d.sock", i), "Notify(true)", 1)
				}
				return fmt.Sprintf("handler calls for the name: %d at a time", s.MaxConcurrent("p"))
			}},
		{Group: "instances", Name: "ten names whose Register hangs, and an eleventh", Want: "the eleventh is registered",
			Run: elevenNames},
		{Group: "instances", Name: "slow Register is not called twice", Want: "a.sock: GetInfo, Validate, Register, Notify(true)",
			Run: func(s *Stage) string {
				s.Register = func(ctx context.Context, _ watch.Plugin, _ int) error { return pause(ctx, 2*s.Quiet) }
				s.Start()
				s.Serve("a.sock", Script{})
				s.Await("a.sock", "Notify(true)", 1)
				s.WaitIdle()
				return s.Calls()
			}},
		{Group: "instances", Name: "ten names whose DeRegister hangs, and an eleventh", Want: "the eleventh is deregistered", Run: elevenDeregister},
		{Group: "instances", Name: "slow DeRegister is not called twice", Want: "a.sock: Validate, Register, DeRegister",
			Run: func(s *Stage) string {
				s.DeRegister = func(ctx context.Context, _ watch.Plugin, _ int) error { return pause(ctx, 2*s.Quiet) }
				s.Start()
				p := s.Serve("a.sock", Script{})
				s.Await("a.sock", "Notify(true)", 1)
				s.Stop(p)
				s.Await("a.sock", "DeRegister", 1)
				check(pause(s.Ctx, 2*s.Quiet))
				s.WaitIdle()
				return s.Handled()
			}},
		{Group: "instances", Name: "ten sockets of one name", Want: "all ten registered", Run: tenOfOneName},
		announces("endpoint of its own", Script{Endpoint: "/elsewhere/csi.sock"},
			"name a.sock, endpoint /elsewhere/csi.sock, versions [1.0.0]"),
		announces("no endpoint", Script{}, "name a.sock, endpoint DIR/a.sock, versions [1.0.0]"),
		announces("endpoint with a scheme", Script{Endpoint: "unix:///csi.sock"}, "name a.sock, endpoint unix:///csi.sock, versions [1.0.0]"),
		announces("several versions", Script{Versions: []string{"2.0", "v1", "", "1.0", "1.0"}},
			"name a.sock, endpoint DIR/a.sock, versions [2.0 v1  1.0 1.0]"),
		announces("no version", Script{Versions: []string{}}, "name a.sock, endpoint DIR/a.sock, versions []"),
		announces("empty name", Script{Name: noName}, "name , endpoint DIR/a.sock, versions [1.0.0]"),
	}
}

func announces(what string, script Script, want string) Case {
	return Case{Group: "instances", Name: "plugin that announces " + what, Want: want, Run: func(s *Stage) string {
		var mu sync.Mutex
		var got watch.Plugin
		s.Register = func(_ context.Context, p watch.Plugin, _ int) error {
			mu.Lock()
			defer mu.Unlock()
			got = p
			return nil
		}
		s.Start()
		s.Serve("a.sock", script)
		s.Await("a.sock", "Notify(true)", 1)
		mu.Lock()
		defer mu.Unlock()
		return s.short(fmt.Sprintf("name %s, endpoint %s, versions %v", got.Name, got.Endpoint, got.Versions))
	}}
}

// A handler that hangs for some plugins does not block others.
func elevenNames(s *Stage) string {
	release := make(chan struct{})
	defer close(release)
	s.Register = func(ctx context.Context, p watch.Plugin, _ int) error {
		if p.Name == "eleventh" {
			return nil
		}
		select {
		case <-release:
		case <-ctx.Done():
		case <-time.After(waitTimeout):
		}
		return nil
	}
	s.Start()
	for i := range 10 {
		s.Serve(fmt.Sprintf("%d.sock", i), Script{})
	}
	for i := range 10 {
		s.Await(fmt.Sprintf("%d.sock", i), "Register", 1)
	}
	s.Serve("z.sock", Script{Name: "eleventh"})
	s.Await("z.sock", "Notify(true)", 1)
	return "the eleventh is registered"
}

func elevenDeregister(s *Stage) string {
	release := make(chan struct{})
	defer close(release)
	s.DeRegister = func(ctx context.Context, p watch.Plugin, _ int) error {
		if p.Name == "eleventh" {
			return nil
		}
		select {
		case <-release:
		case <-ctx.Done():
		case <-time.After(waitTimeout):
		}
		return nil
	}
	s.Start()
	for i := range 10 {
		p := s.Serve(fmt.Sprintf("%d.sock", i), Script{})
		s.Await(fmt.Sprintf("%d.sock", i), "Notify(true)", 1)
		s.Stop(p)
		s.Await(fmt.Sprintf("%d.sock", i), "DeRegister", 1)
	}
	p := s.Serve("z.sock", Script{Name: "eleventh"})
	s.Await("z.sock", "Notify(true)", 1)
	s.Stop(p)
	s.Await("z.sock", "DeRegister", 1)
	return "the eleventh is deregistered"
}

func tenOfOneName(s *Stage) string {
	s.Start()
	for i := range 10 {
		s.Serve(fmt.Sprintf("%d.sock", i), Script{Name: "p"})
	}
	for i := range 10 {
		s.Await(fmt.Sprintf("%d.sock", i), "Notify(true)", 1)
	}
	s.WaitIdle()
	if n := len(s.Registered()); n != 10 {
		return fmt.Sprintf("%d registered: %s", n, s.Handled())
	}
	return "all ten registered"
}
