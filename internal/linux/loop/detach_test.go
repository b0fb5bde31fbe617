package loop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

// wantBusy asserts that a detach was refused and left the device as it was.
func wantBusy(t *testing.T, d Device, words ...string) {
	t.Helper()
	var err error
	for late := time.Now().Add(time.Minute); ; { // until there was time to look who holds it
		err = Detach(t.Context(), d)
		if err == nil || !strings.Contains(err.Error(), "not found in time") || time.Now().After(late) {
			break
		}
	}
	if !errors.Is(err, ErrBusy) || !errors.Is(err, errs.Precondition) {
		t.Fatalf("err %v, want %v", err, ErrBusy)
	}
	for _, word := range append(words, d.Path) {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
	if diff := cmp.Diff([]Device{d}, mustFind(t, d.Backing)); diff != "" {
		t.Errorf("a refused detach changed the device (-before +after):\n%s", diff)
	}
}

func TestDetachRefusesAnOpenDevice(t *testing.T) {
	t.Parallel()
	d, f := mustAttach(t, Config{File: newFile(t, testSize)})
	wantBusy(t, d, "this process")
	f.Close()
	if found := mustFind(t, d.Backing); len(found) != 1 {
		t.Errorf("the refused detach was carried out later: found %v", found)
	}
	if err := Detach(t.Context(), d); err != nil {
		t.Error(err)
	}
}

func TestDetachRefusesADeviceOpenElsewhere(t *testing.T) {
	t.Parallel()
	d, f := mustAttach(t, Config{File: newFile(t, testSize)})
	f.Close()
	stop := startHolder(t, nil, `exec 3<"$1"; echo ready; read line`, d.Path)
	wantBusy(t, d, "(sh)")
	stop()
	if err := Detach(t.Context(), d); err != nil {
		t.Error(err)
	}
}

func TestDetachRefusesADeviceMountedInAnotherNamespace(t *testing.T) {
	t.Parallel()
	d, f := mustAttach(t, Config{File: newFile(t, testSize)})
	f.Close()
	run(t, "mkfs.ext4", "-q", d.Path)
	dir := t.TempDir()
	// The copies of what other tests have mounted go at once: they would hold
	// those tests' devices.
	stop := startHolder(t, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS},
		`mount --make-rprivate / && while read -r _ _ _ _ target _; do
			case "$target" in "$3"/*) umount -l "$target" 2>/dev/null;; esac
		done </proc/self/mountinfo
		mount "$1" "$2" && echo ready && read line`, d.Path, dir, os.TempDir())
	wantBusy(t, d, dir, "mount namespace")
	stop()
	if err := Detach(t.Context(), d); err != nil {
		t.Error(err)
	}
}

func TestDetachWaitsForAShortUse(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	d, f := mustAttach(t, Config{File: newFile(t, testSize)})
	for {
		began, closed := time.Now(), make(chan time.Time, 1)
		time.AfterFunc(100*time.Millisecond, func() { f.Close(); closed <- time.Now() })
		err := Detach(t.Context(), d)
		if used := (<-closed).Sub(began); err == nil || used < 500*time.Millisecond {
			if err != nil {
				t.Errorf("used for %v: %v", used, err)
			}
			return
		}
		// The machine made it a long use, which need not be waited for.
		if f, err = os.Open(d.Path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDetachEndsWithItsContext(t *testing.T) {
	d, _ := mustAttach(t, Config{File: newFile(t, testSize)})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Detach(ended, d); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	// A wait that is enough to find that the device is busy, and less than what
	// is waited otherwise, in which case the error would not tell of the context.
	var err error
	wait := 20 * time.Millisecond
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		err = Detach(ctx, d)
		cancel()
		if errors.Is(err, ErrBusy) && errors.Is(err, context.DeadlineExceeded) {
			return
		}
		wait = min(2*wait, detachBound/2)
	}
	t.Errorf("err %v, want both %v and the end of the context", err, ErrBusy)
}

func TestAutoClear(t *testing.T) {
	d, f := mustAttach(t, Config{File: newFile(t, testSize), AutoClear: true})
	if !d.AutoClear {
		t.Fatalf("attached %+v, want auto-clear", d)
	}
	run(t, "mkfs.ext4", "-q", d.Path)
	dir := t.TempDir()
	run(t, "mount", d.Path, dir)
	f.Close()
	if found := mustFind(t, d.Backing); len(found) != 1 {
		t.Errorf("with a mount there are %v, want the device", found)
	}
	run(t, "umount", dir)
	wantGone(t, d)
}

// wantGone waits until the device is let go: another program may have it open
// for the moment in which it looks.
func wantGone(t *testing.T, d Device) {
	t.Helper()
	err := retry.For(t.Context(), time.Minute, func() (again bool, err error) {
		if found := mustFind(t, d.Backing); len(found) != 0 {
			return true, fmt.Errorf("there is still %v", found)
		}
		return false, nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSetAutoClear(t *testing.T) {
	d, f := mustAttach(t, Config{File: newFile(t, testSize), AutoClear: true})
	if err := SetAutoClear(t.Context(), d, false); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if found := mustFind(t, d.Backing); len(found) != 1 || found[0].AutoClear || !found[0].DirectIO {
		t.Fatalf("found %+v, want the device without auto-clear and with all else", found)
	}
	if err := SetAutoClear(t.Context(), d, true); err != nil {
		t.Fatal(err)
	}
	wantGone(t, d)
}

// run runs a tool that the test cannot do without.
func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

// startHolder runs a shell script that says "ready" and then holds something
// until stop, or the end of the test.
func startHolder(t *testing.T, attr *syscall.SysProcAttr, script string, args ...string) (stop func()) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.SysProcAttr = attr
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			stdin.Close()
			_ = cmd.Wait() // read fails at the end of the input
		}
	}
	t.Cleanup(stop)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the holder said %q (err %v)", line, err)
	}
	return stop
}
