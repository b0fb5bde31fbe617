package claim

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

const beKubelet = "TEST_WATCH_AS_KUBELET"

// TestMain: with the variable set, the test binary is a process named kubelet
// that watches a directory until it is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv(beKubelet); dir != "" {
		os.Exit(watch(dir))
	}
	goleak.VerifyTestMain(m)
}

func watch(dir string) int {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err == nil {
		_, err = unix.InotifyAddWatch(fd, dir, unix.IN_CREATE)
	}
	if err != nil {
		return 1
	}
	_, _ = os.Stdout.WriteString("watching\n")
	for { // until the test kills it
		_ = unix.Pause()
	}
}

func startKubelet(t *testing.T, dir string) {
	t.Helper()
	self := testkit.Value(os.Executable())(t)
	path := filepath.Join(t.TempDir(), "kubelet") // the kernel names a process after its file
	testkit.Must(t, copyFile(path, self))
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), beKubelet+"="+dir)
	testkit.Start(t, cmd).WaitFor(t, "watching")
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func TestClaimIsExclusive(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "plugins")
	one, err := Take(dir, false)
	testkit.Must(t, err)
	_, err = Take(dir, true)
	if !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) || !strings.Contains(err.Error(), dir) {
		t.Errorf("second claim: %v", err)
	}
	if err := one.Release(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	two := testkit.Value(Take(dir, false))(t)
	testkit.Must(t, os.Remove(filepath.Join(dir, lockName))) // removed by another program
	if err := two.Release(); err != nil {
		t.Errorf("Release without the lock file: %v", err)
	}
}

// A killed host leaves its lock file, which does not block the next one.
func TestLeftOverLockFile(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"of a dead host": func(path string) error { return os.WriteFile(path, []byte("12345678901234567890123\n"), 0o600) },
		"empty":          func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, lockName)
		testkit.Must(t, make(path))
		c, err := Take(dir, false)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != strconv.Itoa(os.Getpid())+"\n" {
			t.Errorf("%s: PID in the lock file is %q, %v", name, text, err)
		}
		if err := c.Release(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestObstaclesAreErrors(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(t.TempDir(), "victim")
	testkit.Must(t, os.WriteFile(victim, []byte("precious"), 0o600))
	testkit.Must(t, os.Symlink(victim, filepath.Join(dir, lockName)))
	if _, err := Take(dir, false); !errors.Is(err, unix.ELOOP) {
		t.Errorf("symbolic link as lock file: %v", err)
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
		t.Errorf("target of the link: %q, %v", text, err)
	}
	if _, err := Take(victim, false); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("regular file as directory: %v", err)
	}
	if _, err := Take("/proc/nothing", false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("directory that cannot be created: %v", err)
	}
}

func TestKubeletHasPriority(t *testing.T) {
	dir := t.TempDir()
	startKubelet(t, dir)
	if _, err := Take(dir, false); !errors.Is(err, ErrKubelet) || !strings.Contains(err.Error(), "(kubelet)") {
		t.Errorf("beside a kubelet: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, lockName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused claim left its lock file: %v", err)
	}
	c := testkit.Value(Take(dir, true))(t)
	if err := c.Release(); err != nil {
		t.Error(err)
	}
}

// Concurrent claims and releases never give the directory to two hosts.
func TestRace(t *testing.T) {
	dir := t.TempDir()
	var holds sync.Mutex
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				c, err := Take(dir, true)
				if errors.Is(err, ErrHeld) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if !holds.TryLock() {
					t.Error("two claims at the same time")
					return
				}
				runtime.Gosched()
				holds.Unlock()
				if err := c.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
