package freeze

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
)

// The image of the inner file system is on the outer one. Once the outer is
// frozen, a freeze of the inner hangs in the kernel, as it cannot write.
func stacked(t *testing.T) (outer, inner string) {
	t.Helper()
	outer = mount(t, "xfs")
	image := filepath.Join(outer, "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, scratchfs.Size); err != nil {
		t.Fatal(err)
	}
	testkit.Run(t, "mkfs.ext4", "-q", "-b", "4096", image)
	inner = t.TempDir()
	scratchfs.MountImage(t, "ext4", image, inner)
	t.Cleanup(func() {
		// In this order, or the second hangs with the first.
		if err := errors.Join(ThawPath(outer), ThawPath(inner)); err != nil {
			t.Error(err)
		}
		// An abandoned freeze can still sync briefly.
		if err := retry.For(context.Background(), time.Minute, func() (bool, error) {
			err := unix.Unmount(inner, 0)
			return errors.Is(err, unix.EBUSY), err
		}); err != nil {
			t.Error(err)
		}
	})
	return outer, inner
}

func startOn(t *testing.T, bound time.Duration, dirs ...string) *Frozen {
	t.Helper()
	roots, err := openRoots(dirs)
	if err != nil {
		t.Fatal(err)
	}
	f, err := self.begin(roots, dirs, bound)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func ends(t *testing.T, f *Frozen) {
	t.Helper()
	select {
	case <-f.done:
	case <-time.After(time.Minute):
		t.Fatal("the freeze does not end")
	}
}

// The guard leaves a thread in the kernel until the frozen file systems are
// thawed.
func TestGuardThatIsKilledWhileAFreezeHangs(t *testing.T) {
	outer, inner := stacked(t)
	f := startOn(t, 5*time.Second, outer, inner)
	testkit.Eventually(t, "one is frozen", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.progress.frozen(0)
	})
	testkit.Eventually(t, "the freeze of the next one hangs", func() bool { return hangs(t, f.process.cmd.Process.Pid) })
	if err := unix.Kill(f.process.cmd.Process.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ends(t, f)
	if !errors.Is(f.err, ErrExpired) {
		t.Errorf("error %v, want ErrExpired", f.err)
	}
	mustWrite(t, "outer", writer(t, outer))
	mustWrite(t, "inner", writer(t, inner))
}

// A thread is in the kernel and cannot be interrupted.
func hangs(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(threads, func(path string) bool {
		stat, err := os.ReadFile(path)
		_, state, _ := strings.Cut(string(stat), ") ")
		return err == nil && strings.HasPrefix(state, "D")
	})
}

// A slow disk does not break the freeze.
func TestThawThatIsSlow(t *testing.T) {
	outer, inner := stacked(t)
	f, err := self.Freeze(t.Context(), []string{inner}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Run(t, "fsfreeze", "--freeze", outer) // what the thaw of the inner writes has to wait
	thawed := make(chan error, 1)
	time.AfterFunc(guardTimeout+time.Second, func() { thawed <- ThawPath(outer) })
	began := time.Now()
	if err := f.Thaw(); err != nil {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	if took := time.Since(began); took < guardTimeout {
		t.Errorf("it took %v only: this shows nothing", took)
	}
	if err := <-thawed; err != nil {
		t.Error(err)
	}
	mustWrite(t, "inner", writer(t, inner))
}

func TestFreezeThatHangsEndsWithTheBound(t *testing.T) {
	outer, inner := stacked(t)
	_, err := self.Freeze(t.Context(), []string{outer, inner}, 300*time.Millisecond)
	if !errors.Is(err, ErrExpired) {
		t.Errorf("error %v, want ErrExpired", err)
	}
	mustWrite(t, "outer", writer(t, outer))
	mustWrite(t, "inner", writer(t, inner))
}

func TestFreezeThatHangsIsGivenUp(t *testing.T) {
	outer, inner := stacked(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	_, err := self.Freeze(ctx, []string{outer, inner}, time.Minute)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
	if took := time.Since(begun); took > within {
		t.Errorf("it took %v to give up", took)
	}
	mustWrite(t, "outer", writer(t, outer))
	mustWrite(t, "inner", writer(t, inner))
}

// The file system is never frozen, and the guard can be cancelled.
func TestWriteBackThatHangs(t *testing.T) {
	outer, inner := stacked(t)
	mustWrite(t, "inner", writer(t, inner))
	testkit.Run(t, "fsfreeze", "--freeze", outer)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	f := startOn(t, time.Minute, inner)
	select {
	case <-f.ready:
		t.Error("frozen, although it could not be written back")
	case <-f.done:
		t.Errorf("the guard gave up by itself: %v", f.err)
	case <-ctx.Done():
	}
	f.release()
	if err := ThawPath(outer); err != nil {
		t.Fatal(err)
	}
	<-f.done
	if f.progress.began || f.err != nil {
		t.Errorf("it came to freezing (%v), or %v", f.progress.began, f.err)
	}
	mustWrite(t, "inner", writer(t, inner))
}
