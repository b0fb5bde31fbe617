package hostfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
)

// tmpfs is a source that the mount table shows as "late".
type tmpfs struct {
	*Mounts
	bound time.Duration
}

func (tmpfs) String() string { return "tmpfs late" }

// mountAt without bound ends the helper after the mount.
func (s tmpfs) mountAt(ctx context.Context, target string) error {
	bound := s.bound
	if bound == 0 {
		bound = far
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		var watcher sync.WaitGroup
		defer watcher.Wait()
		defer cancel()
		watcher.Go(func() {
			defer cancel()
			for range time.Tick(10 * time.Millisecond) {
				if _, mounted, err := mount.At(ctx, target); err != nil || mounted {
					return
				}
			}
		})
	}
	return s.run(ctx, helperRequest{Target: target, NFS: &nfsMount{}}, bound)
}

func (tmpfs) shown(_ context.Context, e mount.Entry, _ []mount.Entry) (bool, error) {
	return e.Source == "late", nil
}

// soon is short: only the kill ends the helper.
const soon = 200 * time.Millisecond

func TestHelperIsKilled(t *testing.T) {
	r := newRig(t, helperWord(hangWord))
	target := r.Path(name)
	err := r.mountSource(t.Context(), target, tmpfs{r.Mounts, soon})
	testkit.WantError(t, "the error", err, errs.Unavailable, "no response from the server within 200ms")
	if !errors.Is(err, errNoAnswer) {
		t.Errorf("%v is not errNoAnswer", err)
	}
	if _, err := os.Lstat(target); !os.IsNotExist(err) {
		t.Errorf("a mount point was left: %v", err)
	}

	for after := soon; ; after *= 2 { // it can time out before the helper runs
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(after, func() { cancel(errors.New("enough")) })
		err = r.mountSource(ctx, target, tmpfs{r.Mounts, far})
		if errors.Is(err, errNoAnswer) || after > far/4 {
			break
		}
	}
	if !errors.Is(err, context.Canceled) || !errors.Is(err, errNoAnswer) {
		t.Errorf("after the caller's end: %v", err)
	}
	wantNoChildren(t)
}

// wantNoChildren: no helper runs or is a zombie.
func wantNoChildren(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "no process is left", func() bool { // a late one is reaped by its own goroutine
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		return errors.Is(err, unix.ECHILD)
	})
}

// TestLateMount: the mount completed before the kill.
func TestLateMount(t *testing.T) {
	r := newRig(t, helperWord(lateWord))
	src := tmpfs{r.Mounts, 0}
	testkit.Must(t, r.mountSource(t.Context(), r.Path(name), src))
	e, mounted, err := mount.At(t.Context(), r.Path(name))
	if err != nil || !mounted || e.Source != "late" {
		t.Errorf("mounted is %+v, %v, %v", e, mounted, err)
	}
	testkit.Must(t, r.mountSource(t.Context(), r.Path(name), src))
	if n := r.layers(t); n != 1 {
		t.Errorf("%d mounts on one another", n)
	}
}

func TestHelperFails(t *testing.T) {
	r := newRig(t, helperWord(garbageWord))
	err := r.mountSource(t.Context(), r.Path(name), tmpfs{r.Mounts, far})
	testkit.WantError(t, "the error", err, errs.Internal, "ended without a response (exit status 1): and a reason")

	r = newRig(t, func(c *Config) { c.Helper = []string{"/no/such/program"} })
	err = r.mountSource(t.Context(), r.Path(name), tmpfs{r.Mounts, far})
	testkit.WantError(t, "the error", err, errs.Internal, "start the mount helper", "/no/such/program")
	if _, err := os.Lstat(r.Path(name)); !os.IsNotExist(err) {
		t.Errorf("a mount point was left: %v", err)
	}
}

// TestHangingHelper: no second helper while the kernel holds one.
func TestHangingHelper(t *testing.T) {
	r := newRig(t, helperWord(lateWord))
	p := &process{cmd: &exec.Cmd{Process: &os.Process{Pid: 4711}}, done: make(chan struct{})}
	r.stuck[r.Path(name)] = p
	src := tmpfs{r.Mounts, 0}
	err := r.mountSource(t.Context(), r.Path(name), src)
	testkit.WantError(t, "the error", err, errs.Unavailable, "process 4711 of an earlier attempt", r.Path(name))
	testkit.Must(t, r.mountSource(t.Context(), r.Path("pvc-2"), src)) // other targets work
	close(p.done)
	testkit.Must(t, r.mountSource(t.Context(), r.Path(name), src))
	if len(r.stuck) > 0 {
		t.Errorf("still remembered: %v", r.stuck)
	}
}

