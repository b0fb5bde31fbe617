package unixsock

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

// victimSocket asks the test binary to serve a socket until it is killed.
const victimSocket = "CLEAT_TEST_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(victimSocket); path != "" {
		if _, err := Listen(context.Background(), Address{Path: path}); err != nil {
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString("serving\n")
		select {}
	}
	goleak.VerifyTestMain(m)
}

func listenAt(t *testing.T, a Address) *Listener {
	t.Helper()
	return testkit.Open(Listen(t.Context(), a))(t)
}

func answers(t *testing.T, l net.Listener, path string) bool {
	t.Helper()
	c, err := Dial(t.Context(), path)
	if err != nil {
		t.Logf("dial: %v", err)
		return false
	}
	defer func() { _ = c.Close() }()
	if d, ok := l.(interface{ SetDeadline(time.Time) error }); ok {
		_ = d.SetDeadline(time.Now().Add(20 * time.Second)) // every caller wants an answer
		defer func() { _ = d.SetDeadline(time.Time{}) }()
	}
	s, err := l.Accept()
	if err != nil {
		return false
	}
	_ = s.Close()
	return true
}

func mode(t *testing.T, path string) (fs.FileMode, *syscall.Stat_t) {
	t.Helper()
	info := testkit.Value(os.Lstat(path))(t)
	return info.Mode(), info.Sys().(*syscall.Stat_t)
}

func TestListenMakesDirectoryAndSocket(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	dir := filepath.Join(t.TempDir(), "run", "own")
	for name, c := range map[string]struct {
		a              Address
		dirMode, perms fs.FileMode
		gid            uint32
	}{
		"defaults": {Address{}, 0o750, 0o600, 0},
		"settings": {Address{DirMode: 0o710, Mode: 0o660, Group: "4242"}, 0o710, 0o660, 4242},
		"name":     {Address{Mode: 0o666, Group: "daemon"}, 0o750, 0o666, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c.a.Path = filepath.Join(dir, name, "csi.sock")
			l := listenAt(t, c.a)
			if m, st := mode(t, filepath.Dir(c.a.Path)); m.Perm() != c.dirMode || st.Gid != c.gid {
				t.Errorf("directory: mode %o, group %d", m.Perm(), st.Gid)
			}
			if m, st := mode(t, c.a.Path); m.Type() != fs.ModeSocket || m.Perm() != c.perms || st.Gid != c.gid {
				t.Errorf("socket: mode %v, group %d", m, st.Gid)
			}
			if !answers(t, l, c.a.Path) {
				t.Error("does not answer")
			}
			if l.Addr().String() != c.a.Path || l.Path() != c.a.Path {
				t.Errorf("address %s", l.Addr())
			}
			checkAlone(t, c.a.Path)
			if err := errors.Join(l.Close(), l.Close()); err != nil {
				t.Error(err)
			}
			testkit.WantError(t, "after Close", testkit.Err(os.Lstat(c.a.Path)), fs.ErrNotExist)
			testkit.WantError(t, "Accept after Close", testkit.Err(l.Accept()), net.ErrClosed)
		})
	}
}

// checkAlone: no other file is beside a socket.
func checkAlone(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Errorf("beside the socket: %v, %v", entries, err)
	}
}

func TestDirectoriesThatAreLeftAlone(t *testing.T) {
	for name, prepare := range map[string]func(dir string) (Address, error){
		"holds other things": func(dir string) (Address, error) {
			return Address{}, os.WriteFile(filepath.Join(dir, "other"), nil, 0o600)
		},
		"sticky": func(dir string) (Address, error) { return Address{}, os.Chmod(dir, 0o777|fs.ModeSticky) },
		"shared": func(string) (Address, error) { return Address{SharedDir: true}, nil },
		"shared, no chmod": func(dir string) (Address, error) {
			return Address{SharedDir: true}, os.Chmod(dir, 0o711)
		},
		"another owner": func(dir string) (Address, error) { return Address{}, os.Chown(dir, 4242, 4242) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a := testkit.Value(prepare(dir))(t)
			a.Path, a.Group = filepath.Join(dir, "s.sock"), "77"
			before, was := mode(t, dir)
			listenAt(t, a)
			if after, is := mode(t, dir); after != before || is.Gid != was.Gid {
				t.Errorf("mode %v, group %d; was %v, %d", after, is.Gid, before, was.Gid)
			}
			if _, st := mode(t, a.Path); st.Gid != 77 {
				t.Errorf("socket has group %d", st.Gid)
			}
		})
	}
}

func TestOwnDirectoryIsRepaired(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.Chmod(dir, 0o777))
	listenAt(t, Address{Path: filepath.Join(dir, "s.sock"), Group: "77"})
	if m, st := mode(t, dir); m.Perm() != 0o750 || st.Gid != 77 {
		t.Errorf("mode %o, group %d", m.Perm(), st.Gid)
	}
}

