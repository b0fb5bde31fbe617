package watchtest

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/kubelet/watch"
)

// Sockets that are removed, recreated, and renamed.
func changes() []Case {
	const once = "a.sock: Validate, Register"
	const left = once + ", DeRegister"
	const again = left + ", Validate, Register"
	return []Case{
		{Group: "changes", Name: "nothing in the directory", Want: "nothing",
			Run: func(s *Stage) string { s.Start(); s.WaitIdle(); return s.Handled() }},
		changed("socket removed", left, func(s *Stage, p *Plugin) { s.Stop(p) }),
		changed("plugin ended after its socket was removed", left, func(s *Stage, p *Plugin) {
			check(os.Remove(p.Path))
			s.Await("a.sock", "DeRegister", 1)
			p.end()
		}),
		changed("socket removed and created again at once", again, func(s *Stage, p *Plugin) {
			s.Stop(p)
			s.Serve("a.sock", Script{})
		}),
		changed("another socket renamed over it", again, func(s *Stage, p *Plugin) {
			other := s.ServeAt(s.Aside("b.sock"), Script{Name: "a.sock"})
			check(os.Rename(other.Path, p.Path))
		}),
		changed("chmod and chown", once, func(s *Stage, p *Plugin) {
			for mode := range os.FileMode(8) {
				check(os.Chmod(p.Path, mode<<6))
				check(os.Chown(p.Path, int(mode), int(mode)))
			}
		}),
		changed("hard link to it created and removed", once+"; b.sock: Validate(a.sock), Register(a.sock), DeRegister(a.sock)", func(s *Stage, p *Plugin) {
			check(os.Link(p.Path, s.Path("b.sock")))
			s.Await("b.sock", "Register", 1)
			check(os.Remove(s.Path("b.sock")))
		}),
		changed("swapped with another socket", "a.sock: Validate, Register, DeRegister, Validate(b.sock), Register(b.sock); "+
			"b.sock: Validate, Register, DeRegister, Validate(a.sock), Register(a.sock)", func(s *Stage, p *Plugin) {
			other := s.Serve("b.sock", Script{})
			s.Await("b.sock", "Notify(true)", 1)
			check(unix.Renameat2(unix.AT_FDCWD, p.Path, unix.AT_FDCWD, other.Path, unix.RENAME_EXCHANGE))
		}),
		differs(changed("regular file renamed over the socket", left, func(s *Stage, p *Plugin) {
			check(os.WriteFile(s.Aside("file"), nil, 0o600))
			check(os.Rename(s.Aside("file"), p.Path))
		}), once, "the socket is gone; the kubelet never deregisters it"),
		renamedThenRemoved(),
		{Group: "changes", Name: "directory with a plugin renamed inside", Run: inDirectory(func(s *Stage) {
			check(os.Rename(s.Path("sub"), s.Path("new")))
		}),
			Want:    "new/a.sock: Validate(sub/a.sock), Register(sub/a.sock); sub/a.sock: Validate, Register, DeRegister",
			Kubelet: "new/a.sock: Validate(sub/a.sock), Register(sub/a.sock); sub/a.sock: Validate, Register",
			Why:     "the old path is gone; the kubelet never deregisters it"},
		{Group: "changes", Name: "directory with a plugin moved out", Run: inDirectory(func(s *Stage) {
			check(os.Rename(s.Path("sub"), s.Aside("out")))
		}),
			Want:    "sub/a.sock: Validate, Register, DeRegister",
			Kubelet: "sub/a.sock: Validate, Register",
			Why:     "the path is gone; the kubelet never deregisters it"},
		{Group: "changes", Name: "directory with a plugin removed whole", Run: inDirectory(func(s *Stage) {
			check(os.RemoveAll(s.Path("sub")))
		}), Want: "sub/a.sock: Validate, Register, DeRegister"},
		{Group: "changes", Name: "socket removed during Register", Want: "a.sock: GetInfo, Validate, Register, Notify(true), DeRegister",
			Run: removedDuringRegister},
		{Group: "changes", Name: "40 directories, each created together with its socket", Want: "each registered once", Run: together},
		rootMadeAgain(),
		linked("symlink to it removed", left, func(s *Stage, _ *Plugin) { check(os.Remove(s.Path("a.sock"))) }),
		linked("socket behind a symlink removed", once, func(s *Stage, p *Plugin) { check(os.Remove(p.Path)) }),
		linked("symlink turned to another socket", again, func(s *Stage, p *Plugin) {
			other := s.ServeAt(s.Aside("other.sock"), Script{Name: "a.sock"})
			check(os.Symlink(other.Path, s.Aside("link")))
			check(os.Rename(s.Aside("link"), s.Path("a.sock")))
		}),
	}
}

