package unixsock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/flock"
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
	l, err := Listen(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// answers reports whether the listener l takes a connection made to path.
func answers(t *testing.T, l net.Listener, path string) bool {
	t.Helper()
	c, err := Dial(t.Context(), path)
	if err != nil {
		t.Logf("dial: %v", err)
		return false
	}
	defer func() { _ = c.Close() }()
	if d, ok := l.(interface{ SetDeadline(time.Time) error }); ok {
		_ = d.SetDeadline(time.Now().Add(100 * time.Millisecond))
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
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
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
			if _, err := os.Lstat(c.a.Path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after Close: %v", err)
			}
			if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept after Close: %v", err)
			}
		})
	}
}

// checkAlone: nothing lies beside a socket.
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
		"sticky":          func(dir string) (Address, error) { return Address{}, os.Chmod(dir, 0o777|fs.ModeSticky) },
		"shared":          func(string) (Address, error) { return Address{SharedDir: true}, nil },
		"somebody else's": func(dir string) (Address, error) { return Address{}, os.Chown(dir, 4242, 4242) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a, err := prepare(dir)
			if err != nil {
				t.Fatal(err)
			}
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
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	listenAt(t, Address{Path: filepath.Join(dir, "s.sock"), Group: "77"})
	if m, st := mode(t, dir); m.Perm() != 0o750 || st.Gid != 77 {
		t.Errorf("mode %o, group %d", m.Perm(), st.Gid)
	}
}

func TestLiveSocketIsNotStolen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l := listenAt(t, Address{Path: path})
	if _, err := Listen(t.Context(), Address{Path: path}); !errors.Is(err, ErrLive) || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
	// The probe of the second starter is in the queue; drop it.
	probe, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = probe.Close()
	if !answers(t, l, path) {
		t.Error("the first no longer answers")
	}
	checkAlone(t, path)
}

func TestSocketOfAnotherTypeIsLive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	c, err := net.ListenPacket("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := Listen(t.Context(), Address{Path: path}); !errors.Is(err, ErrLive) {
		t.Errorf("got %v", err)
	}
}

func TestSocketOfAKilledProcessIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	victim := exec.CommandContext(t.Context(), "/proc/self/exe")
	victim.Env = append(os.Environ(), victimSocket+"="+path)
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "serving\n" {
		t.Errorf("victim: %q, %v", line, err)
	}
	if _, err := Listen(t.Context(), Address{Path: path}); !errors.Is(err, ErrLive) {
		t.Errorf("while it lives: %v", err)
	}
	_ = victim.Process.Kill()
	_ = victim.Wait()
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("the killed process left no socket: %v", err)
	}
	if l := listenAt(t, Address{Path: path}); !answers(t, l, path) {
		t.Error("the new one does not answer")
	}
	checkAlone(t, path)
}

func TestLeftoverOfACrashIsRemoved(t *testing.T) {
	dir := t.TempDir()
	u, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, hidden), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	u.SetUnlinkOnClose(false)
	_ = u.Close()
	path := filepath.Join(dir, "s.sock")
	listenAt(t, Address{Path: path})
	checkAlone(t, path)
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
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadDir(filepath.Dir(path))
			if _, err := Listen(t.Context(), Address{Path: path}); err == nil || !strings.Contains(err.Error(), "not a socket") {
				t.Errorf("got %v", err)
			}
			after, _ := os.ReadDir(filepath.Dir(path))
			if len(before) != 1 || len(after) != 1 || after[0].Type() != before[0].Type() || after[0].Name() != before[0].Name() {
				t.Errorf("before %v, after %v", before, after)
			}
		})
	}
}

func TestCloseRemovesOnlyItsOwnInode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	first := listenAt(t, Address{Path: path})
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	second := listenAt(t, Address{Path: path})
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if !answers(t, second, path) {
		t.Error("the socket of the second is gone")
	}
}

// A client that connects the moment the socket appears is served, and finds the
// final mode, whatever the umask.
func TestSocketServesBeforeItShows(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	dir := t.TempDir()
	for round := range 200 {
		path := filepath.Join(dir, strconv.Itoa(round))
		seen := make(chan error, 1)
		go func() { seen <- connectOnSight(t.Context(), path) }()
		l := listenAt(t, Address{Path: path, Mode: 0o620})
		if err := <-seen; err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
}

func connectOnSight(ctx context.Context, path string) error {
	for {
		info, err := os.Lstat(path)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			runtime.Gosched()
			continue
		}
		if info.Mode().Perm() != 0o620 {
			return fmt.Errorf("it shows with mode %v", info.Mode())
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

func TestOneOfManyStartersWins(t *testing.T) {
	for round := range 10 {
		path := filepath.Join(t.TempDir(), "s.sock")
		if round%2 == 1 { // over a dead socket
			u, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			u.SetUnlinkOnClose(false)
			_ = u.Close()
		}
		var won atomic.Int32
		var starters sync.WaitGroup
		for range 8 {
			starters.Go(func() {
				l, err := Listen(t.Context(), Address{Path: path})
				switch {
				case err == nil:
					won.Add(1)
					t.Cleanup(func() { _ = l.Close() })
				case !errors.Is(err, ErrLive):
					t.Error(err)
				}
			})
		}
		starters.Wait()
		if won.Load() != 1 {
			t.Errorf("%d starters won", won.Load())
		}
		checkAlone(t, path)
	}
}

func TestListenRefusals(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		a    Address
		want string
	}{
		"too long":      {Address{Path: filepath.Join(dir, strings.Repeat("x", 108-len(dir)))}, "109 bytes, at most 107"},
		"relative":      {Address{Path: "run/s.sock"}, "not absolute"},
		"not clean":     {Address{Path: dir + "/../s.sock"}, "not clean"},
		"slash":         {Address{Path: dir + "/"}, "directory"},
		"NUL":           {Address{Path: dir + "/a\x00b"}, "NUL"},
		"hidden name":   {Address{Path: dir + "/" + hidden}, "choose another"},
		"unknown group": {Address{Path: dir + "/s.sock", Group: "no-such-group"}, "no-such-group"},
		"bad directory": {Address{Path: "/dev/null/s.sock"}, "directory"},
	} {
		_, err := Listen(t.Context(), c.a)
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrTooLong) != (name == "too long") {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestListenAtTheLongestPath(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, strings.Repeat("x", maxPath-len(dir)-1))
	if l := listenAt(t, Address{Path: path}); !answers(t, l, path) {
		t.Error("does not answer")
	}
}

func TestListenHonoursItsContext(t *testing.T) {
	dir := t.TempDir()
	holder, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close() }()
	if err := flock.Lock(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Listen(ctx, Address{Path: filepath.Join(dir, "s.sock")}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
