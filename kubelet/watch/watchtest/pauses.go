package watchtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// When a failed plugin is retried.
func pauses() []Case {
	return []Case{
		{Group: "pauses", Name: "pauses grow", Want: "each pause about twice as long as the one before", Run: growing},
		{Group: "pauses", Name: "success ends them", Want: "a.sock", Run: func(s *Stage) string {
			s.Start()
			s.Serve("a.sock", Script{GetInfo: failTimes(3)})
			s.Await("a.sock", "Notify(true)", 1)
			s.WaitIdle()
			return strings.Join(s.Registered(), ", ")
		}},
		{Group: "pauses", Name: "socket created again after five failures", Want: "at once", Kubelet: "after the pause",
			Why: "a new socket file is a new plugin, without the backoff of the old one",
			Run: func(s *Stage) string {
				s.Start()
				return s.afterFailures(func(name string) (repair func()) {
					p := s.Serve(name, Script{GetInfo: failTimes(1000)})
					return func() {
						s.Stop(p)
						s.Serve(name, Script{})
					}
				})
			}},
		{Group: "pauses", Name: "socket that was dead for 60 s, then live", Want: "at once", Kubelet: "after the pause", Slow: true,
			Why: "a new socket file is a new plugin, without the backoff of the old one",
			Run: func(s *Stage) string {
				s.Start()
				s.Dead("a.sock")
				check(pause(s.Ctx, time.Minute))
				check(os.Remove(s.Path("a.sock")))
				s.Serve("a.sock", Script{})
				return s.compareWithFresh("a.sock")
			}},
		{Group: "pauses", Name: "handler added after the plugin came", Want: "at once", Kubelet: "after the pause",
			Why: "the host knows which plugins wait for a handler",
			Run: func(s *Stage) string {
				s.Start()
				return s.afterFailures(func(name string) (repair func()) {
					s.Serve(name, Script{Type: name})
					return func() { check(s.host.Handle(name, handler{s})) }
				})
			}},
		{Group: "pauses", Name: "bound first, served 300 ms later", Want: "a.sock: " + good, Run: servedLate},
		{Group: "pauses", Name: "path of more than 107 bytes", Want: "registered", Kubelet: "never registered",
			Why: "a long path is dialled through its directory", Run: longPath},
	}
}

func failTimes(times int) func(context.Context, int) error {
	return func(_ context.Context, n int) error {
		if n <= times {
			return errors.New("not yet")
		}
		return nil
	}
}

// growing checks only the minimum of pauses: load makes them longer.
func growing(s *Stage) string {
	s.Start()
	s.Serve("a.sock", Script{GetInfo: failTimes(1000)})
	s.Await("a.sock", "GetInfo", 5)
	calls := s.log.read()
	for i, least := range []time.Duration{first, 2 * first, 4 * first, 8 * first} {
		if got := calls[i+1].when.Sub(calls[i].when); got < least {
			return fmt.Sprintf("pause %d is %v, less than %v", i+1, got, least)
		}
	}
	return "each pause about twice as long as the one before"
}

// first pause after a failure, minus jitter. Each next one is twice as long.
const first = 400 * time.Millisecond

// afterFailures reports when a plugin that has failed is registered after its
// repair. On a busy machine the pause can have ended before the measurement: it
// is repeated with a plugin that has failed more often.
func (s *Stage) afterFailures(failing func(name string) (repair func())) (verdict string) {
	for failures := 5; failures < 8; failures++ {
		name := fmt.Sprintf("a-%d.sock", failures)
		repair := failing(name)
		s.Await(name, "GetInfo", failures)
		var last time.Time
		for _, c := range s.log.read() {
			if c.plugin == name {
				last = c.when
			}
		}
		repair()
		verdict = s.compareWithFresh(name)
		if verdict == afterPause || time.Since(last) < first<<(failures-1) {
			break
		}
	}
	return verdict
}

const afterPause = "after the pause"

// compareWithFresh: a plugin is registered as soon as one at a fresh path,
// under the same load.
func (s *Stage) compareWithFresh(name string) string {
	const margin = 2 * time.Second
	fresh := "fresh-" + name
	s.Serve(fresh, Script{})
	s.Await(fresh, "Register", 1)
	if s.reach(name, "Register", 1, margin) {
		return "at once"
	}
	s.Await(name, "Register", 1)
	return afterPause
}

// servedLate calls bind, and listen later.
func servedLate(s *Stage) string {
	s.Start()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	check(err)
	f := os.NewFile(uintptr(fd), "socket")
	defer func() { _ = f.Close() }()
	check(unix.Bind(fd, &unix.SockaddrUnix{Name: s.Path("a.sock")}))
	check(pause(s.Ctx, 300*time.Millisecond))
	check(unix.Listen(fd, 16))
	l, err := net.FileListener(f)
	check(err)
	s.serveOn(l, "a.sock", Script{})
	s.Await("a.sock", "Notify(true)", 1)
	s.WaitIdle()
	return s.Calls()
}

// The path is too long for connect(2).
func longPath(s *Stage) string {
	dir := filepath.Join(strings.Repeat("d", 60), strings.Repeat("e", 60))
	p := s.ServeAt(s.Aside("a.sock"), Script{})
	check(os.MkdirAll(s.Path(dir), 0o750))
	s.Start()
	check(os.Rename(p.Path, filepath.Join(s.Path(dir), "a.sock")))
	if s.reach(filepath.Join(dir, "a.sock"), "Register", 1, 15*time.Second) {
		return "registered"
	}
	return "never registered"
}