// linked starts with a plugin registered through a symlink.
func linked(name, want string, change func(s *Stage, p *Plugin)) Case {
	return Case{Group: "changes", Name: name, Want: want, Run: func(s *Stage) string {
		s.Start()
		p := s.ServeAt(s.Aside("real.sock"), Script{Name: "a.sock"})
		check(os.Symlink(p.Path, s.Path("a.sock")))
		s.Await("a.sock", "Register", 1)
		s.WaitIdle()
		change(s, p)
		s.WaitIdle()
		return s.Handled()
	}}
}

// changed starts with a registered plugin, a.sock.
func changed(name, want string, change func(s *Stage, p *Plugin)) Case {
	return Case{Group: "changes", Name: name, Want: want, Run: func(s *Stage) string {
		s.Start()
		p := s.Serve("a.sock", Script{})
		s.Await("a.sock", "Notify(true)", 1)
		change(s, p)
		s.WaitIdle()
		return s.Handled()
	}}
}

func inDirectory(change func(*Stage)) func(*Stage) string {
	return func(s *Stage) string {
		s.Start()
		s.Serve("sub/a.sock", Script{})
		s.Await("sub/a.sock", "Notify(true)", 1)
		change(s)
		s.WaitIdle()
		return s.Handled()
	}
}

func renamedThenRemoved() Case {
	return Case{Group: "changes", Name: "socket renamed, then removed under its new name",
		Run: func(s *Stage) string {
			s.Start()
			p := s.Serve("a.sock", Script{})
			s.Await("a.sock", "Notify(true)", 1)
			check(os.Rename(p.Path, s.Path("b.sock")))
			s.Await("b.sock", "Register", 1)
			s.WaitIdle()
			check(os.Remove(s.Path("b.sock")))
			s.WaitIdle()
			return s.Handled()
		},
		Want:    "a.sock: Validate, Register, DeRegister; b.sock: Validate(a.sock), Register(a.sock), DeRegister(a.sock)",
		Kubelet: "a.sock: Validate, Register; b.sock: Validate(a.sock), Register(a.sock), DeRegister(a.sock)",
		Why:     "the old path is gone; the kubelet never deregisters it"}
}

func removedDuringRegister(s *Stage) string {
	begun := make(chan struct{})
	s.Register = func(ctx context.Context, _ watch.Plugin, n int) error {
		close(begun)
		select { // the host sees the removal
		case <-time.After(s.Quiet):
		case <-ctx.Done():
		}
		return nil
	}
	s.Start()
	p := s.Serve("a.sock", Script{})
	<-begun
	check(os.Remove(p.Path))
	s.Await("a.sock", "DeRegister", 1)
	s.WaitIdle()
	return s.Calls()
}

func together(s *Stage) string {
	s.Start()
	for i := range 40 {
		s.Serve(fmt.Sprintf("dir-%d/a.sock", i), Script{})
	}
	for i := range 40 {
		s.Await(fmt.Sprintf("dir-%d/a.sock", i), "Notify(true)", 1)
	}
	s.WaitIdle()
	for i := range 40 {
		if n := s.count(fmt.Sprintf("dir-%d/a.sock", i), "Register"); n != 1 {
			return s.Handled()
		}
	}
	return "each registered once"
}

func rootMadeAgain() Case {
	const old = "a.sock: Validate, Register, DeRegister"
	return Case{Group: "changes", Name: "plugins directory removed and created again",
		Run: func(s *Stage) string {
			s.Start()
			s.Serve("a.sock", Script{})
			s.Await("a.sock", "Notify(true)", 1)
			check(os.RemoveAll(s.Dir))
			s.Await("a.sock", "DeRegister", 1)
			check(os.Mkdir(s.Dir, 0o750))
			s.Serve("b.sock", Script{})
			s.WaitIdle()
			return s.Handled()
		},
		Want: old + "; b.sock: Validate, Register", Kubelet: old,
		Why: "the new directory is found; the kubelet needs a restart and does not report that"}
}
