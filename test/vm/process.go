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

// Process is a process of the guest. It ends with the guest at the latest.
type Process struct {
	PID int // in the guest

	argv   []string
	link   *link
	frames *wire.Frames
	done   chan struct{}

	stdout, stderr, log lockedBuffer

	status wire.Status // after done
	err    error       // after done: its end is not known
}

// ExitError is a process that ended otherwise than with status 0.
type ExitError struct {
	Argv   []string
	Code   int            // -1 when a signal ended it
	Signal syscall.Signal // 0 when it ended by itself
	Output string         // what it said on both streams
}

func (e *ExitError) Error() string {
	how := fmt.Sprintf("exit status %d", e.Code)
	if e.Signal != 0 {
		how = "ended by " + e.Signal.String()
	}
	return fmt.Sprintf("%s: %s\n%s", strings.Join(e.Argv, " "), how, e.Output)
}

// Run runs a program to its end and returns what it wrote to its standard
// output. A status other than 0 is an *ExitError. When ctx ends the process
// group is killed.
func (g *Guest) Run(ctx context.Context, argv ...string) (string, error) {
	return g.Exec(ctx, Command{Argv: argv})
}

// Exec is Run with an environment, a directory and input.
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
		return p.stdout.String(), fmt.Errorf("%s in guest %s: %w; it said so far:\n%s", strings.Join(c.Argv, " "), g.spec.Name, ctx.Err(), p.Log())
	}
	return p.stdout.String(), p.Err()
}

// Start runs a program; ctx bounds its start only. The caller need not wait
// for it: it ends with the guest.
func (g *Guest) Start(ctx context.Context, c Command) (*Process, error) {
	l, done, err := g.ask(ctx, wire.Request{Op: wire.OpExec, Exec: &wire.Exec{Argv: c.Argv, Env: c.Env, Dir: c.Dir}})
	if err != nil {
		return nil, fmt.Errorf("start %s in guest %s: %w", strings.Join(c.Argv, " "), g.spec.Name, err)
	}
	defer done()
	p := &Process{argv: c.Argv, link: l, frames: wire.NewFrames(l), done: make(chan struct{})}
	if err := p.started(); err != nil {
		l.Close()
		return nil, fmt.Errorf("start %s in guest %s: %w", strings.Join(c.Argv, " "), g.spec.Name, g.explain(ctx, err))
	}
	g.work.Go(func() {
		defer close(p.done)
		defer l.Close()
		if p.err = p.follow(); p.err != nil {
			p.err = g.explain(context.Background(), p.err)
		}
	})
	if p.feed(c.Stdin) != nil {
		// It has ended without taking all its input, or the connection has:
		// then follow learns it, and Err tells.
		<-p.done
	}
	return p, nil
}

// feed hands the process its input, to the end.
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
		return fmt.Errorf("the agent answers with a frame of kind %d", f.Kind)
	}
	var start wire.Start
	if err := json.Unmarshal(f.Payload, &start); err != nil {
		return err
	}
	p.PID = start.PID
	return nil
}

// follow takes the process's output until its end.
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

// Done is closed when the process has ended, or its guest has.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how a process that is done ended: nil is status 0, an *ExitError
// another end, any other error that its end is not known.
func (p *Process) Err() error {
	<-p.done
	switch {
	case p.err != nil:
		return fmt.Errorf("%s: %w; it said before:\n%s", strings.Join(p.argv, " "), p.err, p.Log())
	case p.status.Code != 0 || p.status.Signal != 0:
		return &ExitError{Argv: p.argv, Code: p.status.Code, Signal: syscall.Signal(p.status.Signal), Output: p.Log()}
	}
	return nil
}

// Signal sends a signal to the process's group.
func (p *Process) Signal(s syscall.Signal) error {
	return p.frames.Send(wire.Signal, []byte{byte(s)})
}

// Kill ends the process's group with SIGKILL and waits for the end of the
// process itself.
func (p *Process) Kill(ctx context.Context) error {
	err := p.Signal(syscall.SIGKILL)
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), err)
	}
}

// Log is what the process has said so far, on both streams as it came.
func (p *Process) Log() string { return p.log.String() }

// agentError is what the agent says went wrong: the connection is well.
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
