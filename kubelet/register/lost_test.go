package register

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestLostSocketIsRecreated(t *testing.T) {
	for name, take := range map[string]func(socket string) error{
		"removed": os.Remove,
		"renamed": func(socket string) error { return os.Rename(socket, filepath.Join(filepath.Dir(socket), "other")) },
		"directory recreated": func(socket string) error {
			dir := filepath.Dir(socket)
			for os.RemoveAll(dir) != nil { // the socket is recreated meanwhile
			}
			return os.Mkdir(dir, 0o750)
		},
		"dead socket in its place": func(socket string) error {
			u, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket + ".dead", Net: "unix"})
			if err != nil {
				return err
			}
			u.SetUnlinkOnClose(false)
			return errors.Join(u.Close(), os.Rename(socket+".dead", socket))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "registry")
			testkit.Must(t, os.Mkdir(dir, 0o750))
			r := serve(t, config(dir))
			r.reaches(Waiting)
			r.register()
			before, err := os.Lstat(r.socket)
			testkit.Must(t, errors.Join(err, take(r.socket)))
			r.until("a new socket", func() bool { // the host deregistered the plugin with its old socket
				_, err := os.Lstat(r.socket)
				s := r.Status()
				return s.Losses > 0 && s.State == Waiting && err == nil
			})
			if s := r.Status(); s.Losses != 1 && name != "directory recreated" { // here the new socket can be lost too
				t.Errorf("%d losses", s.Losses)
			}
			if after, err := os.Lstat(r.socket); err != nil || os.SameFile(before, after) {
				t.Errorf("the new socket has the identity of the old one: %v", err)
			}
			r.register()
			r.end()
			if _, err := os.Lstat(r.socket); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after the end: %v", err)
			}
			if !strings.Contains(r.logs.String(), `level=WARN msg="registration socket lost"`) {
				t.Errorf("the log lacks the loss:\n%s", r.logs.String())
			}
		})
	}
}

// A lost socket that is not new is recreated by its event, long before the next
// check, because the host has deregistered the plugin.
func TestLossIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "registry")
	testkit.Must(t, os.Mkdir(dir, 0o750))
	c := config(dir)
	c.Every = time.Hour
	r := serve(t, c)
	for losses, take := range []func() error{
		func() error { return os.Remove(r.socket) },
		func() error { return os.Rename(r.socket, r.socket+".moved") },
		func() error { return os.WriteFile(filepath.Join(dir, "another"), nil, 0o600) },
		func() error { return os.Rename(filepath.Join(dir, "another"), r.socket) },
	} {
		r.until("a socket that stands", func() bool { s := r.Status(); return s.State == Waiting && time.Since(s.Placed) > minSocketAge })
		testkit.Must(t, take())
		switch losses {
		case 2: // of no concern
		case 3:
			r.until("a reason", func() bool { return strings.Contains(r.Status().Reason, "not a socket") })
			testkit.Must(t, os.Remove(r.socket))
			r.reaches(Waiting)
		default:
			r.until("a loss", func() bool { return r.Status().Losses == losses+1 })
			r.reaches(Waiting)
		}
	}
}

// A process that keeps removing the socket does not cause a busy loop.
func TestRepeatedLossIsRateLimited(t *testing.T) {
	c := config(t.TempDir())
	c.Every = 50 * time.Millisecond
	r := serve(t, c)
	begun := time.Now()
	for losses := range 5 {
		r.until("a socket", func() bool { return os.Remove(r.socket) == nil })
		r.until("a loss", func() bool { return r.Status().Losses == losses+1 })
	}
	if took := time.Since(begun); took < 4*c.Every {
		t.Errorf("put back 4 times within %v", took)
	}
	r.reaches(Waiting)
}

// A check can find the loss before its event is read. The event then does not
// shorten the pause.
func TestLossReportedTwice(t *testing.T) {
	c := config(t.TempDir())
	c.Every = time.Hour
	r := testkit.Value(New(c))(t)
	var serving sync.WaitGroup
	defer serving.Wait()
	k := &reconciler{Registrar: r, serving: &serving, ctx: t.Context()}
	k.reconcile(t.Context())
	k.created = time.Now().Add(time.Minute) // the socket counts as new whatever the load
	testkit.Must(t, os.Remove(r.socket))
	k.reconcile(t.Context())
	k.reconcile(t.Context())
	if s := r.Status(); s.State != Absent || s.Losses != 1 || k.pause() < time.Minute {
		t.Errorf("it pauses for %v: %+v", k.pause(), s)
	}
	if err := k.withdraw(); err != nil {
		t.Error(err)
	}
}

func TestWaitsForDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins_registry")
	r := serve(t, config(dir))
	r.until("a reason", func() bool { return strings.Contains(r.Status().Reason, dir) })
	s := r.Status()
	for _, word := range []string{"does not exist", "the kubelet creates it", "mounted from the host"} {
		if s.State != Absent || !strings.Contains(s.Reason, word) || r.Check(t.Context()) == nil {
			t.Errorf("want %q: %+v", word, s)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
	testkit.Must(t, os.Mkdir(dir, 0o750))
	r.reaches(Waiting)
	r.register()
	if s := r.Status(); s.Losses != 0 {
		t.Errorf("%+v", s)
	}
}

func TestOtherFilesAreNotReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "csi.cleat.dev-reg.sock")
	testkit.Must(t, os.WriteFile(path, []byte("precious"), 0o600))
	r := serve(t, config(dir))
	r.until("a reason", func() bool { return strings.Contains(r.Status().Reason, "not a socket") })
	if text, err := os.ReadFile(path); string(text) != "precious" || err != nil {
		t.Errorf("it holds %q, %v", text, err)
	}
	testkit.Must(t, os.Remove(path))
	r.reaches(Waiting)
}

// The socket of a killed process is replaced; while the process lives, its
// socket is left alone.
func TestSocketOfAKilledProcess(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), victimDir+"="+dir)
	victim := testkit.Start(t, cmd)
	victim.WaitFor(t, "registering")
	r := serve(t, config(dir))
	r.reaches(Yielding)
	unasked := config(dir)
	unasked.Plugin.Name, unasked.Silence = "other.cleat.dev", time.Millisecond
	other := serve(t, unasked)
	pid := fmt.Sprintf("process %d (", victim.PID()) // the process watches the directory like a host
	other.until("the name of the watching process", func() bool { return strings.Contains(other.Status().Reason, pid) })
	other.end()
	if _, err := dial(t, r.socket).getInfo(t.Context()); err != nil {
		t.Errorf("the victim no longer answers: %v", err)
	}
	victim.Kill()
	r.reaches(Waiting)
	r.register()
	alone(t, r.socket)
}
