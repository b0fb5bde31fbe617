package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/internal/linux/inotify"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestRootComesAndGoes(t *testing.T) {
	for name, c := range map[string]struct {
		away, back func(t *testing.T, root string) error
	}{
		"removed": {
			func(_ *testing.T, root string) error { return os.RemoveAll(root) },
			func(_ *testing.T, root string) error { return os.Mkdir(root, 0o750) },
		},
		"removed with those above": {
			func(_ *testing.T, root string) error { return os.RemoveAll(filepath.Dir(filepath.Dir(root))) },
			func(_ *testing.T, root string) error { return os.MkdirAll(root, 0o750) },
		},
		"renamed": {
			func(_ *testing.T, root string) error { return os.Rename(root, root+"2") },
			func(_ *testing.T, root string) error { return os.Rename(root+"2", root) },
		},
		"renamed far above": {
			func(_ *testing.T, root string) error {
				above := filepath.Dir(filepath.Dir(root))
				return os.Rename(above, above+"2")
			},
			func(_ *testing.T, root string) error {
				above := filepath.Dir(filepath.Dir(root))
				return os.Rename(above+"2", above)
			},
		},
		"while a process stands in it": {
			func(t *testing.T, root string) error {
				dir, err := os.Open(root)
				t.Cleanup(func() { _ = dir.Close() })
				return errors.Join(err, os.RemoveAll(root))
			},
			func(_ *testing.T, root string) error { return os.Mkdir(root, 0o750) },
		},
		"a file in its place": {
			func(_ *testing.T, root string) error {
				return errors.Join(os.RemoveAll(root), os.WriteFile(root, nil, 0o600))
			},
			func(_ *testing.T, root string) error { return errors.Join(os.Remove(root), os.Mkdir(root, 0o750)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := makeRig(t, filepath.Join(t.TempDir(), "above", "near", "root"))
			testkit.Must(t, r.Start())
			r.run()
			for range 3 {
				mkdir(t, r.dir+"/d")
				if _, err := os.Lstat(r.dir + "/d/s"); err != nil {
					socket(t, r.dir+"/d/s")
				}
				r.wait("d/s")
				testkit.Must(t, r.Health())
				testkit.Must(t, c.away(t, r.dir))
				r.wait()
				r.until("the unmount succeeds", func() bool { r.nudge(); return r.Health() != nil })
				testkit.Must(t, c.back(t, r.dir))
				if _, err := os.Lstat(r.dir + "/d/s"); err != nil {
					mkdir(t, r.dir+"/d")
					socket(t, r.dir+"/d/s")
				}
				r.wait("d/s")
				r.reported()
			}
		})
	}
}

// nudge makes until check again.
func (r *rig) nudge() {
	time.AfterFunc(time.Millisecond, func() { r.report(nil) })
}

// Removed and recreated without a delay, so that it is never missing.
func TestRootReplacedAtOnce(t *testing.T) {
	r := newRig(t, func(root string) { socket(t, root+"/a") })
	for range 20 {
		testkit.Must(t, os.RemoveAll(r.dir), os.Mkdir(r.dir, 0o750))
		socket(t, r.dir+"/b")
		r.wait("b")
		testkit.Must(t, os.Rename(r.dir, r.dir+"2"), os.Mkdir(r.dir, 0o750), os.RemoveAll(r.dir+"2"))
		socket(t, r.dir+"/a")
		r.wait("a")
	}
}

func TestStartRefuses(t *testing.T) {
	base := t.TempDir()
	testkit.Must(t, os.WriteFile(base+"/file", nil, 0o600))
	for path, want := range map[string]error{base + "/file": unix.ENOTDIR, base + "/file/below": unix.ENOTDIR} {
		if err := makeRig(t, path).Start(); !errors.Is(err, want) || !strings.Contains(err.Error(), base+"/file") {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
	r := makeRig(t, base+"/above/root")
	testkit.Must(t, r.Start())
	r.run()
	if info, err := os.Stat(r.dir); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("made: %v, %v", info, err)
	}
}

// After any changes to the tree, exactly the existing sockets are known.
// Without symbolic links, events alone are sufficient.
func TestRandomChanges(t *testing.T) {
	for name, links := range map[string]bool{"events alone": false, "links and scans": true} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				r := makeRig(t, filepath.Join(t.TempDir(), "root"))
				if links {
					r.Rescan = 10 * time.Millisecond
				}
				testkit.Must(t, r.Start())
				stop := r.begin()
				defer stop()
				for range rapid.IntRange(1, 60).Draw(rt, "steps") {
					randomStep(rt, r.dir, links)
				}
				r.until("the unmount succeeds", func() bool { r.nudge(); return slices.Equal(sorted(walk(t, r.dir)), r.known()) })
			})
		})
	}
}

