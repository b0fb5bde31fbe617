package cluster

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Process is a program of the cluster outside of pods.
type Process struct {
	Name string
	Log  string // path of its output
	cmd  *exec.Cmd
	done chan struct{}
	err  error // result of Wait; valid after done
}

// Start runs a program until Stop or the end of the cluster. Its output is
// appended to NAME.log below the cluster's directory. Paths are those of the
// cluster's mount namespace.
func (c *Cluster) Start(name, program string, env []string, args ...string) (*Process, error) {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return c.start(name, cmd)
}

func (c *Cluster) start(name string, cmd *exec.Cmd) (*Process, error) {
	p := &Process{Name: name, Log: filepath.Join(c.Dir, "logs", name+".log"), cmd: cmd, done: make(chan struct{})}
	out, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes = append(c.processes, p)
	return p, nil
}

// Process returns the process last started with a name, such as "apiserver", or
// nil.
func (c *Cluster) Process(name string) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range slices.Backward(c.processes) {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// PID returns the id of the process, which can have ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill sends SIGKILL and waits for the end of the process.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// Stop sends SIGTERM. After a minute it kills the process and returns an error.
func (p *Process) Stop() error {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(time.Minute):
		p.Kill()
		return fmt.Errorf("%s did not end within a minute of SIGTERM", p.Name)
	}
}

// ended returns an error with the end of the log if the process has ended.
func (p *Process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended (%v): %s", p.Name, p.err, tail(p.Log, 1500))
	default:
		return nil
	}
}

// tail returns the last n bytes of a file, or the error text.
func tail(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > n {
		f.Seek(-n, io.SeekEnd)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
