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
	// startTimeout bounds the time until a process answers, stopTimeout the
	// time until it has ended.
	startTimeout = 30 * time.Second
	stopTimeout  = 30 * time.Second
)

// process is a server of cleat or a double, as a child process.
type process struct {
	what     string // printed
	cmd      *exec.Cmd
	stopping atomic.Bool   // ending is expected
	done     chan struct{} // closed when the process has ended
}

// command returns a command in a session of its own, so that Ctrl-C reaches
// only the demo, which stops it in order. The process ends with the demo.
func (d *demo) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(d.program(program), args...)
	cmd.Args[0] = program
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "CLEAT_") || strings.HasPrefix(e, "CSI_ENDPOINT=") // settings of other servers
	})
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGTERM}
	return cmd
}

// start starts a command that writes to the log. The demo fails if the process
// ends unexpectedly.
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
		_ = cmd.Wait() // the result is in ProcessState
		close(p.done)
		if !p.stopping.Load() {
			d.fail(fmt.Errorf("the %s %w: %v", what, errDied, cmd.ProcessState))
		}
	}()
	return p
}

// kill sends SIGKILL.
func (p *process) kill() { check(p.end(unix.SIGKILL)) }

// stop sends SIGTERM and checks the exit code.
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
	case <-time.After(stopTimeout):
		return fmt.Errorf("the %s still runs %s after %s", p.what, stopTimeout, signal)
	}
}

// netns is an unnamed network namespace. It ends with its last process and open
// file.
type netns struct{ file *os.File }

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

// netnsOf opens the network namespace of a process.
func netnsOf(p *process) netns {
	return must(openNetns(fmt.Sprintf("/proc/%d/ns/net", p.cmd.Process.Pid)))
}

// do runs fn in the namespace. Sockets and processes created by fn stay there.
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

// onThread runs fn on a locked thread, whose network namespace fn can change.
// The thread is reused only if its namespace could be restored.
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