func sorted(all []string) []string { slices.Sort(all); return all }

func randomStep(rt *rapid.T, root string, links bool) {
	names := rapid.SampledFrom([]string{"a", "b", "c", ".h"})
	path := func() string {
		return filepath.Join(append([]string{root}, rapid.SliceOfN(names, 1, 3).Draw(rt, "path")...)...)
	}
	one, two := path(), path()
	what := rapid.SampledFrom([]string{"dir", "socket", "socket", "rename", "exchange", "remove", "hard", "link"}).Draw(rt, "what")
	switch what { // many of these fail, as they should
	case "dir":
		_ = os.MkdirAll(one, 0o750)
	case "socket":
		_ = os.MkdirAll(filepath.Dir(one), 0o750)
		_ = unix.Mknod(one, unix.S_IFSOCK|0o600, 0)
	case "rename":
		_ = os.Rename(one, two)
	case "exchange":
		_ = unix.Renameat2(unix.AT_FDCWD, one, unix.AT_FDCWD, two, unix.RENAME_EXCHANGE)
	case "remove":
		_ = os.RemoveAll(one)
	case "hard":
		_ = os.Link(one, two)
	case "link":
		if links {
			_ = os.Symlink(one, two)
		}
	}
}

// The kernel's queue overflows while no events are read.
func TestEventsLost(t *testing.T) {
	limit := testkit.Value(os.ReadFile("/proc/sys/fs/inotify/max_queued_events"))(t)
	queue := testkit.Value(strconv.Atoi(strings.TrimSpace(string(limit))))(t)
	r := newRig(t, func(root string) { mkdir(t, root+"/gone"); socket(t, root+"/gone/s", root+"/a", root+"/stays") })
	r.wait("a", "gone/s", "stays")
	r.mu.Lock()
	socket(t, r.dir+"/b")
	testkit.Must(t, os.WriteFile(r.dir+"/f", nil, 0o600))
	for range queue {
		testkit.Must(t, os.Rename(r.dir+"/f", r.dir+"/g"), os.Rename(r.dir+"/g", r.dir+"/f"))
	}
	testkit.Must(t, os.RemoveAll(r.dir+"/gone"), os.Remove(r.dir+"/a"))
	mkdir(t, r.dir+"/new/deep")
	socket(t, r.dir+"/a", r.dir+"/new/deep/s")
	r.mu.Unlock()
	r.wait("a", "b", "new/deep/s", "stays")
	socket(t, r.dir+"/new/later") // watched by now
	r.wait("a", "b", "new/deep/s", "new/later", "stays")
	got := strings.Join(r.reported(), " ")
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.scans["overflow"] == 0 || strings.Contains(got, "-stays") || strings.Count(got, "+a") != 2 {
		t.Errorf("%v, changes %s", r.scans, got)
	}
}

// A change without an event is found by the periodic scan.
func TestPeriodicScan(t *testing.T) {
	r := makeRig(t, filepath.Join(t.TempDir(), "root"))
	r.Rescan = 20 * time.Millisecond
	testkit.Must(t, r.Start())
	r.run()
	other := t.TempDir()
	testkit.Must(t, os.Symlink(other+"/s", r.dir+"/link"), os.Symlink(other, r.dir+"/dir"))
	for range 3 {
		socket(t, other+"/s")
		r.wait("link")
		testkit.Must(t, os.Remove(other+"/s"))
		r.wait()
	}
}

func TestRootLinkChanges(t *testing.T) {
	one, two, link := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "link")
	socket(t, one+"/one", two+"/two")
	testkit.Must(t, os.Symlink(one, link))
	r := makeRig(t, link)
	r.Rescan = 20 * time.Millisecond
	testkit.Must(t, r.Start())
	r.run()
	r.wait("one")
	testkit.Must(t, os.Symlink(two, link+"2"), os.Rename(link+"2", link))
	r.wait("two")
	socket(t, two+"/more", one+"/more")
	r.wait("more", "two")
}

