package freeze

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func reserve(t *testing.T, g *Guard) *process {
	t.Helper()
	if err := g.Prepare(); err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reserve
}

func newGuard(t *testing.T) *Guard {
	t.Helper()
	g := NewGuard(self.command...)
	t.Cleanup(g.Close)
	return g
}

func TestFreezeUsesTheReserve(t *testing.T) {
	dir, g := mount(t, "ext4"), newGuard(t)
	first := reserve(t, g)
	f, err := g.Freeze(t.Context(), []string{dir}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if f.process != first {
		t.Error("a process was started beside the one in reserve")
	}
	if err := f.Thaw(); err != nil {
		t.Fatal(err)
	}
	if reserve(t, g) == first {
		t.Error("a process that has frozen is in reserve again")
	}
}

// such as by the OOM killer
func TestReserveDies(t *testing.T) {
	dir, g := mount(t, "ext4"), newGuard(t)
	p := reserve(t, g)
	if err := p.cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	f, err := g.Freeze(t.Context(), []string{dir}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Thaw(); err != nil {
		t.Fatal(err)
	}
}

func TestReserveEndsWithItsParent(t *testing.T) {
	g := newGuard(t)
	p, err := g.start()
	if err != nil {
		t.Fatal(err)
	}
	p.control.Close() // as the kernel does when the parent dies
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the guard ended with %v", err)
	}
	p.reports.Close()
}

func TestClose(t *testing.T) {
	g := newGuard(t)
	p := reserve(t, g)
	g.Close()
	if err := p.cmd.Process.Signal(unix.Signal(0)); err == nil {
		t.Error("the process in reserve outlives Close")
	}
	if reserve(t, g) != nil {
		t.Error("a closed Guard has a process in reserve")
	}
}

func TestRequestWithManyFiles(t *testing.T) {
	ours, theirs, err := controlPair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	control, err := controlOf(theirs)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	var roots []*os.File
	for range 2*filesPerMessage + 7 {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		roots = append(roots, f)
	}
	sent := make(chan error, 1)
	go func() {
		sent <- (&process{control: ours}).send(request{members: len(roots), bound: time.Second}, roots)
	}()
	o, received, err := receiveRequest(control)
	defer closeAll(received)
	if err != nil || o.bound != time.Second || len(received) != len(roots) {
		t.Fatalf("received %+v with %d files: %v", o, len(received), err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	for i, f := range received {
		got, _ := f.Stat()
		want, _ := roots[i].Stat()
		if !os.SameFile(got, want) {
			t.Fatalf("file %d is another one", i)
		}
	}
}
