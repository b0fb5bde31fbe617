package spdk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// Process says which process is behind the socket. Two that differ are two
// processes: what the first had is gone.
type Process struct {
	// Generation counts the processes that this Client met, from 1.
	Generation uint64
	// Identity is the same for as long as the process lives, for every Client
	// that reaches it by this socket, also after a restart of the Client.
	Identity string
}

// facts is what a Client knows of the process; guarded by Client.mu.
type facts struct {
	process Process
	epoch   uint64 // grows with each connection that is lost
	// What was asked in the epoch; nil: not yet.
	version *Version
	methods *MethodSet
}

// Generation is that of the process that was met last; 0: none was.
func (c *Client) Generation() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.facts.process.Generation
}

// Process returns which process is there. It connects when there is no
// connection, and asks nothing: one that ended this very moment may still be
// told. Errors: errs.Unavailable.
func (c *Client) Process(ctx context.Context) (Process, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.config.Timeout)
		defer cancel()
	}
	s := c.take()
	defer c.give(s)
	if _, err := c.connected(ctx, s); err != nil {
		return Process{}, errs.Errorf(errs.Unavailable, "%w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.facts.process, nil
}

// dial connects to the socket and tells which process it is of. A process that
// starts binds a new socket, so the inode and its time tell it from the last
// one, also where the process itself is in another PID namespace; the inode is
// looked at on both sides of the connecting, so that both are the same one's.
func dial(ctx context.Context, path string) (net.Conn, string, error) {
	for {
		before, err := socketInode(path)
		if err != nil {
			return nil, "", fmt.Errorf("connect to %s: %w", path, err)
		}
		raw, err := unixsock.Dial(ctx, path)
		if err != nil {
			return nil, "", err
		}
		after, err := socketInode(path)
		if err == nil && after == before {
			return raw, before + peerID(raw), nil
		}
		_ = raw.Close() // of a process that is gone
		if err := ctx.Err(); err != nil {
			return nil, "", fmt.Errorf("connect to %s: %w", path, context.Cause(ctx))
		}
	}
}

func socketInode(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.Mode().Type() != os.ModeSocket {
		return "", fmt.Errorf("%s is no socket but %s", path, info.Mode())
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("%s has no inode", path)
	}
	return fmt.Sprintf("%d.%d.%d", s.Dev, s.Ino, info.ModTime().UnixNano()), nil
}

// peerID adds the process's id where it can be seen.
func peerID(raw net.Conn) string {
	who, err := unixsock.PeerCredentials(raw)
	if err != nil || who.PID <= 0 {
		return ""
	}
	return fmt.Sprintf(".%d", who.PID)
}

// adopt makes a connection out of a socket and starts its reader.
func (c *Client) adopt(s *slot, raw net.Conn, identity string) (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = raw.Close()
		return nil, errClosed
	}
	c.meet(identity)
	conn := newConn(raw, c.metrics)
	s.conn = conn
	c.metrics.connects.Inc()
	c.metrics.connections.Inc()
	c.readers.Go(func() {
		why := conn.read(newFrames(raw, c.config.MaxAnswer), c.config.Logger.Debug)
		if !errors.Is(why, errClosed) {
			c.config.Logger.Info("The connection to the SPDK process is lost", "socket", c.config.Socket, "err", why)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.drop(s, conn)
	})
	return conn, nil
}

// meet notes which process a new connection is to.
func (c *Client) meet(identity string) {
	if c.facts.process.Identity == identity {
		return
	}
	epoch := c.facts.epoch
	if c.facts.process.Generation > 0 {
		epoch++ // answers that are under way are of the last one
		c.metrics.restarts.Inc()
		c.config.Logger.Warn("Another SPDK process is behind the socket: what the last one had is gone", "socket", c.config.Socket)
	}
	c.facts = facts{
		process: Process{Generation: c.facts.process.Generation + 1, Identity: identity},
		epoch:   epoch,
	}
}

// drop takes a connection that is lost out of its slot, and forgets what was
// learnt over it: it may be another process next time.
func (c *Client) drop(s *slot, lost *conn) {
	if s.conn != lost {
		return // somebody was here before
	}
	s.conn = nil
	c.metrics.connections.Dec()
	c.forget()
}

// forget drops what is known of the process's abilities.
func (c *Client) forget() {
	c.facts.epoch++
	c.facts.version, c.facts.methods = nil, nil
}
