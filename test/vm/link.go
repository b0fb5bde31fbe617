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

// idleLinks is how many connections wait at most; the agent keeps fewer.
const idleLinks = 16

// link is a connection from the agent, whose bytes may wait in the reader. It
// embeds the interface: from a *net.TCPConn io.Copy would splice(2), which
// passes those bytes by.
type link struct {
	net.Conn
	in *bufio.Reader
}

func (l *link) Read(p []byte) (int, error) { return l.in.Read(p) }

// CloseWrite ends this direction of the connection only.
func (l *link) CloseWrite() error { return l.Conn.(*net.TCPConn).CloseWrite() }

// accept takes the agent's connections until QEMU has ended.
func (g *Guest) accept() {
	for {
		conn, err := g.listener.Accept()
		if err != nil {
			return
		}
		g.work.Go(func() { g.greet(conn) })
	}
}

// greet hears who calls. Others on this machine can reach the listener too:
// they do not know the token.
func (g *Guest) greet(conn net.Conn) {
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

// request sends a request on a connection of its own, which the caller closes.
func (g *Guest) request(ctx context.Context, r wire.Request) (*link, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	select {
	case <-g.gone:
		return nil, fmt.Errorf("%w%s", g.verdict(), g.evidence())
	default:
	}
	select {
	case l := <-g.idle:
		if err := wire.Write(l, r); err != nil {
			l.Close()
			return nil, g.explain(ctx, err)
		}
		return l, nil
	case <-g.gone:
		return nil, fmt.Errorf("%w%s", g.verdict(), g.evidence())
	case <-ctx.Done():
		return nil, fmt.Errorf("the guest's agent has no connection for a request: %w%s", ctx.Err(), g.evidence())
	}
}

// ask sends a request, and ends its connection when ctx does. done stops that.
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
		return reply, g.explain(ctx, err)
	}
	return reply, reply.Err()
}

// explain says why a connection ended: because of the caller, of the guest's
// end, or of itself.
func (g *Guest) explain(ctx context.Context, err error) error {
	var told agentError
	switch {
	case errors.As(err, &told):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case g.process == nil, errors.Is(err, net.ErrClosed): // there is no QEMU, or it was us who hung up
		return fmt.Errorf("the connection to the guest's agent: %w", err)
	}
	select {
	case <-g.gone:
		return fmt.Errorf("%w (%w)%s", g.verdict(), err, g.evidence())
	case <-time.After(endsSoon): // the kernel closes QEMU's sockets a little before its parent hears
		return fmt.Errorf("the connection to the guest's agent: %w", err)
	}
}

// endsSoon is how long a guest whose connections broke may take to end.
const endsSoon = 10 * time.Second

// Dial connects to a socket of the guest: unix and a path, or tcp and an
// address with port. ctx bounds the dialling only.
func (g *Guest) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	l, done, err := g.ask(ctx, wire.Request{Op: wire.OpDial, Dial: &wire.Dial{Network: network, Address: address}})
	if err == nil {
		_, err = g.answer(ctx, l)
		done()
		if err == nil {
			err = ctx.Err() // it may just have closed the connection
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
