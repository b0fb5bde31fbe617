package watchtest

import (
	"os"
	"path/filepath"
	"syscall"
)

// Which files are plugins, at start and later.
func discovery() []Case {
	const found, none = "a.sock: Validate, Register", "nothing"
	in := func(dir string) string { return dir + "/" + found }
	serve := func(name string) func(*Stage) {
		return func(s *Stage) { s.Serve(name, Script{}) }
	}
	var all []Case
	for _, row := range []struct {
		name  string
		place func(s *Stage)
		want  string
	}{
		{"socket", serve("a.sock"), found},
		{"socket in a directory", serve("sub/a.sock"), in("sub")},
		{"socket three directories deep", serve("a/b/c/a.sock"), in("a/b/c")},
		{"symlink to a socket", linkTo(os.Symlink), found},
		{"hard link to a socket", linkTo(os.Link), found},
		{"socket moved in", func(s *Stage) {
			p := s.ServeAt(s.Aside("a.sock"), Script{})
			check(os.Rename(p.Path, s.Path("a.sock")))
		}, found},
		{"directory moved in", func(s *Stage) {
			p := s.ServeAt(s.Aside("sub/a.sock"), Script{Name: "sub/a.sock"})
			check(os.Rename(filepath.Dir(p.Path), s.Path("sub")))
		}, in("sub")},
		{"socket of mode 0000", func(s *Stage) {
			p := s.ServeAt(s.Aside("a.sock"), Script{})
			check(os.Chmod(p.Path, 0))
			check(os.Rename(p.Path, s.Path("a.sock")))
		}, found},
		{"socket with a dot before its name", serve(".a.sock"), none},
		{"FIFO", func(s *Stage) { check(syscall.Mkfifo(s.Path("a.sock"), 0o600)) }, none},
		{"regular file", func(s *Stage) { check(os.WriteFile(s.Path("a.sock"), nil, 0o600)) }, none},
		{"symlink to itself", func(s *Stage) { check(os.Symlink("a.sock", s.Path("a.sock"))) }, none},
		{"symlink to nothing", func(s *Stage) { check(os.Symlink("b.sock", s.Path("a.sock"))) }, none},
	} {
		all = append(all, beforeAndAfter(row.name, row.place, row.want)...)
	}
	return append(append(all, hidden()...), linkedDirectories()...)
}

// beforeAndAfter is two cases: the file exists at start, or is created later.
func beforeAndAfter(name string, place func(*Stage), want string) []Case {
	return []Case{
		{Group: "discovery", Name: name + ", at start", Want: want, Run: atStart(place)},
		{Group: "discovery", Name: name + ", while running", Want: want, Run: whileRunning(place)},
	}
}

func atStart(place func(*Stage)) func(*Stage) string {
	return func(s *Stage) string {
		place(s)
		s.Start()
		s.WaitIdle()
		return s.Handled()
	}
}

func whileRunning(place func(*Stage)) func(*Stage) string {
	return func(s *Stage) string {
		s.Start()
		place(s)
		s.WaitIdle()
		return s.Handled()
	}
}

// The socket is outside.
func linkTo(link func(old, new string) error) func(*Stage) {
	return func(s *Stage) {
		p := s.ServeAt(s.Aside("real.sock"), Script{Name: "a.sock"})
		check(link(p.Path, s.Path("a.sock")))
	}
}

func hidden() []Case {
	const why = "everything below a hidden name is ignored, at start and later"
	first := func(s *Stage) { s.Serve(".hidden/a.sock", Script{}) }
	below := func(s *Stage) { s.Serve("sub/.hidden/a.sock", Script{}) }
	movedIn := func(s *Stage) {
		p := s.ServeAt(s.Aside("sub/.hidden/a.sock"), Script{Name: "sub/.hidden/a.sock"})
		check(os.Rename(filepath.Dir(filepath.Dir(p.Path)), s.Path("sub")))
	}
	return []Case{
		{Group: "discovery", Name: "socket in a hidden directory, at start", Run: atStart(first),
			Want: "nothing", Kubelet: ".hidden/a.sock: Validate, Register", Why: why},
		{Group: "discovery", Name: "socket in a hidden directory, while running", Run: whileRunning(first), Want: "nothing"},
		{Group: "discovery", Name: "socket in a hidden directory further down, at start", Run: atStart(below),
			Want: "nothing", Kubelet: "sub/.hidden/a.sock: Validate, Register", Why: why},
		{Group: "discovery", Name: "hidden directory moved in with its parent, while running", Run: whileRunning(movedIn),
			Want: "nothing", Kubelet: "sub/.hidden/a.sock: Validate, Register", Why: why},
	}
}

