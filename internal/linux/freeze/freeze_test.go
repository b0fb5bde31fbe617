package freeze

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
)

// The test binary is also the guard, and a parent that is killed during a
// freeze.
func TestMain(m *testing.M) {
	kernelcall.Main()
	switch {
	case len(os.Args) == 2 && os.Args[1] == "freeze-guard":
		if err := RunGuard(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
	case len(os.Args) > 2 && os.Args[1] == "freeze-parent":
		holdFrozen(os.Args[2:])
	default:
		goleak.VerifyTestMain(m)
	}
}

// self is the test binary as a guard. With this variable the race detector does
// not wait a second at exit.
var self = NewGuard("/usr/bin/env", "GORACE=atexit_sleep_ms=0", fmt.Sprintf("/proc/%d/exe", os.Getpid()), "freeze-guard")

func holdFrozen(mountpoints []string) {
	f, err := self.Freeze(context.Background(), mountpoints, time.Minute)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(f.process.cmd.Process.Pid)
	select {}
}

// within : far below the bounds of freezes.
const within = 30 * time.Second

// writer reports the end of a write.
func writer(t *testing.T, dir string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(filepath.Join(dir, "written"), []byte("x"), 0o600) }()
	return done
}

func mustWrite(t *testing.T, what string, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	case <-time.After(within):
		t.Fatalf("%s: the writer still hangs after %v", what, within)
	}
}

func mustHang(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("a write to a frozen file system came through (%v)", err)
	case <-time.After(100 * time.Millisecond):
	}
}

func mount(t *testing.T, fstype string) string {
	t.Helper()
	dir := scratchfs.Mount(t, fstype)
	t.Cleanup(func() {
		// Otherwise the background starts a process during the unmount, which holds
		// files of the file system until it executes its program.
		if err := self.Prepare(); err != nil {
			t.Error(err)
		}
		if err := ThawPath(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func freezeAll(t *testing.T, bound time.Duration, dirs ...string) *Frozen {
	t.Helper()
	f, err := self.Freeze(t.Context(), dirs, bound)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Thaw() })
	return f
}

// freezeBriefly increases the bound until freezing alone takes less.
func freezeBriefly(t *testing.T, dir string) *Frozen {
	t.Helper()
	for bound := 200 * time.Millisecond; ; bound *= 2 {
		f, err := self.Freeze(t.Context(), []string{dir}, bound)
		if errors.Is(err, ErrExpired) && bound < within/2 {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Thaw() })
		return f
	}
}

func TestWritersWaitUntilThaw(t *testing.T) {
	for _, fstype := range []string{"xfs", "ext4", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			dir := mount(t, fstype)
			f := freezeAll(t, time.Minute, dir)
			done := writer(t, dir)
			mustHang(t, done)
			if err := f.Thaw(); err != nil {
				t.Fatal(err)
			}
			mustWrite(t, "after Thaw", done)
			if err := f.Thaw(); err != nil {
				t.Errorf("second Thaw: %v", err)
			}
		})
	}
}

func TestWritersProceedWhenTheParentIsKilled(t *testing.T) {
	one, two := mount(t, "xfs"), mount(t, "ext4")
	parent, guard := startParent(t, one, two)
	// None of these must end the guard: they go to its group and terminal.
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE} {
		if err := unix.Kill(guard, sig); err != nil {
			t.Fatal(err)
		}
	}
	first, second := writer(t, one), writer(t, two)
	mustHang(t, first)
	mustHang(t, second)
	end := watchProcess(t, guard)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	parent.Wait()
	mustWrite(t, "first file system", first)
	mustWrite(t, "second file system", second)
	end()
}

func watchProcess(t *testing.T, pid int) (end func()) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func() {
		t.Helper()
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			n, err := unix.Poll(poll, int(within.Milliseconds()))
			if err == unix.EINTR {
				continue
			}
			if n != 1 {
				t.Fatalf("process %d is still there after %v (%v)", pid, within, err)
			}
			return
		}
	}
}

func startParent(t *testing.T, mountpoints ...string) (parent *exec.Cmd, guard int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{"freeze-parent"}, mountpoints...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(line, &guard); err != nil {
		t.Fatalf("the parent said %q", line)
	}
	if group, err := unix.Getpgid(guard); err != nil || group != guard {
		t.Errorf("the guard is in process group %d, %v: a signal for the parent's group would reach it", group, err)
	}
	return cmd, guard
}

func TestParentThawsWhenTheGuardIsKilled(t *testing.T) {
	one, two := mount(t, "xfs"), mount(t, "ext4")
	f := freezeAll(t, time.Minute, one, two)
	first, second := writer(t, one), writer(t, two)
	mustHang(t, first)
	f.process.cmd.Process.Kill()
	mustWrite(t, "first file system", first)
	mustWrite(t, "second file system", second)
	if err := f.Thaw(); !errors.Is(err, ErrBroken) {
		t.Errorf("Thaw after the guard was killed: %v, want ErrBroken: the snapshot cannot be trusted", err)
	}
}

