package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"github.com/cleatproject/cleat/test/vm/wire"
)

// Command is a program to run in the guest.
type Command struct {
	Argv  []string
	Env   []string // NAME=value, added to the guest's PATH, HOME, LC_ALL and TMPDIR
	Dir   string   // empty is /
	Stdin []byte
}

// Process is a process in the guest. It ends with the guest at the latest.
type Process struct {
	PID int // in the guest

	argv   []string
	link   *link
	frames *wire.Frames
	done   chan struct{}

	stdout, stderr, log lockedBuffer

	status wire.Status // after done
	err    error       // after done: the exit status is unknown
}

// ExitError is a process that exited with a status other than 0 or by a signal.
type ExitError struct {
	Argv   []string
	Code   int            // -1 if killed by a signal
	Signal syscall.Signal // 0 if not killed by a signal
	Output string         // of both streams
}

func (e *ExitError) Error() string {
	how := fmt.Sprintf("exit status %d", e.Code)
	if e.Signal != 0 {
		how = "killed by " + e.Signal.String()
	}
	return fmt.Sprintf("%s: %s\n%s", strings.Join(e.Argv, " "), how, e.Output)
}

// Run runs a program and returns its standard output. A status other than 0 is
// an *ExitError. When ctx ends, the process group is killed.
func (g *Guest) Run(ctx context.Context, argv ...string) (string, error) {
	return g.Exec(ctx, Command{Argv: argv})
}

// Exec is Run with an environment, a working directory and standard input.
func (g *Guest) Exec(ctx context.Context, c Command) (string, error) {
	p, err := g.Start(ctx, c)
	if err != nil {
		return "", err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.link.Close()
		<-p.done
		return p.stdout.String(), fmt.Errorf("%s in guest %s: %w; output so far:\n%s", strings.Join(c.Argv, " "), g.spec.Name, ctx.Err(), p.Log())
	}
	return p.stdout.String(), p.Err()
}

// Start runs a program; ctx bounds its start only. The process ends with the
// guest, so waiting for it is optional.
func (g *Guest) Start(ctx context.Context, c Command) (*Process, error) {
	l, done, err := g.ask(ctx, wire.Request{Op: wire.OpExec, Exec: &wire.Exec{Argv: c.Argv, Env: c.Env, Dir: c.Dir}})
	if err != nil {
		return nil, fmt.Errorf("start %s in guest %s: %w", strings.Join(c.Argv, " "), g.spec.Name, err)
	}
	defer done()
	p := &Process{argv: c.Argv, link: l, frames: wire.NewFrames(l), done: make(chan struct{})}
	if err := p.started(); err != nil {
		l.Close()
		return nil, fmt.Errorf("start %s in guest %s: %w", strings.Join(c.Argv, " "), g.spec.Name, g.connectionError(ctx, err))
	}
	g.work.Go(func() {
		defer close(p.done)
		defer l.Close()
		if p.err = p.follow(); p.err != nil {
			p.err = g.connectionError(context.Background(), p.err)
		}
	})
	if p.feed(c.Stdin) != nil {
		// The process exited without reading all its input, or the connection
		// broke. follow finds out, and Err returns it.
		<-p.done
	}
	return p, nil
}

// feed writes the process's input and closes it.
func (p *Process) feed(input []byte) error {
	if _, err := p.frames.Stream(wire.Stdin).Write(input); err != nil {
		return err
	}
	return p.frames.Send(wire.StdinEnd, nil)
}

// started waits for the process id.
func (p *Process) started() error {
	f, err := wire.ReadFrame(p.link.in)
	switch {
	case err != nil:
		return err
	case f.Kind == wire.Fault:
		return agentError(f.Payload)
	case f.Kind != wire.Started:
		return fmt.Errorf("unexpected frame of kind %d from the agent", f.Kind)
	}
	var start wire.Start
	if err := json.Unmarshal(f.Payload, &start); err != nil {
		return err
	}
	p.PID = start.PID
	return nil
}

// follow reads the process's output and exit status.
func (p *Process) follow() error {
	for {
		f, err := wire.ReadFrame(p.link.in)
		if err != nil {
			return err
		}
		switch f.Kind {
		case wire.Stdout:
			p.stdout.Write(f.Payload)
			p.log.Write(f.Payload)
		case wire.Stderr:
			p.stderr.Write(f.Payload)
			p.log.Write(f.Payload)
		case wire.Exit:
			return json.Unmarshal(f.Payload, &p.status)
		case wire.Fault:
			return agentError(f.Payload)
		}
	}
}

// Done is closed when the process or its guest has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err waits for the process's end: nil is status 0, *ExitError another exit,
// any other error an unknown exit status.
func (p *Process) Err() error {
	<-p.done
	switch {
	case p.err != nil:
		return fmt.Errorf("%s: %w; output before:\n%s", strings.Join(p.argv, " "), p.err, p.Log())
	case p.status.Code != 0 || p.status.Signal != 0:
		return &ExitError{Argv: p.argv, Code: p.status.Code, Signal: syscall.Signal(p.status.Signal), Output: p.Log()}
	}
	return nil
}

// Signal sends a signal to the process group.
func (p *Process) Signal(s syscall.Signal) error {
	return p.frames.Send(wire.Signal, []byte{byte(s)})
}

// Kill sends SIGKILL to the process group and waits for the process.
func (p *Process) Kill(ctx context.Context) error {
	err := p.Signal(syscall.SIGKILL)
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), err)
	}
}

// Log is the output so far, with both streams interleaved.
func (p *Process) Log() string { return p.log.String() }

// agentError is an error that the agent reported over a working connection.
type agentError string

func (e agentError) Error() string { return string(e) }

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