func TestOtherThingsAtThePathStay(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"file":           func(path string) error { return os.WriteFile(path, []byte("precious"), 0o600) },
		"directory":      func(path string) error { return os.Mkdir(path, 0o700) },
		"symbolic link":  func(path string) error { return os.Symlink("nowhere", path) },
		"pipe":           func(path string) error { return unix.Mkfifo(path, 0o600) },
		"at hidden name": func(path string) error { return os.WriteFile(filepath.Join(filepath.Dir(path), hidden), nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s.sock")
			testkit.Must(t, put(path))
			before, _ := os.ReadDir(filepath.Dir(path))
			testkit.WantError(t, "Listen", testkit.Err(Listen(t.Context(), Address{Path: path})), nil, "not a socket")
			after, _ := os.ReadDir(filepath.Dir(path))
			if len(before) != 1 || len(after) != 1 || after[0].Type() != before[0].Type() || after[0].Name() != before[0].Name() {
				t.Errorf("before %v, after %v", before, after)
			}
		})
	}
}

func TestListenRefusals(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		a    Address
		want string
	}{
		"too long":       {Address{Path: filepath.Join(dir, strings.Repeat("x", 108-len(dir)))}, "109 bytes, the maximum is 107"},
		"relative":       {Address{Path: "run/s.sock"}, "not absolute"},
		"not clean":      {Address{Path: dir + "/../s.sock"}, "not clean"},
		"slash":          {Address{Path: dir + "/"}, "directory"},
		"NUL":            {Address{Path: dir + "/a\x00b"}, "NUL"},
		"hidden name":    {Address{Path: dir + "/" + hidden}, "use another name"},
		"unknown group":  {Address{Path: dir + "/s.sock", Group: "no-such-group"}, "no-such-group"},
		"shared, absent": {Address{Path: dir + "/none/s.sock", SharedDir: true}, "no such file or directory"},
		"long name":      {Address{Path: filepath.Join(dir, strings.Repeat("x", 108)), AnyLength: true}, "last element has 108 bytes"},
		"bad directory":  {Address{Path: "/dev/null/s.sock"}, "directory"},
	} {
		_, err := Listen(t.Context(), c.a)
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrTooLong) != (name == "too long" || name == "long name") {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left over: %v", entries)
	}
}

func TestListenAtTheLongestPath(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, strings.Repeat("x", MaxPath-len(dir)-1))
	if l := listenAt(t, Address{Path: path}); !answers(t, l, path) {
		t.Error("does not answer")
	}
}

func TestListenAtAnyLength(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("x", 120), "status.sock")
	l := listenAt(t, Address{Path: path, AnyLength: true})
	if !answers(t, l, path) {
		t.Error("does not answer")
	}
	testkit.WantError(t, "a second one", testkit.Err(Listen(t.Context(), Address{Path: path, AnyLength: true})), ErrLive)
	if seen, err := l.Look(); seen != Ours || err != nil {
		t.Errorf("Look: %v, %v", seen, err)
	}
}

func TestLook(t *testing.T) {
	above := t.TempDir()
	dir := filepath.Join(above, "registry")
	path := filepath.Join(dir, "s.sock")
	for name, c := range map[string]struct {
		do   func() error
		want PathState
	}{
		"untouched":         {func() error { return nil }, Ours},
		"chmod":             {func() error { return os.Chmod(path, 0o666) }, Ours},
		"hard link beside":  {func() error { return os.Link(path, path+".link") }, Ours},
		"removed":           {func() error { return os.Remove(path) }, Missing},
		"renamed":           {func() error { return os.Rename(path, path+".moved") }, Missing},
		"directory removed": {func() error { return os.RemoveAll(dir) }, Missing},
		"directory is file": {func() error { return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)) }, Missing},
		"file instead": {func() error {
			return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600))
		}, Replaced},
		"other socket renamed over it": {func() error {
			u, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + ".other", Net: "unix"})
			if err != nil {
				return err
			}
			u.SetUnlinkOnClose(false)
			return errors.Join(os.Rename(path+".other", path), u.Close())
		}, Replaced},
		"another directory at the path": {func() error {
			return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o750))
		}, Missing},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Must(t, os.RemoveAll(dir), os.RemoveAll(dir+".old"), os.Mkdir(dir, 0o750))
			l := listenAt(t, Address{Path: path, SharedDir: true})
			testkit.Must(t, c.do())
			if got, err := l.Look(); got != c.want || err != nil {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(path); c.want == Replaced && err != nil {
				t.Errorf("the file of another process is gone: %v", err)
			}
			if left, _ := os.ReadDir(dir + ".old"); len(left) > 0 {
				t.Errorf("left in the directory that was moved away: %v", left)
			}
		})
	}
}

// FuzzParseEndpoint: accepted paths are absolute and unambiguous.
func FuzzParseEndpoint(f *testing.F) {
	for _, seed := range []string{"unix:///run/x.sock", "unix:/run/x.sock", "/run/x.sock", "tcp://1.2.3.4:1", "unix://x.sock", "unix:///a/../b.sock", "unix:///\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		path, err := ParseEndpoint(endpoint)
		if err == nil && (!filepath.IsAbs(path) || strings.ContainsRune(path, 0)) {
			t.Errorf("%q leads to %q", endpoint, path)
		}
	})
}
