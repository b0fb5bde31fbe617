package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/csi/client"
)

const (
	logName = "driver.log"
	// startBound is how long a driver may take to answer, stopBound how long
	// to end when it is asked to.
	startBound = 30 * time.Second
	stopBound  = 30 * time.Second
	// overProvision lets thin volumes promise more than a small pool has.
	overProvision = "8"
)

// errDied is wrapped by the cause of a step that ended since the driver did.
var errDied = errors.New("the driver ended unasked")

// process is a running driver.
type process struct {
	cmd    *exec.Cmd
	wanted atomic.Bool   // its end was asked for
	done   chan struct{} // closed when it has ended
	err    error         // how, after done
}

// startDriver starts the driver on the walk's pool. It is in a session of its
// own, so that a Ctrl-C of the terminal reaches only the demo, which then stops
// it in good order.
func (w *walk) startDriver() (*process, error) {
	log, err := os.OpenFile(w.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{done: make(chan struct{})}
	p.cmd = exec.Command(w.config.Program, w.driverFlags()...)
	p.cmd.Args[0] = "cleat"
	p.cmd.Env = withoutSettings(os.Environ())
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if !w.config.Keep {
		p.cmd.SysProcAttr.Pdeathsig = unix.SIGTERM
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the driver: %w", err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
		if end := w.died.Load(); end != nil {
			(*end)(p.death())
		}
	}()
	return p, w.mark(p.pid())
}

func (w *walk) driverFlags() []string {
	return []string{
		"csi", "--endpoint", w.endpoint(), "--pool", w.pool(), "--pool-image", fmt.Sprint(w.config.Size),
		"--state-dir", filepath.Join(w.dir, "state"), "--overprovision-ratio", overProvision,
		"--node-id", "demo", "--log-format", "text",
	}
}

// withoutSettings drops what would set up a driver otherwise than the demo
// wants.
func withoutSettings(environment []string) []string {
	var out []string
	for _, e := range environment {
		if !strings.HasPrefix(e, "CLEAT_") && !strings.HasPrefix(e, "CSI_ENDPOINT=") {
			out = append(out, e)
		}
	}
	return out
}

// dial connects to the driver and waits until it is ready.
func (w *walk) dial(ctx context.Context) (*client.Driver, error) {
	return client.Dial(ctx, client.Config{Endpoint: w.endpoint(), StateDir: w.clientState(), Patience: startBound})
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// death is not nil when the process has ended and nobody asked it to.
func (p *process) death() error {
	if p == nil || p.running() || p.wanted.Load() {
		return nil
	}
	return fmt.Errorf("%w: %v", errDied, p.cmd.ProcessState)
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill ends the process at once, as a crash would.
func (p *process) kill() error { return p.end(unix.SIGKILL) }

// stop asks the process to end and reports how it did.
func (p *process) stop() error {
	if err := p.end(unix.SIGTERM); err != nil {
		return err
	}
	if p.err != nil {
		return fmt.Errorf("the driver did not end cleanly: %w", p.err)
	}
	return nil
}

func (p *process) end(signal os.Signal) error {
	p.wanted.Store(true)
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s to the driver: %w", signal, err)
	}
	timer := time.NewTimer(stopBound)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("the driver still runs %s after %s", stopBound, signal)
	}
}