func TestThawWhenTheGuardIsStopped(t *testing.T) {
	dir := mount(t, "xfs")
	f := freezeAll(t, time.Minute, dir)
	f.process.cmd.Process.Signal(unix.SIGSTOP)
	done := writer(t, dir)
	mustHang(t, done)
	if err := f.Thaw(); err != nil {
		t.Errorf("it was frozen until Thaw, and yet: %v", err)
	}
	mustWrite(t, "after Thaw", done)
}

func TestBound(t *testing.T) {
	dir := mount(t, "xfs")
	f := freezeBriefly(t, dir)
	mustWrite(t, "after the bound", writer(t, dir))
	<-f.done
	if err := f.Thaw(); !errors.Is(err, ErrExpired) {
		t.Errorf("Thaw after the bound: %v, want ErrExpired", err)
	}
}

func TestBoundHoldsWhenTheGuardIsStopped(t *testing.T) {
	dir := mount(t, "xfs")
	f := freezeBriefly(t, dir)
	f.process.cmd.Process.Signal(unix.SIGSTOP)
	mustWrite(t, "after the bound", writer(t, dir))
	if err := f.Thaw(); !errors.Is(err, ErrExpired) {
		t.Errorf("Thaw after the bound: %v, want ErrExpired", err)
	}
}

func TestThawByOthersIsNoticed(t *testing.T) {
	dir := mount(t, "ext4")
	f := freezeAll(t, time.Minute, dir)
	if err := ThawPath(dir); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, "after ThawPath", writer(t, dir))
	if err := f.Thaw(); !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), dir) {
		t.Errorf("Thaw after another process thawed: %v, want ErrBroken that names %s", err, dir)
	}
}

func TestAllOrNone(t *testing.T) {
	good := mount(t, "xfs")
	tmpfs := t.TempDir()
	if err := unix.Mount("tmpfs", tmpfs, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(tmpfs, 0) })
	plain := t.TempDir()
	for _, c := range []struct {
		name, second string
		want         error
	}{
		{"tmpfs", tmpfs, ErrUnsupported},
		{"plain directory", plain, ErrNotMounted},
		{"missing", filepath.Join(plain, "missing"), os.ErrNotExist},
		{"the same twice", good, ErrFrozen},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := self.Freeze(t.Context(), []string{good, c.second}, time.Minute)
			if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.second) {
				t.Errorf("error %v, want %v that names %s", err, c.want, c.second)
			}
			mustWrite(t, "the first must be thawed again", writer(t, good))
		})
	}
}

func TestFrozenAlready(t *testing.T) {
	dir := mount(t, "xfs")
	testkit.Run(t, "fsfreeze", "--freeze", dir)
	_, err := self.Freeze(t.Context(), []string{dir}, time.Minute)
	if !errors.Is(err, ErrFrozen) {
		t.Errorf("error %v, want ErrFrozen", err)
	}
	done := writer(t, dir)
	mustHang(t, done) // a foreign freeze is not ended
	if err := ThawPath(dir); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, "after ThawPath", done)
}

func TestThawPathWithNothingToDo(t *testing.T) {
	dir := mount(t, "xfs")
	for _, path := range []string{dir, t.TempDir(), filepath.Join(dir, "missing")} {
		if err := ThawPath(path); err != nil {
			t.Errorf("ThawPath(%s): %v", path, err)
		}
	}
}

// The program's text is read from a frozen file system.
func TestGuardOnTheFrozenFileSystem(t *testing.T) {
	dir := mount(t, "xfs")
	binary := filepath.Join(dir, "guard")
	if err := copySelf(binary); err != nil {
		t.Fatal(err)
	}
	g := NewGuard(binary, "freeze-guard")
	t.Cleanup(g.Close)
	f, err := g.Freeze(t.Context(), []string{dir}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Thaw(); err != nil {
		t.Fatal(err)
	}
}

// copySelf drops the pages from the cache, so that the guard has to read them.
func copySelf(to string) error {
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	if err == nil {
		err = unix.Fadvise(int(out.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	return errors.Join(err, out.Close())
}

func TestGivesUpWhenTheContextEnds(t *testing.T) {
	dir := mount(t, "xfs")
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cancel(reason)
	if _, err := self.Freeze(ctx, []string{dir}, time.Minute); !errors.Is(err, reason) {
		t.Errorf("error %v, want the context's", err)
	}
	mustWrite(t, "nothing was frozen", writer(t, dir))
}

func TestNoGuardAtAll(t *testing.T) {
	dir := mount(t, "xfs")
	for _, command := range [][]string{{"/bin/true"}, {"/bin/false"}, {"/no/such/guard"}, {"/bin/echo", "what?"}} {
		g := NewGuard(command...)
		_, err := g.Freeze(t.Context(), []string{dir}, time.Minute)
		g.Close() // a process that it starts now would hold files of the file system for a moment
		if err == nil || !strings.Contains(err.Error(), command[0]) {
			t.Errorf("with %q: error %v, want one that names the command", command, err)
		}
	}
	mustWrite(t, "nothing was frozen", writer(t, dir))
}