func linkedDirectories() []Case {
	elsewhere := func(s *Stage) string {
		dir := s.Aside("elsewhere")
		check(os.MkdirAll(dir, 0o750))
		return dir
	}
	before := func(s *Stage) {
		s.ServeAt(filepath.Join(elsewhere(s), "a.sock"), Script{})
		check(os.Symlink(elsewhere(s), s.Path("link")))
	}
	bindLater := func(s *Stage) { s.ServeAt(filepath.Join(elsewhere(s), "a.sock"), Script{Name: "link/a.sock"}) }
	root := func(s *Stage) {
		dir := s.Dir
		check(os.Rename(dir, elsewhere(s)+"/real"))
		check(os.Symlink(elsewhere(s)+"/real", dir))
	}
	return []Case{
		{Group: "discovery", Name: "symlink to a directory with a socket in it, at start", Run: atStart(before), Want: "nothing"},
		{Group: "discovery", Name: "symlink to a directory with a socket in it, while running", Run: whileRunning(before), Want: "nothing"},
		{Group: "discovery", Name: "socket created in a linked directory, linked at start",
			Run: func(s *Stage) string {
				check(os.Symlink(elsewhere(s), s.Path("link")))
				return whileRunning(bindLater)(s)
			}, Want: "nothing"},
		{Group: "discovery", Name: "socket created in a linked directory, linked while running",
			Run: func(s *Stage) string {
				s.Start()
				check(os.Symlink(elsewhere(s), s.Path("link")))
				s.WaitIdle()
				bindLater(s)
				s.WaitIdle()
				return s.Handled()
			},
			Want: "nothing", Kubelet: "link/a.sock: Validate, Register",
			Why: "symlinks to directories are never followed; the kubelet follows only this one"},
		{Group: "discovery", Name: "plugins directory that is a symlink, socket at start",
			Run: func(s *Stage) string {
				root(s)
				return atStart(func(s *Stage) { s.Serve("a.sock", Script{}) })(s)
			},
			Want: "a.sock: Validate, Register", Kubelet: "nothing", Why: "the directory itself is resolved first"},
		{Group: "discovery", Name: "plugins directory that is a symlink, socket created later",
			Run: func(s *Stage) string {
				root(s)
				return whileRunning(func(s *Stage) { s.Serve("a.sock", Script{}) })(s)
			},
			Want: "a.sock: Validate, Register"},
	}
}

func names() []Case {
	var all []Case
	for _, row := range []struct{ what, file, kubelet string }{
		{"a space", "a b.sock", ""},
		{"no ending", "plugin", ""},
		{"another alphabet", "плагин.sock", ""},
		{"invalid UTF-8", "a\xff.sock", ""},
		{"a line break", "a\nb.sock", "never registered"},
		{"a percent sign", "%2e%20.sock", "never registered"},
		{"a colon and a question mark", "unix:a?x=y#z.sock", "never registered"},
	} {
		c := Case{Group: "discovery", Name: "name with " + row.what, Want: "registered", Kubelet: row.kubelet,
			Run: func(s *Stage) string {
				s.Start()
				s.Serve(row.file, Script{Name: "named"})
				s.WaitIdle()
				if got := s.Registered(); len(got) == 1 && got[0] == row.file {
					return "registered"
				}
				return "never registered"
			}}
		if row.kubelet != "" {
			c.Why = "the host uses the path as it is; the kubelet has gRPC parse it as a URL"
		}
		all = append(all, c)
	}
	return all
}
