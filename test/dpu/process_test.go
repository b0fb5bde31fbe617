package dpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/test/testkit"
)

// patience is the timeout of every expected event.
const patience = testkit.Timeout

// process is a running cleat dpu.
type process struct {
	*testkit.Process
	*client.Client // nil until it serves

	socket  string
	logFile string
}

// launch starts a program as cleat dpu and does not wait until it serves.
func launch(program, socket, logFile string, env []string, flags ...string) (*process, error) {
	// A pipe would keep Wait from returning while a helper process holds it.
	log, err := os.OpenFile(logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(program, append([]string{"dpu", "--plugin-socket", socket}, flags...)...)
	// The race detector would sleep a second at every exit.
	cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), env...)
	cmd.Stdout, cmd.Stderr = log, log
	p := &process{socket: socket, logFile: logFile}
	p.Process, err = testkit.Launch(cmd)
	return p, err
}

// serves waits until the process accepts calls.
func (p *process) serves(ctx context.Context) error {
	return p.until(ctx, "accepts calls", p.answers)
}

func (p *process) answers(ctx context.Context) (err error) {
	if p.Client == nil {
		p.Client, err = client.Dial(ctx, p.socket)
	}
	if err == nil {
		_, err = p.Info(ctx)
	}
	return err
}

// ready waits until the process reports ready.
func (p *process) ready(ctx context.Context) error {
	return p.until(ctx, "is ready", func(ctx context.Context) error {
		if err := p.answers(ctx); err != nil {
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
	if err := p.Until(func() error { return so(ctx) }); err != nil {
		return fmt.Errorf("cleat dpu never %s: %w\n%s", what, err, p.log())
	}
	return nil
}

// stop ends the process with SIGTERM; it must exit with 0.
func (p *process) stop() error {
	defer p.hangUp()
	return p.Stop()
}

// kill ends the process with SIGKILL.
func (p *process) kill() {
	p.Kill()
	p.hangUp()
}

func (p *process) hangUp() {
	if p.Client != nil {
		_ = p.Close()
	}
}

// killed waits for a process that is expected to die by SIGKILL.
func (p *process) killed() error {
	err := p.Wait()
	p.hangUp()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		return fmt.Errorf("the process ended with %v, not by SIGKILL", err)
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
