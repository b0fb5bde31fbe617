package inotify

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	if limit := os.Getenv(victimLimit); limit != "" {
		_, _ = os.Stdout.WriteString(meet(limit).Error())
		os.Exit(0)
	}
	if dir := os.Getenv(beWatcher); dir != "" {
		os.Exit(watch(dir))
	}
	goleak.VerifyTestMain(m)
}

const names = Create | Delete | MovedFrom | MovedTo | DeleteSelf | MoveSelf | OnlyDir | DontFollow

func newWatcher(t *testing.T) *Watcher {
	t.Helper()
	w := testkit.Value(New())(t)
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func add(t *testing.T, w *Watcher, path string) Watch {
	t.Helper()
	return testkit.Value(w.Add(path, names))(t)
}

func take(t *testing.T, w *Watcher, n int) []Event {
	t.Helper()
	var events []Event
	for len(events) < n {
		var err error
		if events, err = w.Read(t.Context(), time.Now().Add(time.Minute), events); err != nil {
			t.Fatalf("%v; so far %v", err, events)
		}
	}
	return events
}

func TestEventsInOrder(t *testing.T) {
	w, dir := newWatcher(t), filepath.Join(t.TempDir(), "watched")
	testkit.Must(t, os.Mkdir(dir, 0o700))
	wd := add(t, w, dir)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, strings.Repeat("b", 255))
	testkit.Must(t, os.WriteFile(a, []byte("written"), 0o600), os.Chmod(a, 0o400), os.Rename(a, b), os.Remove(b),
		os.Mkdir(a, 0o700), os.Remove(a), os.Rename(dir, dir+"2"), os.Remove(dir+"2"))
	got := take(t, w, 9)
	want := []Event{
		{Watch: wd, Mask: Create, Name: "a"},
		{Watch: wd, Mask: MovedFrom, Name: "a", Cookie: got[1].Cookie},
		{Watch: wd, Mask: MovedTo, Name: filepath.Base(b), Cookie: got[1].Cookie},
		{Watch: wd, Mask: Delete, Name: filepath.Base(b)},
		{Watch: wd, Mask: Create | IsDir, Name: "a"},
		{Watch: wd, Mask: Delete | IsDir, Name: "a"},
		{Watch: wd, Mask: MoveSelf},
		{Watch: wd, Mask: DeleteSelf},
		{Watch: wd, Mask: Ignored},
	}
	if diff := cmp.Diff(want, got); diff != "" || got[1].Cookie == 0 {
		t.Errorf("want-, got+:\n%s", diff)
	}
}

