package watchtest

import (
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// life: starts, ends and restarts of hosts and plugins.
func life() []Case {
	return []Case{
		{Group: "life", Name: "ten plugins there at start", Want: "each registered once", Run: func(s *Stage) string {
			for i := range 10 {
				s.Serve(fmt.Sprintf("%d.sock", i), Script{})
			}
			s.Start()
			s.Settle()
			for i := range 10 {
				if n := s.count(fmt.Sprintf("%d.sock", i), "Register"); n != 1 {
					return s.Handled()
				}
			}
			return "each registered once"
		}},
		comesAndGoes("in the directory", ""),
		comesAndGoes("one directory down", "sub/"),
		comesAndGoes("two directories down", "sub/sub/"),
		{Group: "life", Name: "socket made again ten times, each time with another name", Want: "each name registered once, and taken back",
			Run: otherNames},
		{Group: "life", Name: "plugin killed, its socket left", Want: "a.sock: Validate, Register", Run: func(s *Stage) string {
			s.Start()
			p := s.Serve("a.sock", Script{})
			s.Await("a.sock", "Notify(true)", 1)
			s.Settle()
			p.Kill()
			s.Settle()
			return s.Handled()
		}},
		{Group: "life", Name: "plugin killed, and started again in its place", Want: "a.sock: Validate, Register, DeRegister, Validate, Register",
			Run: func(s *Stage) string {
				s.Start()
				p := s.Serve("a.sock", Script{})
				s.Await("a.sock", "Notify(true)", 1)
				s.Settle()
				p.Kill()
				s.Settle()
				check(os.Remove(p.Path))
				s.Serve("a.sock", Script{})
				s.Await("a.sock", "Notify(true)", 2)
				s.Settle()
				return s.Handled()
			}},
		{Group: "life", Name: "host ended", Want: "a.sock: Validate, Register", Run: func(s *Stage) string {
			s.Start()
			s.Serve("a.sock", Script{})
			s.Await("a.sock", "Notify(true)", 1)
			s.Settle()
			check(s.host.Close(s.Ctx))
			check(os.Remove(s.Path("a.sock")))
			s.Serve("b.sock", Script{})
			s.log.settle(s.Ctx, s.Quiet, patience)
			return s.Handled()
		}},
		{Group: "life", Name: "host ended and started again", Want: "a.sock: " + good + ", " + good, Run: func(s *Stage) string {
			s.Start()
			s.Serve("a.sock", Script{})
			s.Await("a.sock", "Notify(true)", 1)
			check(s.host.Close(s.Ctx))
			check(s.another(s.Dir).Start(s.Ctx))
			s.Await("a.sock", "Notify(true)", 2)
			s.Settle()
			return s.Calls()
		}},
		{Group: "life", Name: "directory that does not exist yet", Want: "made, and a.sock: Validate, Register", Run: func(s *Stage) string {
			check(os.Remove(s.Dir))
			s.Start()
			if _, err := os.Stat(s.Dir); err != nil {
				return err.Error()
			}
			s.Serve("a.sock", Script{})
			s.Settle()
			return "made, and " + s.Handled()
		}},
		{Group: "life", Name: "a file where the directory should be", Want: startFails, Kubelet: startIsSilent, Why: whyStart,
			Run: func(s *Stage) string {
				check(os.Remove(s.Dir))
				check(os.WriteFile(s.Dir, nil, 0o600))
				return startOf(s.New())(s)
			}},
		{Group: "life", Name: "inotify instances used up", Want: startFails, Kubelet: startIsSilent, Why: whyStart, Run: usedUp, Alone: true},
	}
}

const (
	startFails    = "starting fails with the reason"
	startIsSilent = "starting says nothing"
	whyStart      = "a host that cannot see is no host: the kubelet logs it and stays healthy"
)

func startOf(h Host) func(*Stage) string {
	return func(s *Stage) string {
		if h.Start(s.Ctx) != nil {
			return startFails
		}
		return startIsSilent
	}
}

func (s *Stage) count(whom, what string) int {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return s.log.count(whom, what)
}

// comesAndGoes is upstream's oldest test, at several depths.
func comesAndGoes(where, dir string) Case {
	return Case{Group: "life", Name: "plugin that comes and goes ten times, " + where, Want: "registered and deregistered ten times",
		Run: func(s *Stage) string {
			s.Start()
			name := dir + "a.sock"
			var want []string
			for i := range 10 {
				p := s.Serve(name, Script{})
				s.Await(name, "Notify(true)", i+1)
				s.Stop(p)
				s.Await(name, "DeRegister", i+1)
				want = append(want, "Validate", "Register", "DeRegister")
			}
			s.Settle()
			if got := s.Handled(); got != name+": "+fold(want) {
				return got
			}
			return "registered and deregistered ten times"
		}}
}

func otherNames(s *Stage) string {
	s.Start()
	var want []string
	for i := range 10 {
		name := fmt.Sprintf("name-%d", i)
		p := s.Serve("a.sock", Script{Name: name})
		s.Await("a.sock", "Notify(true)", i+1)
		s.Stop(p)
		want = append(want, "Validate("+name+")", "Register("+name+")", "DeRegister("+name+")")
	}
	s.Settle()
	if got := s.Handled(); got != "a.sock: "+fold(want) {
		return got
	}
	return "each name registered once, and taken back"
}

// usedUp starts a host where no inotify instance is to be had: in a thread of
// another real user, whose instances are all taken. The limit is counted by
// real user, and a thread has its own; nobody else on the machine is disturbed.
func usedUp(s *Stage) string {
	const nobodyElse = 54321
	h := s.New()
	outcome := make(chan string)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its odd user
		outcome <- func() string {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobodyElse, 0, 0); errno != 0 {
				return "setresuid: " + errno.Error()
			}
			var taken []int
			defer func() {
				for _, fd := range taken {
					_ = unix.Close(fd)
				}
			}()
			for {
				fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
				if err == unix.EMFILE {
					break
				}
				if err != nil {
					return "inotify_init: " + err.Error()
				}
				taken = append(taken, fd)
			}
			taken = slices.Clip(taken)
			return startOf(h)(s)
		}()
	}()
	return <-outcome
}
