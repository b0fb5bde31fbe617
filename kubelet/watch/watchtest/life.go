package watchtest

import (
	"fmt"
	"os"
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
				return s.blind(s.New().Start(s.Ctx))
			}},
		{Group: "life", Name: "inotify instances used up", Want: startFails, Kubelet: startIsSilent, Why: whyStart, Alone: true,
			Run: func(s *Stage) string { return s.blind(s.startWithoutInotify()) }},
	}
}

const (
	startFails    = "starting fails with the reason"
	startIsSilent = "starting says nothing, and no plugin is found"
	whyStart      = "a host that cannot see is no host: the kubelet logs it and stays healthy"
)

// blind is what comes of a start that leaves the host without sight.
func (s *Stage) blind(err error) string {
	if err != nil {
		return startFails
	}
	if info, err := os.Stat(s.Dir); err == nil && info.IsDir() {
		s.Serve("a.sock", Script{})
		if s.reach("a.sock", "Register", 1, 2*s.Quiet) {
			return "starting says nothing, and the plugin is found"
		}
	}
	return startIsSilent
}

func (s *Stage) count(whom, what string) int {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return s.log.counts[counted(whom, what)]
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
