package inotify

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

// beWatcher makes the test binary watch a directory.
const beWatcher = "TEST_WATCH_DIRECTORY"

func watch(dir string) int {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return 1
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE); err != nil {
		return 1
	}
	if _, err := os.Stdout.WriteString("watching\n"); err != nil {
		return 1
	}
	_, _ = bufio.NewReader(os.Stdin).ReadByte() // until the test ends
	return 0
}

func startWatcher(t *testing.T, dir string) int {
	t.Helper()
	self := testkit.Value(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), beWatcher+"="+dir)
	testkit.Value(cmd.StdinPipe())(t)
	watcher := testkit.Start(t, cmd)
	watcher.WaitFor(t, "watching")
	return watcher.PID()
}

func TestWatchers(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	pid := startWatcher(t, dir)
	link := filepath.Join(t.TempDir(), "link")
	testkit.Must(t, os.Symlink(dir, link))
	anyName := func(string) bool { return true }
	for name, c := range map[string]struct {
		dir  string
		fits func(string) bool
		want bool
	}{
		"watched":         {dir, anyName, true},
		"through a link":  {link, anyName, true},
		"another":         {other, anyName, false},
		"by another name": {dir, func(name string) bool { return name == "kubelet" }, false},
	} {
		found := testkit.Value(Watchers(c.dir, c.fits))(t)
		got := slices.ContainsFunc(found, func(p Process) bool { return p.PID == pid && p.Name != "" })
		if got != c.want {
			t.Errorf("%s: found %v, want process %d: %v", name, found, pid, c.want)
		}
	}
	testkit.WantError(t, "a missing directory", testkit.Err(Watchers(filepath.Join(dir, "missing"), anyName)), nil, "missing")
}

func TestParseWatched(t *testing.T) {
	for line, want := range map[string]string{
		"inotify wd:1 ino:2f sdev:800001 mask:400 ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:2f": "ino:2f sdev:800001",
		"pos:\t0": "", "": "", "inotify wd:1 ino:2f": "", "fanotify ino:1 sdev:1 x y": "", "inotify wd:1 mask:1 ino:2 sdev:3": "",
	} {
		if got, ok := parseWatched(line); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", line, got, ok)
		}
	}
}

func FuzzParseWatched(f *testing.F) {
	f.Add("inotify wd:1 ino:2f sdev:800001 mask:400")
	f.Fuzz(func(t *testing.T, line string) {
		if got, ok := parseWatched(line); ok && !strings.Contains(got, " sdev:") {
			t.Errorf("%q: %q", line, got)
		}
	})
}