// TestHelperUnmounts runs the real helper.
func TestHelperUnmounts(t *testing.T) {
	r := newRig(t)
	target := r.Path(name)
	testkit.Must(t, os.Mkdir(target, 0o755))
	mountIt := func() { t.Helper(); testkit.Must(t, unix.Mount("x", target, "tmpfs", 0, "size=64k")) }
	for what, c := range map[string]struct {
		flags int
		busy  bool
		want  errs.Kind
	}{
		"mild":           {0, false, ""},
		"mild, busy":     {0, true, errs.Precondition},
		"by force":       {unix.MNT_FORCE, false, ""},
		"by force, busy": {unix.MNT_FORCE, true, errs.Internal},
		"detached, busy": {unix.MNT_DETACH, true, ""},
	} {
		t.Run(what, func(t *testing.T) {
			mountIt()
			if c.busy {
				f := testkit.Value(os.Create(filepath.Join(target, "file")))(t)
				defer f.Close()
			}
			err := r.run(t.Context(), helperRequest{Target: target, Unmount: &unmountRequest{c.flags}}, far)
			if c.want != "" {
				testkit.WantError(t, "the error", err, c.want, target)
				if !errors.Is(err, unix.EBUSY) && !errors.Is(err, mount.ErrBusy) {
					t.Errorf("%v says nothing of being busy", err)
				}
				testkit.Must(t, unix.Unmount(target, unix.MNT_DETACH))
			} else if err != nil {
				t.Error(err)
			}
			if n := r.layers(t); n != 0 {
				t.Errorf("%d mounts are left", n)
			}
		})
	}
}

// TestDeadServer: the unmount escalates to force and lazy, unless the caller
// cancels.
func TestDeadServer(t *testing.T) {
	for _, c := range []struct {
		what string
		busy bool
		says []string // by the log
	}{
		{"server away", false, []string{"forced unmount"}},
		{"in use", true, []string{"forced unmount", "lazy unmount"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel() // half of the deadline passes before the first escalation
			r := newRig(t, helperWord(forceWord), func(c *Config) { c.Deadline = 16 * time.Second })
			target, e := r.served(t)
			if c.busy {
				f := testkit.Value(os.Create(filepath.Join(target, "file")))(t)
				defer f.Close()
			}
			testkit.Must(t, r.unmountRemote(t.Context(), target, e))
			if n := r.layers(t); n != 0 {
				t.Errorf("%d mounts are left", n)
			}
			for _, words := range c.says {
				if !strings.Contains(r.log.String(), words) || !strings.Contains(r.log.String(), "server:/x") {
					t.Errorf("the log does not say %q: %s", words, r.log.String())
				}
			}
			if got := strings.Count(r.log.String(), "does not respond"); got != len(c.says) {
				t.Errorf("%d hard steps: %s", got, r.log.String())
			}
		})
	}
}

func (r rig) served(t *testing.T) (target string, e mount.Entry) {
	t.Helper()
	target = r.Path(name)
	testkit.Must(t, os.Mkdir(target, 0o755))
	testkit.Must(t, unix.Mount("server:/x", target, "tmpfs", 0, "size=64k"))
	e, _, err := mount.At(t.Context(), target)
	testkit.Must(t, err)
	return target, e
}

