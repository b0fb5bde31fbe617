package register

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// A live socket is never replaced, a dead one is.
func TestLiveSocketIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "csi.cleat.dev-reg.sock")
	other := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	other.SetUnlinkOnClose(false)
	before, _ := os.Lstat(path)
	r := serve(t, config(dir))
	s := r.reaches(Yielding)
	for _, word := range []string{"a live process serves this socket", "another instance", "takes over", "one of them per node"} {
		if !strings.Contains(s.Reason, word) || r.Check(t.Context()) == nil {
			t.Errorf("want %q: %+v", word, s)
		}
	}
	for range 3 { // its check for a live server shows up as connections
		c := testkit.Value(other.Accept())(t)
		_ = c.Close()
	}
	if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the other's socket: %v, %v", after, err)
	}
	testkit.Must(t, other.Close()) // the file remains, as after a crash
	r.reaches(Waiting)
	r.register()
	if got := strings.Count(r.logs.String(), "state=yielding"); got != 1 {
		t.Errorf("%d lines of yielding:\n%s", got, r.logs.String())
	}
}

// Another registrar that replaces the socket keeps it, and the first one
// resumes when the other ends. When the first one stops, it leaves the other's
// socket.
func TestSocketReplacedByOther(t *testing.T) {
	r := serve(t, config(t.TempDir()))
	r.reaches(Waiting)
	r.register()
	force := func() *net.UnixListener {
		_ = os.Remove(r.socket)
		u, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.socket + ".new", Net: "unix"})
		if err == nil {
			u.SetUnlinkOnClose(false)
			err = os.Rename(r.socket+".new", r.socket)
		}
		testkit.Must(t, err)
		return u
	}
	u := force()
	r.reaches(Yielding)
	testkit.Must(t, errors.Join(os.Remove(r.socket), u.Close()))
	r.reaches(Waiting)
	u = force()
	defer func() { _ = u.Close() }()
	r.reaches(Yielding)
	r.end()
	if _, err := os.Lstat(r.socket); err != nil {
		t.Errorf("the other's socket is gone: %v", err)
	}
}

// Of two registrars with one name in one directory, one registers and the other
// takes over.
func TestTwoInstances(t *testing.T) {
	dir := t.TempDir()
	first := serve(t, config(dir))
	first.reaches(Waiting)
	first.register()
	second := serve(t, config(dir))
	second.reaches(Yielding)
	if s := first.Status(); s.State != Registered || s.Losses != 0 {
		t.Errorf("the first: %+v", s)
	}
	first.end()
	second.reaches(Waiting)
	second.register()
	alone(t, second.socket)
}

// Many plugins register in one directory independently.
func TestManyPluginsInOneDirectory(t *testing.T) {
	dir := t.TempDir()
	var all []*rig
	for _, name := range []string{"a.cleat.dev", "b.cleat.dev", "c.cleat.dev", "d.cleat.dev", "e.cleat.dev", "f.cleat.dev"} {
		c := config(dir)
		c.Plugin.Name = name
		all = append(all, serve(t, c))
	}
	for _, r := range all {
		r.reaches(Waiting)
		r.register()
	}
	for i, r := range all {
		if s := r.Status(); s.State != Registered || s.Losses != 0 {
			t.Errorf("%+v", s)
		}
		r.end()
		if left, err := os.ReadDir(dir); err != nil || len(left) != len(all)-i-1 {
			t.Errorf("in the directory: %v, %v", left, err)
		}
	}
}

// A kubelet deregisters by name the plugin that had the name before, at the same time as
// it registers this one, which then registers again.
func TestNameWasTaken(t *testing.T) {
	r := serve(t, config(t.TempDir()))
	r.reaches(Waiting)
	before := testkit.Value(os.Lstat(r.socket))(t)
	h := dial(t, r.socket)
	testkit.Must(t, testkit.Err(h.getInfo(t.Context())), h.notify(t.Context(), false, "Another driver with the same name is already registered"))
	r.reaches(Refused)
	testkit.Must(t, h.notify(t.Context(), true, ""))
	r.until("another socket", func() bool {
		now, err := os.Lstat(r.socket)
		return err == nil && !os.SameFile(before, now)
	})
	if s := r.reaches(Waiting); r.Check(t.Context()) == nil {
		t.Errorf("ready before it was registered again: %+v", s)
	}
	r.register()
}
