package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cleatproject/cleat/test/vm/wire"
)

// idleLinks is the maximum number of idle connections; the agent opens fewer.
const idleLinks = 16

// link is a connection from the agent with its read buffer. Embedding the
// interface keeps io.Copy from using splice(2) of *net.TCPConn, which would
// skip the buffered bytes.
type link struct {
	net.Conn
	in *bufio.Reader
}

func (l *link) Read(p []byte) (int, error) { return l.in.Read(p) }

// CloseWrite closes the sending direction of the connection.
func (l *link) CloseWrite() error { return l.Conn.(*net.TCPConn).CloseWrite() }

// accept accepts the agent's connections until QEMU has exited.
func (g *Guest) accept() {
	for {
		conn, err := g.listener.Accept()
		if err != nil {
			return
		}
		g.work.Go(func() { g.authenticate(conn) })
	}
}

// authenticate authenticates a connection. Other local processes can reach the
// listener too, but do not know the token.
func (g *Guest) authenticate(conn net.Conn) {
	l := &link{conn, bufio.NewReader(conn)}
	var hello wire.Hello
	err := conn.SetDeadline(time.Now().Add(10 * time.Second))
	if err == nil {
		err = wire.Read(l.in, &hello)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		l.Close()
		return
	}
	if hello.Token == g.token {
		err = hello.Check(g.token)
		select {
		case g.ready <- err:
		default:
		}
	}
	if hello.Token != g.token || err != nil {
		l.Close()
		return
	}
	select {
	case g.idle <- l:
	case <-g.gone:
		l.Close()
	case <-g.closed:
		l.Close()
	}
}

func (g *Guest) dropIdle() {
	for {
		select {
		case l := <-g.idle:
			l.Close()
		default:
			return
		}
	}
}

// request sends a request on an idle connection; the caller closes it.
func (g *Guest) request(ctx context.Context, r wire.Request) (*link, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	select {
	case <-g.gone:
		return nil, fmt.Errorf("%w%s", g.exitReason(), g.diagnostics())
	default:
	}
	select {
	case l := <-g.idle:
		if err := wire.Write(l, r); err != nil {
			l.Close()
			return nil, g.connectionError(ctx, err)
		}
		return l, nil
	case <-g.gone:
		return nil, fmt.Errorf("%w%s", g.exitReason(), g.diagnostics())
	case <-ctx.Done():
		return nil, fmt.Errorf("no idle connection to the guest's agent: %w%s", ctx.Err(), g.diagnostics())
	}
}

// ask sends a request and closes the connection when ctx ends, until done is
// called.
func (g *Guest) ask(ctx context.Context, r wire.Request) (l *link, done func(), err error) {
	l, err = g.request(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	return l, func() { stop() }, nil
}

// answer reads the reply to a request.
func (g *Guest) answer(ctx context.Context, l *link) (wire.Reply, error) {
	var reply wire.Reply
	if err := wire.Read(l.in, &reply); err != nil {
		return reply, g.connectionError(ctx, err)
	}
	return reply, reply.Err()
}

// connectionError returns why a connection failed: ctx ended, the guest ended, or the
// connection broke.
func (g *Guest) connectionError(ctx context.Context, err error) error {
	var reported agentError
	switch {
	case errors.As(err, &reported):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case g.process == nil, errors.Is(err, net.ErrClosed): // no QEMU, or this side closed the connection
		return fmt.Errorf("connection to the guest's agent: %w", err)
	}
	select {
	case <-g.gone:
		return fmt.Errorf("%w (%w)%s", g.exitReason(), err, g.diagnostics())
	case <-time.After(exitTimeout): // the kernel closes QEMU's sockets shortly before its parent can wait for it
		return fmt.Errorf("connection to the guest's agent: %w", err)
	}
}

// exitTimeout is how long to wait for QEMU's exit after a connection broke.
const exitTimeout = 10 * time.Second

// Dial connects to a socket in the guest: network unix with a path, or tcp with
// address and port. ctx bounds the connect only.
func (g *Guest) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	l, done, err := g.ask(ctx, wire.Request{Op: wire.OpDial, Dial: &wire.Dial{Network: network, Address: address}})
	if err == nil {
		_, err = g.answer(ctx, l)
		done()
		if err == nil {
			err = ctx.Err() // ctx can just have closed the connection
		}
		if err != nil {
			l.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("dial %s %s in guest %s: %w", network, address, g.spec.Name, err)
	}
	return l, nil
}
