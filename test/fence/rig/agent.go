package rig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit/mountns"
)

// Agent is the first process of a machine: it starts processes for the test and
// reaps orphans. It ends when the test's end of its socket is closed, and the
// kernel then kills everything else on the machine.
type Agent struct {
	mu       sync.Mutex
	ended    map[int]chan struct{} // closed when the process has ended
	statuses map[int]syscall.WaitStatus
	started  chan struct{} // signals the reaper that there is a child
}

// runAgent is the main function of the process; its socket is descriptor 3.
func runAgent() int {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""), // unmounts outside are propagated
		mountns.DropCopies(),
		unix.Mount("proc", "/proc", "proc", 0, ""))
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine:", err)
		return 1
	}
	conn, err := net.FileConn(os.NewFile(3, "control"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine:", err)
		return 1
	}
	unix.CloseOnExec(3)
	a := &Agent{ended: map[int]chan struct{}{}, statuses: map[int]syscall.WaitStatus{}, started: make(chan struct{}, 1)}
	go a.reap()
	s := rpc.NewServer()
	if err := s.Register(a); err != nil {
		fmt.Fprintln(os.Stderr, "machine:", err)
		return 1
	}
	gone := make(chan struct{})
	go s.ServeConn(&control{Conn: conn, gone: gone})
	<-gone // ServeConn itself would wait for the answers to Wait
	return 0
}

// control detects the end of the test.
type control struct {
	net.Conn
	once sync.Once
	gone chan struct{}
}

func (c *control) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.once.Do(func() { close(c.gone) })
	}
	return n, err
}

// reap waits for every child, its own and the orphans.
func (a *Agent) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.ECHILD):
			<-a.started
		case err == nil:
			end := a.end(pid)
			a.mu.Lock()
			a.statuses[pid] = status
			a.mu.Unlock()
			close(end)
		}
	}
}

func (a *Agent) end(pid int) chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended[pid] == nil {
		a.ended[pid] = make(chan struct{})
	}
	return a.ended[pid]
}

// Command is a process to start.
type Command struct {
	Args []string
	Env  []string // in addition to that of the test
	Log  string   // the file of stdout and stderr
}

// Start starts a process and returns its id in the machine.
func (a *Agent) Start(c Command, pid *int) error {
	log, err := os.OpenFile(c.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	*pid, err = syscall.ForkExec(c.Args[0], c.Args, &syscall.ProcAttr{
		Env:   append(os.Environ(), c.Env...),
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", c.Args[0], err)
	}
	select {
	case a.started <- struct{}{}:
	default:
	}
	return nil
}

// Order is a signal for a process.
type Order struct {
	PID    int
	Signal syscall.Signal
}

// Signal sends a signal.
func (a *Agent) Signal(o Order, _ *struct{}) error { return syscall.Kill(o.PID, o.Signal) }

// Wait returns when a child of Start, or an orphan, has ended.
func (a *Agent) Wait(pid int, status *syscall.WaitStatus) error {
	<-a.end(pid)
	a.mu.Lock()
	defer a.mu.Unlock()
	*status = a.statuses[pid]
	return nil
}

// Listed is a process of a machine.
type Listed struct {
	PID  int
	Args []string
}

// List returns all processes but the agent.
func (a *Agent) List(_ struct{}, all *[]Listed) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 1 {
			continue
		}
		if args := arguments(pid); args != nil {
			*all = append(*all, Listed{pid, args})
		}
	}
	return nil
}

// arguments returns those of a process; nil: it has ended. It waits for them:
// ForkExec returns when exec closes the descriptors, before the new arguments
// are visible.
func arguments(pid int) []string {
	for {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			return nil
		}
		if len(line) > 0 {
			return strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		after := stat[bytes.LastIndexByte(stat, ')')+1:] // proc_pid_stat(5): the name can contain any byte
		if err != nil || len(after) < 2 || after[1] == 'Z' || after[1] == 'X' {
			return nil
		}
		runtime.Gosched()
	}
}

// runGuardian removes a directory when the test has ended in any way.
func runGuardian(dir string) int {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := os.RemoveAll(dir); err != nil {
		return 1
	}
	return 0
}
