package watchtest

import (
	"fmt"
	"os"
)

// Start, end and restart of hosts and plugins.
func life() []Case {
	return []Case{
		{Group: "life", Name: "ten plugins present at start", Want: "each registered once", Run: func(s *Stage) string {
			for i := range 10 {
				s.Serve(fmt.Sprintf("%d.sock", i), Script{})
			}
			s.Start()
			s.WaitIdle()
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
		{Group: "life", Name: "socket created again ten times, each time with another name", Want: "each name registered and deregistered once",
			Run: otherNames},
		{Group: "life", Name: "plugin killed, its socket left over", Want: "a.sock: Validate, Register", Run: func(s *Stage) string {
			s.Start()
			p := s.Serve("a.sock", Script{})
			s.Await("a.sock", "Notify(true)", 1)
			s.WaitIdle()
			p.Kill()
			s.WaitIdle()
			return s.Handled()
		}},
		{Group: "life", Name: "plugin killed and restarted at the same path", Want: "a.sock: Validate, Register, DeRegister, Validate, Register",
			Run: func(s *Stage) string {
				s.Start()
				p := s.Serve("a.sock", Script{})
				s.Await("a.sock", "Notify(true)", 1)
				s.WaitIdle()
				p.Kill()
				s.WaitIdle()
				check(os.Remove(p.Path))
				s.Serve("a.sock", Script{})
				s.Await("a.sock", "Notify(true)", 2)
				s.WaitIdle()
				return s.Handled()
			}},
		{Group: "life", Name: "host ended", Want: "a.sock: Validate, Register", Run: func(s *Stage) string {
			s.Start()
			s.Serve("a.sock", Script{})
			s.Await("a.sock", "Notify(true)", 1)
			s.WaitIdle()
			check(s.host.Close(s.Ctx))
			check(os.Remove(s.Path("a.sock")))
			s.Serve("b.sock", Script{})
			s.log.waitIdle(s.Ctx, s.Quiet, waitTimeout, never)
			return s.Handled()
		}},
		{Group: "life", Name: "host restarted", Want: "a.sock: " + good + ", " + good, Run: func(s *Stage) string {
			s.Start()
			s.Serve("a.sock", Script{})
			s.Await("a.sock", "Notify(true)", 1)
			check(s.host.Close(s.Ctx))
			check(s.another(s.Dir).Start(s.Ctx))
			s.Await("a.sock", "Notify(true)", 2)
			s.WaitIdle()
			return s.Calls()
		}},
		{Group: "life", Name: "directory that does not exist yet", Want: "created, and a.sock: Validate, Register", Run: func(s *Stage) string {
			check(os.Remove(s.Dir))
			s.Start()
			if _, err := os.Stat(s.Dir); err != nil {
				return err.Error()
			}
			s.Serve("a.sock", Script{})
			s.WaitIdle()
			return "created, and " + s.Handled()
		}},
		{Group: "life", Name: "a file where the directory should be", Want: startFails, Kubelet: startIsSilent, Why: whyStart,
			Run: func(s *Stage) string {
				check(os.Remove(s.Dir))
				check(os.WriteFile(s.Dir, nil, 0o600))
				return s.startResult(s.New().Start(s.Ctx))
			}},
		{Group: "life", Name: "inotify instances used up", Want: startFails, Kubelet: startIsSilent, Why: whyStart, Alone: true,
			Run: func(s *Stage) string { return s.startResult(s.startWithoutInotify()) }},
	}
}

const (
	startFails    = "start fails with the reason"
	startIsSilent = "start succeeds, and no plugin is found"
	whyStart      = "a host that cannot watch the directory must not start; the kubelet logs the error and stays healthy"
)

func (s *Stage) startResult(err error) string {
	if err != nil {
		return startFails
	}
	if info, err := os.Stat(s.Dir); err == nil && info.IsDir() {
		s.Serve("a.sock", Script{})
		if s.reach("a.sock", "Register", 1, 2*s.Quiet) {
			return "start succeeds, and the plugin is found"
		}
	}
	return startIsSilent
}

func (s *Stage) count(plugin, what string) int {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return s.log.counts[counted(plugin, what)]
}

// The upstream test at several depths.
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
			s.WaitIdle()
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
	s.WaitIdle()
	if got := s.Handled(); got != "a.sock: "+fold(want) {
		return got
	}
	return "each name registered and deregistered once"
}
