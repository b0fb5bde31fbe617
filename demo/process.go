package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	logName = "cleat.log" // of all processes
	// startBound is how long a process may take to answer, stopBound how long to
	// end.
	startBound = 30 * time.Second
	stopBound  = 30 * time.Second
)

// process is a server of cleat or a double, as a child process.
type process struct {
	what     string // for users
	cmd      *exec.Cmd
	stopping atomic.Bool   // its end was asked for
	done     chan struct{} // closed when it has ended
}

// command is one of the programs, in a session of its own: a Ctrl-C reaches the
// demo alone, which then ends it in order. It ends with the demo.
func (d *demo) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(d.program(program), args...)
	cmd.Args[0] = program
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "CLEAT_") || strings.HasPrefix(e, "CSI_ENDPOINT=") // settings of other servers
	})
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGTERM}
	return cmd
}

// start starts a command, which writes to the log. The demo fails when it ends
// before it is asked to.
func (d *demo) start(what string, cmd *exec.Cmd) *process {
	log := must(os.OpenFile(d.path(logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	p := &process{what: what, cmd: cmd, done: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		check(fmt.Errorf("start the %s: %w", what, err))
	}
	d.processes = append(d.processes, p)
	go func() {
		_ = cmd.Wait() // ProcessState has the result
		close(p.done)
		if !p.stopping.Load() {
			d.fail(fmt.Errorf("the %s %w: %v", what, errDied, cmd.ProcessState))
		}
	}()
	return p
}

// kill ends the process at once, as a crash does.
func (p *process) kill() { check(p.end(unix.SIGKILL)) }

// stop ends the process in order.
func (p *process) stop() {
	check(p.end(unix.SIGTERM))
	want(p.cmd.ProcessState.Success(), "the %s did not end cleanly: %v", p.what, p.cmd.ProcessState)
}

func (p *process) end(signal os.Signal) error {
	p.stopping.Store(true)
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s to the %s: %w", signal, p.what, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(stopBound):
		return fmt.Errorf("the %s still runs %s after %s", p.what, stopBound, signal)
	}
}

// netns is a network namespace without a name. It ends with the last process and
// the last open file.
type netns struct{ file *os.File }

// newNetns makes a network namespace.
func newNetns() (n netns, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare a network namespace: %w", err)
		}
		n, err = openNetns("/proc/thread-self/ns/net")
		return err
	})
	return n, err
}

func openNetns(path string) (netns, error) {
	file, err := os.Open(path)
	return netns{file}, err
}

// netnsOf is that of a process.
func netnsOf(p *process) netns {
	return must(openNetns(fmt.Sprintf("/proc/%d/ns/net", p.cmd.Process.Pid)))
}

// do runs fn in the namespace. Sockets and processes that fn makes stay there.
func (n netns) do(fn func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter a network namespace: %w", err)
		}
		return fn()
	})
}

// startIn is start in a network namespace.
func (d *demo) startIn(n netns, what string, cmd *exec.Cmd) (p *process) {
	check(n.do(func() (err error) {
		_, err = recovered(context.Background(), func(context.Context) string { p = d.start(what, cmd); return "" })
		return err
	}))
	return p
}

// onThread runs fn on a thread of its own, whose network namespace fn may change.
// The thread is used again only if it can go back.
func onThread(fn func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := openNetns("/proc/thread-self/ns/net")
		if err == nil {
			err = fn()
			if unix.Setns(int(home.file.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			_ = home.file.Close()
		}
		result <- err
	}()
	return <-result
}
