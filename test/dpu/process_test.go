package dpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/dpu/client"
)

// patience is the timeout of every expected event; machines are slow and
// shared.
const patience = 60 * time.Second

// process is a running cleat dpu.
type process struct {
	*client.Client // nil until it serves

	socket  string
	logFile string
	cmd     *exec.Cmd
	done    chan struct{} // closed when it has ended
	err     error
}

// launch starts a program as cleat dpu and does not wait until it serves.
func launch(program, socket, logFile string, env []string, flags ...string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{socket: socket, logFile: logFile, done: make(chan struct{})}
	p.cmd = exec.Command(program, append([]string{"dpu", "--plugin-socket", socket}, flags...)...)
	// The race detector would sleep a second at every exit.
	p.cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// serves waits until the process accepts calls.
func (p *process) serves(ctx context.Context) error {
	return p.until(ctx, "accepts calls", func(ctx context.Context) error {
		var err error
		if p.Client == nil {
			p.Client, err = client.Dial(ctx, p.socket)
		}
		if err == nil {
			_, err = p.Info(ctx)
		}
		return err
	})
}

// ready waits until the process reports ready.
func (p *process) ready(ctx context.Context) error {
	return p.until(ctx, "is ready", func(ctx context.Context) error {
		if err := p.serves(ctx); err != nil {
			return err
		}
		ready, _, err := p.Probe(ctx)
		if err == nil && !ready {
			err = errors.New("Probe reports not ready")
		}
		return err
	})
}

// until polls until so returns nil or the process ends.
func (p *process) until(ctx context.Context, what string, so func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for {
		err := so(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("cleat dpu ended (%w) before it %s: %w\n%s", p.err, what, err, p.log())
		case <-ctx.Done():
			return fmt.Errorf("cleat dpu never %s: %w\n%s", what, err, p.log())
		case <-tick.C:
		}
	}
}

// stop ends the process with SIGTERM; it must exit with 0.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(patience):
		return errors.Join(fmt.Errorf("cleat dpu still runs %s after SIGTERM", patience), p.kill())
	}
	p.hangUp()
	return p.err
}

// kill ends the process with SIGKILL.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	<-p.done
	p.hangUp()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

func (p *process) hangUp() {
	if p.Client != nil {
		_ = p.Close()
	}
}

// killed waits for a process that is expected to die by SIGKILL.
func (p *process) killed() error {
	select {
	case <-p.done:
	case <-time.After(patience):
		return fmt.Errorf("the process still runs after %s", patience)
	}
	p.hangUp()
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != unix.SIGKILL {
		return fmt.Errorf("the process ended with %v, not by SIGKILL", p.cmd.ProcessState)
	}
	return nil
}

// log returns the output of all processes with this log file.
func (p *process) log() string {
	text, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// wrong returns an error if the log contains a race or a panic.
func (p *process) wrong() error {
	log := p.log()
	for _, word := range []string{"DATA RACE", "panicked", "goroutine "} {
		if strings.Contains(log, word) {
			return fmt.Errorf("the log holds %q:\n%s", word, log)
		}
	}
	return nil
}
