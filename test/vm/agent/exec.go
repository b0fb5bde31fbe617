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

// exec runs a process until it exits or the host closes the connection.
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
	disconnected := make(chan struct{})
	go func() { // runs until the host closes the connection
		defer close(disconnected)
		defer stdin.Close()
		s.handleFrames(stdin, cmd.Process.Pid)
		select {
		case <-ended:
		default: // the host closed the connection: kill the process group
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
	// Wait for the host to close first: closing with unread input would reset
	// the connection and lose the exit status.
	<-disconnected
}

// command builds the process. Output waits for begun, so that no output frame
// precedes the Started frame.
func command(e wire.Exec, frames *wire.Frames, begun <-chan struct{}) *exec.Cmd {
	cmd := exec.Command(e.Argv[0], e.Argv[1:]...)
	cmd.Env = append(cmd.Environ(), e.Env...)
	cmd.Dir = "/"
	if e.Dir != "" {
		cmd.Dir = e.Dir
	}
	cmd.Stdout, cmd.Stderr = gate{begun, frames.Stream(wire.Stdout)}, gate{begun, frames.Stream(wire.Stderr)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Daemons started by the process can keep its output pipes open.
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// gate blocks writes until open is closed.
type gate struct {
	open <-chan struct{}
	to   io.Writer
}

func (g gate) Write(p []byte) (int, error) {
	<-g.open
	return g.to.Write(p)
}

// handleFrames handles stdin and signal frames until the connection ends.
func (s *session) handleFrames(stdin io.WriteCloser, group int) {
	for {
		f, err := wire.ReadFrame(s.in)
		if err != nil {
			return
		}
		switch f.Kind {
		case wire.Stdin:
			_, _ = stdin.Write(f.Payload) // fails if the process does not read all its input
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

// processes lists the guest's processes except kernel threads and the agent.
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
			continue // the process has just exited
		}
		// Format: pid (name) state parent ...; the name can contain any
		// characters.
		rest := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		const kthreadd = "2"
		if len(rest) < 2 || rest[0] == "Z" || rest[1] == kthreadd || e.Name() == kthreadd {
			continue
		}
		all = append(all, pid)
	}
	return all, nil
}