func TestWatches(t *testing.T) {
	w, dir := newWatcher(t), t.TempDir()
	testkit.Must(t, os.Symlink(dir, dir+"/link"), os.WriteFile(dir+"/file", nil, 0o600))
	wd := add(t, w, dir)
	if again := add(t, w, filepath.Join(dir, ".")); again != wd {
		t.Errorf("the same directory has the watches %d and %d", wd, again)
	}
	for path, want := range map[string]error{"/link": unix.ENOTDIR, "/file": unix.ENOTDIR, "/none": unix.ENOENT} {
		if _, err := w.Add(dir+path, names); !errors.Is(err, want) || !strings.Contains(err.Error(), dir+path) {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
	testkit.Must(t, w.Remove(wd))
	if got := take(t, w, 1); got[0].Mask != Ignored || got[0].Watch != wd {
		t.Errorf("after Remove: %v", got)
	}
	testkit.Must(t, w.Remove(wd))
	if next := add(t, w, dir); next == wd {
		t.Errorf("the watch %d was used again", wd)
	}
}

func TestReadEnds(t *testing.T) {
	w := newWatcher(t)
	add(t, w, t.TempDir())
	if _, err := w.Read(t.Context(), time.Now().Add(time.Millisecond), nil); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("at the deadline: %v", err)
	}
	cause := errors.New("enough")
	for name, end := range map[string]func(context.CancelCauseFunc){
		"before": func(cancel context.CancelCauseFunc) { cancel(cause) },
		"while":  func(cancel context.CancelCauseFunc) { go cancel(cause) },
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		end(cancel)
		if _, err := w.Read(ctx, time.Time{}, nil); !errors.Is(err, cause) {
			t.Errorf("cancelled %s reading: %v", name, err)
		}
	}
	go func() { _ = w.Close() }()
	testkit.WantError(t, "closed", testkit.Err(w.Read(t.Context(), time.Time{}, nil)), os.ErrClosed)
	testkit.WantError(t, "Add after Close", testkit.Err(w.Add("/", names)), os.ErrClosed)
}

func TestPending(t *testing.T) {
	w, dir := newWatcher(t), t.TempDir()
	wd := add(t, w, dir)
	if got, err := w.Pending(nil); err != nil || len(got) != 0 {
		t.Errorf("nothing waits: %v, %v", got, err)
	}
	testkit.Must(t, os.Mkdir(dir+"/a", 0o700))
	want := []Event{{Watch: wd, Mask: Create | IsDir, Name: "a"}}
	if got, err := w.Pending(nil); err != nil || !cmp.Equal(want, got) {
		t.Errorf("got %v, %v", got, err)
	}
	testkit.Must(t, w.Close())
	testkit.WantError(t, "closed", testkit.Err(w.Pending(nil)), os.ErrClosed)
}

// A queue overflow is reported, and earlier events are complete.
func TestOverflow(t *testing.T) {
	limit := testkit.Value(os.ReadFile("/proc/sys/fs/inotify/max_queued_events"))(t)
	queue := testkit.Value(strconv.Atoi(strings.TrimSpace(string(limit))))(t)
	w, dir := newWatcher(t), t.TempDir()
	add(t, w, dir)
	a, b := dir+"/a", dir+"/b"
	testkit.Must(t, os.WriteFile(a, nil, 0o600))
	for range queue / 2 {
		testkit.Must(t, os.Rename(a, b), os.Rename(b, a))
	}
	seen := 0
	for {
		events := testkit.Value(w.Read(t.Context(), time.Now().Add(time.Minute), nil))(t)
		seen += len(events)
		if last := events[len(events)-1]; last.Mask&Overflow != 0 {
			if last.Watch != -1 {
				t.Errorf("the overflow is of watch %d", last.Watch)
			}
			break
		}
	}
	if seen != queue+1 {
		t.Errorf("%d events from a queue of %d", seen, queue)
	}
}

// The limits apply per user namespace: a child in its own one does not affect
// other programs.
func TestLimits(t *testing.T) {
	for name, want := range map[string]error{"max_inotify_instances": ErrInstances, "max_inotify_watches": ErrWatches} {
		victim := exec.CommandContext(t.Context(), os.Args[0])
		victim.Env = append(os.Environ(), victimLimit+"="+name)
		victim.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		out, err := victim.CombinedOutput()
		sysctl := "fs.inotify.max_user_" + strings.TrimPrefix(name, "max_inotify_")
		if err != nil || !strings.Contains(string(out), want.Error()) || !strings.Contains(string(out), sysctl) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// victimLimit selects the limit that the test binary lowers and reaches.
const victimLimit = "CLEAT_TEST_INOTIFY_LIMIT"

func meet(limit string) error {
	if err := os.WriteFile("/proc/sys/user/"+limit, []byte("2"), 0); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "inotify")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for i := range 4 {
		w, err := New()
		if err != nil {
			return err
		}
		defer w.Close()
		sub := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(sub, 0o700); err != nil {
			return err
		}
		if strings.Contains(limit, "instances") {
			continue
		}
		if _, err := w.Add(sub, names); err != nil {
			return err
		}
	}
	return errors.New("the limit was not met")
}

func FuzzParse(f *testing.F) {
	event := func(wd int32, mask, cookie uint32, name string, pad int) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(wd))
		b = binary.NativeEndian.AppendUint32(b, mask)
		b = binary.NativeEndian.AppendUint32(b, cookie)
		b = binary.NativeEndian.AppendUint32(b, uint32(len(name)+pad))
		return append(append(b, name...), make([]byte, pad)...)
	}
	f.Add(event(1, Create, 0, "x.sock", 10))
	f.Add(append(event(-1, Overflow, 0, "", 0), event(7, MovedTo, 9, "ü", 14)...))
	f.Add(event(1, Delete, 0, "part", 1)[:17])
	f.Fuzz(func(t *testing.T, buf []byte) {
		events, err := parse(nil, buf)
		var again []byte
		for _, e := range events {
			if strings.ContainsRune(e.Name, 0) {
				t.Errorf("the name %q holds a NUL", e.Name)
			}
			again = append(again, event(int32(e.Watch), e.Mask, e.Cookie, e.Name, 0)...)
		}
		if len(again) > len(buf) || err == nil && len(buf) > 0 && len(events) == 0 {
			t.Errorf("%d events of %d bytes from %d bytes: %v", len(events), len(again), len(buf), err)
		}
		if second, err := parse(nil, again); err != nil || !cmp.Equal(events, second) {
			t.Errorf("written again they are %v: %v", second, err)
		}
	})
}
