package unixsock

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// Lasting accepts from a socket that Restore creates again when clients no longer
// find it. Accepted connections are not affected.
type Lasting struct {
	address Address

	mu     sync.Mutex
	now    *Listener
	closed bool
}

// ListenLasting is Listen for a socket that is to be restored.
func ListenLasting(ctx context.Context, a Address) (*Lasting, error) {
	l, err := Listen(ctx, a)
	if err != nil {
		return nil, err
	}
	return &Lasting{address: a, now: l}, nil
}

func (l *Lasting) current() (*Listener, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now, l.closed
}

// Accept implements net.Listener.
func (l *Lasting) Accept() (net.Conn, error) {
	for {
		from, _ := l.current()
		c, err := from.Accept()
		if err == nil {
			return c, nil
		}
		if now, closed := l.current(); closed || now == from {
			return nil, err
		}
	}
}

// Addr implements net.Listener.
func (l *Lasting) Addr() net.Addr { return &net.UnixAddr{Name: l.address.Path, Net: "unix"} }

// Close implements net.Listener.
func (l *Lasting) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return l.now.Close()
}

// Check returns why clients do not find the socket.
func (l *Lasting) Check() error {
	now, _ := l.current()
	switch seen, err := now.Look(); {
	case err != nil:
		return err
	case seen != Ours:
		return fmt.Errorf("socket %s is %s: clients cannot connect until it is created again", l.address.Path, seen)
	}
	return nil
}

// Restore creates the socket again if it is lost: another program removed or
// replaced it, or its directory. lost is Ours otherwise, and after Close. A live
// socket of another process, and another kind of file, are an error and unchanged.
// Calls must be serial.
func (l *Lasting) Restore(ctx context.Context) (lost PathState, err error) {
	before, closed := l.current()
	if closed {
		return Ours, nil
	}
	lost, err = before.Look()
	if err != nil || lost == Ours {
		return lost, err
	}
	next, err := Listen(ctx, l.address)
	if err != nil {
		return lost, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return Ours, next.Close()
	}
	l.now = next
	// The old one last: until then its inode number cannot be used again.
	return lost, before.Close()
}
