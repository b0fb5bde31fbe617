package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	logName = "cleat.log"
	// startBound is how long a process may take to answer, stopBound how long
	// to end when it is asked to.
	startBound = 30 * time.Second
	stopBound  = 30 * time.Second
	// overProvision lets thin volumes promise more than a small pool has.
	overProvision = "8"
)

// errDied is wrapped by the cause of a step that ended since a process did.
var errDied = errors.New("ended unasked")

// process is a running driver or host of plugins, a DPU plugin, an SR-IOV plugin
// or daemon, or a double of SNAP or of a node.
type process struct {
	what   string // as "driver" or "host"
	cmd    *exec.Cmd
	orders io.Writer     // what a double is told; nil for others
	wanted atomic.Bool   // its end was asked for
	done   chan struct{} // closed when it has ended
	err    error         // how, after done
}

// startDriver starts the driver on the walk's pool.
func (w *walk) startDriver() (err error) {
	w.driver, err = w.startCommand("driver", command(w.config.Program, "cleat", w.driverFlags()...), w.config.Keep)
	return err
}

// startHost starts the host of plugins.
func (w *walk) startHost() (err error) {
	w.host, err = w.startCommand("host", command(w.config.Program, "cleat", w.hostFlags()...), w.config.Keep)
	return err
}

// command is a program to be run in a session of its own, so that a Ctrl-C of the
// terminal reaches only the demo, which then stops it in good order. It ends with
// the demo.
func command(program, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Args[0] = name
	cmd.Env = withoutSettings(os.Environ())
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGTERM}
	return cmd
}

// startCommand starts one that writes to the log. One that stays outlives the
// demo.
func (w *walk) startCommand(what string, cmd *exec.Cmd, stays bool) (*process, error) {
	log, err := os.OpenFile(w.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{what: what, cmd: cmd, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if stays {
		p.cmd.SysProcAttr.Pdeathsig = 0
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the %s: %w", what, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
		if end := w.died.Load(); end != nil {
			(*end)(p.death())
		}
	}()
	w.marked.note(what, p.pid())
	return p, w.marked.write(w.dir)
}

// runCleat runs a command of cleat to its end and returns what it printed, also
// when it failed.
func (w *walk) runCleat(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, w.config.Program, args...)
	as := command(w.config.Program, "cleat")
	cmd.Args[0], cmd.Env, cmd.SysProcAttr = as.Args[0], as.Env, as.SysProcAttr
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(failed.Stderr))
	}
	if err != nil {
		return out, fmt.Errorf("cleat %s: %w", strings.Join(args[:min(2, len(args))], " "), err)
	}
	return out, nil
}

func (w *walk) driverFlags() []string {
	return []string{
		"csi", "--endpoint", w.endpoint(), "--pool", w.pool(), "--pool-image", fmt.Sprint(w.config.Size),
		"--state-dir", filepath.Join(w.dir, "state"), "--overprovision-ratio", overProvision,
		"--driver-name", driverName, "--registration-dir", w.plugins(), "--node-id", "demo", "--log-format", "text",
	}
}

func (w *walk) hostFlags() []string {
	return []string{"host", "--plugins-dir", w.plugins(), "--socket", w.hostEndpoint(), "--output", "none", "--log-format", "text"}
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

// dial connects to the driver at a socket and waits until it is ready.
func (w *walk) dial(ctx context.Context, endpoint string) (*client.Driver, error) {
	return client.Dial(ctx, client.Config{Endpoint: endpoint, StateDir: w.clientState(), Patience: startBound})
}

// pid is 0 when there is no such process any more.
func (p *process) pid() int {
	if p == nil || !p.running() {
		return 0
	}
	return p.cmd.Process.Pid
}

// death is not nil when the process has ended and nobody asked it to.
func (p *process) death() error {
	if p == nil || p.running() || p.wanted.Load() {
		return nil
	}
	return fmt.Errorf("the %s %w: %v", p.what, errDied, p.cmd.ProcessState)
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
		return fmt.Errorf("the %s did not end cleanly: %w", p.what, p.err)
	}
	return nil
}

func (p *process) end(signal os.Signal) error {
	p.wanted.Store(true)
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s to the %s: %w", signal, p.what, err)
	}
	timer := time.NewTimer(stopBound)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("the %s still runs %s after %s", p.what, stopBound, signal)
	}
}