func TestMountedOver(t *testing.T) {
	r := makeRig(t, filepath.Join(t.TempDir(), "root"))
	r.Rescan = 20 * time.Millisecond // a mount causes no event
	mkdir(t, r.dir+"/d")
	socket(t, r.dir+"/d/below")
	testkit.Must(t, r.Start())
	r.run()
	r.wait("d/below")
	testkit.Must(t, unix.Mount("tmpfs", r.dir+"/d", "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { _ = unix.Unmount(r.dir+"/d", unix.MNT_DETACH) })
	socket(t, r.dir+"/d/above")
	r.wait("d/above")
	var err error
	r.until("the unmount succeeds", func() bool { r.nudge(); err = unix.Unmount(r.dir+"/d", 0); return !errors.Is(err, unix.EBUSY) }) // a scan can keep it busy
	testkit.Must(t, err)
	r.wait("d/below")
}

// Inotify limits are per user namespace, so a child in its own namespace
// reaches them without affecting other programs.
func TestLimits(t *testing.T) {
	for _, limit := range []string{"max_inotify_instances", "max_inotify_watches"} {
		child := exec.CommandContext(t.Context(), os.Args[0])
		child.Env = append(os.Environ(), victimLimit+"="+limit, "TMPDIR="+t.TempDir())
		child.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", limit, err, out)
		}
	}
}

// victimLimit selects the limit that the child lowers and reaches.
const victimLimit = "CLEAT_TEST_DISCOVERY_LIMIT"

func victim(limit string) {
	meet := map[string]func(root string) error{"max_inotify_instances": noInstance, "max_inotify_watches": noWatch}[limit]
	root, err := os.MkdirTemp("", "root")
	if err == nil {
		err = meet(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func lower(limit string, n int) error {
	return os.WriteFile("/proc/sys/user/max_inotify_"+limit, []byte(strconv.Itoa(n)), 0)
}

func noInstance(root string) error {
	if err := lower("instances", 0); err != nil {
		return err
	}
	if err := New(Options{Dir: root}).Start(); !errors.Is(err, inotify.ErrInstances) {
		return fmt.Errorf("without an instance Start returned: %w", err)
	}
	return nil
}

// noWatch: at start it is an error; later it is reported, and scans find the
// sockets.
func noWatch(root string) error {
	const allowed = 10
	if err := lower("watches", allowed); err != nil {
		return err
	}
	sub := func(i int) string { return filepath.Join(root, "sub"+strconv.Itoa(i)) }
	for i := range allowed {
		if err := os.Mkdir(sub(i), 0o750); err != nil {
			return err
		}
	}
	o := Options{Dir: root, Rescan: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler), Report: func([]Change) {}}
	if err := New(o).Start(); !errors.Is(err, inotify.ErrWatches) {
		return fmt.Errorf("without a watch Start returned: %w", err)
	}
	for i := range allowed {
		if err := os.Remove(sub(i)); err != nil {
			return err
		}
	}
	return runShort(o, sub, allowed)
}

func runShort(o Options, sub func(int) string, n int) error {
	found := make(chan Change, 100)
	unseen := make(chan int, 1000)
	o.Report = func(changes []Change) {
		for _, c := range changes {
			found <- c
		}
	}
	o.Observe.Unseen = func(n int) { unseen <- n }
	f := New(o)
	if err := f.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	for i := range n {
		if err := os.Mkdir(sub(i), 0o750); err != nil {
			return err
		}
	}
	for range 2 { // some are watched, some are not; all are found
		for i := range n {
			if err := unix.Mknod(filepath.Join(sub(i), "s"), unix.S_IFSOCK, 0); err != nil {
				return err
			}
		}
		if err := count(ctx, found, n); err != nil {
			return err
		}
		if err := f.Health(); !errors.Is(err, inotify.ErrWatches) {
			return fmt.Errorf("short of watches, health is: %w", err)
		}
		for i := range n {
			if err := os.Remove(filepath.Join(sub(i), "s")); err != nil {
				return err
			}
		}
		if err := count(ctx, found, n); err != nil {
			return err
		}
	}
	for i := range n - 1 {
		if err := os.Remove(sub(i)); err != nil {
			return err
		}
	}
	for {
		select {
		case n := <-unseen:
			if n == 0 && f.Health() == nil {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("watches are free again, health is: %w", f.Health())
		}
	}
}

func count(ctx context.Context, found <-chan Change, n int) error {
	for i := range n {
		select {
		case <-found:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d changes were found", i, n)
		}
	}
	return nil
}