func TestUnmountGivesUp(t *testing.T) {
	r := newRig(t, helperWord(hangWord), func(c *Config) { c.Deadline = 4 * soon })
	target, e := r.served(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.unmountRemote(ctx, target, e); !errors.Is(err, context.Canceled) || strings.Contains(r.log.String(), "does not respond") {
		t.Errorf("after the caller's end: %v, log %s", err, r.log.String())
	}
	testkit.WantError(t, "unmountRemote", r.unmountRemote(t.Context(), target, e), errs.Unavailable, "server:/x (tmpfs, writable)", "no response")
	if n := r.layers(t); n != 1 {
		t.Errorf("%d mounts are there", n)
	}
}

func TestHelperByHand(t *testing.T) {
	for _, in := range []string{"", "\n", "{}\n", "garbage\n", `{"target":""}` + "\n", strings.Repeat("x", maxHelperRequest+1)} {
		var out strings.Builder
		if err := RunHelper(t.Context(), strings.NewReader(in), &out); err == nil || !strings.Contains(err.Error(), "internal to cleat") || out.Len() > 0 {
			t.Errorf("%.20q: %v, %q", in, err, out.String())
		}
	}
}

func TestAnswers(t *testing.T) {
	for _, err := range []error{
		errs.Errorf(errs.Precondition, "a: %w: %w", mount.ErrBusy, unix.EBUSY),
		fmt.Errorf("b: %w", unix.EPROTONOSUPPORT),
		errs.Errorf(errs.Unsupported, "c"),
	} {
		got := responseOf(err).err()
		if got.Error() != err.Error() || errs.KindOf(got) != errs.KindOf(err) {
			t.Errorf("%v (%v) arrives as %v (%v)", err, errs.KindOf(err), got, errs.KindOf(got))
		}
		for _, cause := range []error{mount.ErrBusy, unix.EBUSY, unix.EPROTONOSUPPORT, unix.ENOENT} {
			if errors.Is(got, cause) != errors.Is(err, cause) {
				t.Errorf("%v arrives with another cause %v", err, cause)
			}
		}
	}
	if diff := cmp.Diff(helperResponse{}, responseOf(nil)); diff != "" || (helperResponse{}).err() != nil {
		t.Error(diff)
	}
}

func TestCallsAtOneTarget(t *testing.T) {
	r := newRig(t)
	done := testkit.Value(r.begin(t.Context(), "/x"))(t)
	other, err := r.begin(t.Context(), "/y") // another is not waited for
	testkit.Must(t, err)
	other()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	_, err = r.begin(ctx, "/x")
	testkit.WantError(t, "the error", err, errs.Busy, "/x", "in progress")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	done()
	done = testkit.Value(r.begin(t.Context(), "/x"))(t)
	done()
}

func TestTail(t *testing.T) {
	var b tail
	for range 1000 {
		_, _ = b.Write([]byte("0123456789"))
	}
	_, _ = b.Write([]byte("end"))
	if b.Len() != 4096 || !strings.HasSuffix(b.String(), "789end") {
		t.Errorf("%d bytes are kept, the last %q", b.Len(), b.String()[b.Len()-6:])
	}
}

// TestShared: SNAP does not see mounts on a private mount.
func TestShared(t *testing.T) {
	for _, c := range []struct {
		how  uintptr
		want bool
	}{{unix.MS_PRIVATE, true}, {unix.MS_SHARED, false}, {unix.MS_SLAVE, true}} {
		base := t.TempDir()
		testkit.Must(t, unix.Mount("x", base, "tmpfs", 0, "size=64k"))
		t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
		testkit.Must(t, unix.Mount("", base, "", c.how, ""))
		r := newRig(t, func(c *Config) { c.Dir = filepath.Join(base, "volumes") })
		if got := strings.Contains(r.log.String(), "make-rshared "+base); got != c.want {
			t.Errorf("propagation %#x: warned: %v, want %v\n%s", c.how, got, c.want, r.log.String())
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	for what, edit := range map[string]func(*Config){
		"relative directory":   func(c *Config) { c.Dir = "volumes" },
		"no directory":         func(c *Config) { c.Dir = "" },
		"the root":             func(c *Config) { c.Dir = "/" },
		"relative keys":        func(c *Config) { c.KeyDir = "keys" },
		"relative cephs":       func(c *Config) { c.CephDir = "../ceph" },
		"no helper":            func(c *Config) { c.Helper = nil },
		"a negative deadline":  func(c *Config) { c.Deadline = -1 },
		"directory is a file ": func(c *Config) { c.Dir = "/proc/self/status" },
	} {
		c := Config{Dir: t.TempDir(), Helper: []string{"x"}}
		edit(&c)
		if _, err := Open(c); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if _, err := Open(Config{Dir: t.TempDir(), Helper: []string{"x"}}); err != nil {
		t.Error(err)
	}
	if _, err := Open(Config{Dir: "volumes", Helper: []string{"x"}}); !errors.Is(err, errs.Invalid) {
		t.Errorf("%v is not of kind %v", err, errs.Invalid)
	}
}
