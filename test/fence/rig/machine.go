package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

// Machine is a host with its own PID namespace: it sees no other processes, and
// its own end with it.
type Machine struct {
	*Namespace
	Dir string // survives a reboot

	t     testing.TB
	cmd   *exec.Cmd
	rpc   *rpc.Client
	count int
}

// NewMachine boots a machine that ends with the test.
func NewMachine(t testing.TB) *Machine {
	t.Helper()
	m := &Machine{Dir: Dir(t), t: t}
	if err := m.boot(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.halt)
	return m
}

// Reboot ends every process of the machine and its network, and boots it with
// the same files; it has to be attached to the network again.
func (m *Machine) Reboot() {
	m.t.Helper()
	m.halt()
	if err := m.boot(); err != nil {
		m.t.Fatal(err)
	}
}

func (m *Machine) boot() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return err
	}
	argv, env, err := As("agent")
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	log, err := os.OpenFile(filepath.Join(m.Dir, "machine.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer log.Close()
	m.cmd = exec.Command(argv[0], argv[1:]...)
	m.cmd.Env, m.cmd.ExtraFiles = append(os.Environ(), env...), []*os.File{theirs}
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	if err := m.cmd.Start(); err != nil {
		return errors.Join(err, conn.Close())
	}
	m.rpc = rpc.NewClient(conn)
	if err := m.rpc.Call("Agent.List", struct{}{}, &[]Listed{}); err != nil {
		said, _ := os.ReadFile(log.Name())
		return fmt.Errorf("the machine did not boot: %w: %s", err, said)
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", m.cmd.Process.Pid))
	if err != nil {
		return err
	}
	m.Namespace = &Namespace{testkit.NetNS{File: file}}
	_, err = m.Namespace.Run(context.Background(), "ip", "link", "set", "lo", "up")
	return err
}

// halt ends everything on the machine and waits for it.
func (m *Machine) halt() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
	_ = m.rpc.Close()
	_ = m.Namespace.File.Close()
}

// Process is a process on a machine.
type Process struct {
	PID     int    // in the machine
	LogFile string // of stdout and stderr

	machine *Machine
	done    chan struct{}
	status  syscall.WaitStatus
	err     error
}

// Start starts a program; its log is m.Dir/name-<n>.log.
func (m *Machine) Start(name string, env []string, args ...string) *Process {
	m.t.Helper()
	p, err := m.Launch(name, env, args...)
	if err != nil {
		m.t.Fatal(err)
	}
	return p
}

// Launch is Start for callers on other goroutines than the test's.
func (m *Machine) Launch(name string, env []string, args ...string) (*Process, error) {
	m.count++
	p := &Process{machine: m, LogFile: filepath.Join(m.Dir, fmt.Sprintf("%s-%d.log", name, m.count)), done: make(chan struct{})}
	if !strings.Contains(args[0], "/") {
		path, err := exec.LookPath(args[0])
		if err != nil {
			path = "/usr/sbin/" + args[0]
		}
		args = append([]string{path}, args[1:]...)
	}
	if err := m.rpc.Call("Agent.Start", Command{Args: args, Env: env, Log: p.LogFile}, &p.PID); err != nil {
		return nil, err
	}
	wait := m.rpc.Go("Agent.Wait", p.PID, &p.status, nil)
	go func() {
		p.err = (<-wait.Done).Error
		close(p.done)
	}()
	return p, nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Log returns the output so far.
func (p *Process) Log() string {
	data, err := os.ReadFile(p.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.machine.Signal(p.PID, s) }

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() error {
	if err := p.Signal(unix.SIGKILL); err != nil && !strings.Contains(err.Error(), unix.ESRCH.Error()) {
		return err
	}
	_, err := p.Wait(30 * time.Second)
	return err
}

// Stop ends the process with SIGTERM; it must exit with 0.
func (p *Process) Stop() error {
	if err := p.Signal(unix.SIGTERM); err != nil {
		return err
	}
	status, err := p.Wait(60 * time.Second)
	if err == nil && (!status.Exited() || status.ExitStatus() != 0) {
		err = fmt.Errorf("process %d ended with %#x after SIGTERM", p.PID, status)
	}
	return err
}

// Wait waits until the process has ended.
func (p *Process) Wait(most time.Duration) (syscall.WaitStatus, error) {
	select {
	case <-p.done:
		return p.status, p.err
	case <-time.After(most):
		return 0, fmt.Errorf("process %d still runs after %s", p.PID, most)
	}
}

// Signal sends a signal to any process of the machine.
func (m *Machine) Signal(pid int, s syscall.Signal) error {
	return m.rpc.Call("Agent.Signal", Order{pid, s}, &struct{}{})
}

// Find lists the processes whose arguments contain a word.
func (m *Machine) Find(word string) ([]Listed, error) {
	var all []Listed
	if err := m.rpc.Call("Agent.List", struct{}{}, &all); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(l Listed) bool { return !slices.Contains(l.Args, word) }), nil
}

// KillAndWait kills a process, which need not be a child of the machine's first
// one, and waits until it is gone.
func (m *Machine) KillAndWait(ctx context.Context, pid int) error {
	if err := m.Signal(pid, unix.SIGKILL); err != nil {
		return err
	}
	return testkit.Poll(testkit.Timeout, ctx.Done(), func() error {
		if m.Signal(pid, 0) == nil {
			return fmt.Errorf("process %d is still there", pid)
		}
		return nil
	})
}
