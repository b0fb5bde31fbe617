package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a program that a test runs. It does not outlive the test process,
// even if that is killed.
type Process struct {
	Log *Log // stdout and stderr, unless the command sends them elsewhere

	cmd     *exec.Cmd
	done    chan struct{}
	err     error       // after done
	stopped atomic.Bool // Stop or Kill was called
}

// Start starts a program in the network namespace of the caller. When the test
// ends, the program is killed if it still runs, and its log is printed if the
// test failed.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := Value(Launch(cmd))(t)
	t.Cleanup(func() {
		p.Kill()
		p.Log.show(t, strings.Join(cmd.Args, " "))
	})
	return p
}

// Launch is Start for callers that stop the process themselves.
func Launch(cmd *exec.Cmd) (*Process, error) {
	p := &Process{Log: &Log{}, cmd: cmd, done: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.Log
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.Log
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	if cmd.SysProcAttr.Pdeathsig == 0 {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
	netns, err := os.Open(threadNetNS)
	if err != nil {
		return nil, err
	}
	defer netns.Close()
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the starting thread, not the process,
		// ends (prctl(2)): this thread waits for the program.
		err := inNetNS(netns, func() error {
			err := cmd.Start()
			started <- err
			if err == nil {
				p.err = cmd.Wait()
				close(p.done)
			}
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Wait waits until the process has ended, and returns what exec.Cmd.Wait does.
// It kills a process that still runs after Timeout.
func (p *Process) Wait() error {
	select {
	case <-p.done:
		return p.err
	case <-time.After(Timeout):
		p.Kill()
		return fmt.Errorf("%s still ran after %s", p.cmd.Path, Timeout)
	}
}

// Stop ends the process with SIGTERM; it must exit with 0. It returns nil if
// Stop or Kill has ended the process before.
func (p *Process) Stop() error {
	if p.stopped.Swap(true) {
		<-p.done
		return nil
	}
	if err := p.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := p.Wait(); err != nil {
		return fmt.Errorf("stop %s: %w", p.cmd.Path, err)
	}
	return nil
}

// Kill ends the process with SIGKILL and waits for its end. It is idempotent.
func (p *Process) Kill() {
	p.stopped.Store(true)
	_ = p.cmd.Process.Kill() // it might have ended
	<-p.done
}

// WaitFor waits until the log contains a text, and returns the line. It fails
// the test if the process ends before.
func (p *Process) WaitFor(t testing.TB, text string) (line string) {
	t.Helper()
	line, err := p.Log.waitFor(p.done, text)
	Must(t, err)
	return line
}

// Until polls check until it returns nil. It returns the last error as soon as
// the process ends.
func (p *Process) Until(check func() error) error {
	err := Poll(Timeout, p.done, check)
	if err == nil {
		return nil
	}
	select {
	case <-p.done:
		return fmt.Errorf("%s ended (%v) before it was ready: %w\n%s", p.cmd.Path, p.err, err, p.Log)
	default:
		return fmt.Errorf("%s not ready within %s: %w\n%s", p.cmd.Path, Timeout, err, p.Log)
	}
}

// Run runs a tool that must succeed, and returns its output.
func Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && filepath.Base(name) == name { // root's PATH can lack it
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	if err != nil {
		t.Fatalf("%s is needed for this test and is not installed: %v", name, err)
	}
	out, err := exec.CommandContext(Context(t), path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// OnThread runs a function on an operating system thread that ends with it, for
// changes that a thread cannot undo. It is never the main thread, which cannot
// end.
func OnThread(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			OnThread(do) // on another thread, as this one is locked
			runtime.UnlockOSThread()
			return
		}
		do()
	}()
	<-done
}
