package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/vm/wire"
)

// exec runs a process for as long as the host keeps the connection.
func (s *session) exec(e wire.Exec) {
	frames := wire.NewFrames(s)
	begun := make(chan struct{})
	fail := func(err error) {
		text := err.Error()
		_ = frames.Send(wire.Fault, []byte(text[:min(len(text), wire.MaxFrame)]))
	}
	cmd := command(e, frames, begun)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		fail(err)
		return
	}
	if err := cmd.Start(); err != nil {
		fail(fmt.Errorf("start %s: %w", e.Argv[0], err))
		return
	}
	s.send(frames, wire.Started, wire.Start{PID: cmd.Process.Pid})
	close(begun)
	ended := make(chan struct{})
	obeyed := make(chan struct{})
	go func() { // ends when the host closes the connection
		defer close(obeyed)
		defer stdin.Close()
		s.obey(stdin, cmd.Process.Pid)
		select {
		case <-ended:
		default: // the host has gone: the group ends with the connection
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		}
	}()
	status, err := outcome(cmd, cmd.Wait())
	close(ended)
	if err != nil {
		fail(err)
	} else {
		s.send(frames, wire.Exit, status)
	}
	// The host closes when it has that. To close before, with something of the
	// host's unread, would reset the connection under the answer.
	<-obeyed
}

// command is the process to start. It is heard once begun is closed: a quick
// one would be heard before the host knows that it runs.
func command(e wire.Exec, frames *wire.Frames, begun <-chan struct{}) *exec.Cmd {
	cmd := exec.Command(e.Argv[0], e.Argv[1:]...)
	cmd.Env = append(cmd.Environ(), e.Env...)
	cmd.Dir = "/"
	if e.Dir != "" {
		cmd.Dir = e.Dir
	}
	cmd.Stdout, cmd.Stderr = gate{begun, frames.Stream(wire.Stdout)}, gate{begun, frames.Stream(wire.Stderr)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A daemon that the process leaves behind may hold its output open.
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// gate lets writes through once it is open.
type gate struct {
	open <-chan struct{}
	to   io.Writer
}

func (g gate) Write(p []byte) (int, error) {
	<-g.open
	return g.to.Write(p)
}

// obey does what the host says about a process until the connection ends.
func (s *session) obey(stdin io.WriteCloser, group int) {
	for {
		f, err := wire.ReadFrame(s.in)
		if err != nil {
			return
		}
		switch f.Kind {
		case wire.Stdin:
			_, _ = stdin.Write(f.Payload) // a process need not read all its input
		case wire.StdinEnd:
			stdin.Close()
		case wire.Signal:
			if len(f.Payload) == 1 {
				_ = unix.Kill(-group, unix.Signal(f.Payload[0]))
			}
		}
	}
}

func outcome(cmd *exec.Cmd, err error) (wire.Status, error) {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return wire.Status{}, err
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return wire.Status{Code: -1, Signal: int(status.Signal())}, nil
	}
	return wire.Status{Code: status.ExitStatus()}, nil
}

func (s *session) send(frames *wire.Frames, kind wire.Kind, v any) {
	text, err := json.Marshal(v)
	if err == nil {
		err = frames.Send(kind, text)
	}
	if err != nil {
		fmt.Println("agent: answer:", err)
	}
}

// processes lists what runs in the guest besides the kernel's own threads and
// the agent.
func processes() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []int
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil || pid == 1 || pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has just ended
		}
		// pid (name) state parent ...; a name may hold anything
		rest := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		const kthreadd = "2"
		if len(rest) < 2 || rest[0] == "Z" || rest[1] == kthreadd || e.Name() == kthreadd {
			continue
		}
		all = append(all, pid)
	}
	return all, nil
}
