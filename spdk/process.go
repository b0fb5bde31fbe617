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

// Process identifies the process on the socket. One with another identity has
// lost all state of the previous one.
type Process struct {
	// Generation counts the processes seen by this Client, from 1.
	Generation uint64
	// Identity is constant for a process and all Clients of this socket, over
	// restarts of the Client.
	Identity string
}

// facts are cached about the process; guarded by Client.mu.
type facts struct {
	process Process
	epoch   uint64
	// Cached in this epoch.
	version *Version
	methods *MethodSet
}

// Generation is that of the last process seen; 0: none, or a proxy.
func (c *Client) Generation() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.facts.process.Generation
}

// Process returns the identity of the process. It connects if needed, but sends
// no request, so the process can have ended just before. Errors:
// errs.Unavailable; errs.Unsupported with a URL, as a proxy does not show which
// process answers: a restart shows only in the state that is lost.
func (c *Client) Process(ctx context.Context) (Process, error) {
	if c.proxy != nil {
		return Process{}, errs.Errorf(errs.Unsupported, "the identity of the SPDK process is unknown over HTTP (%s): only a socket shows it", c.config.URL)
	}
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

// dial connects and returns the identity of the process. A new process binds a
// new socket, so inode and mtime identify it, even in another PID namespace.
// The inode is compared before and after the connect, so that it belongs to the
// connection.
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
		_ = raw.Close()
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
		return "", fmt.Errorf("%s is not a socket (mode %s)", path, info.Mode())
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("%s has no inode", path)
	}
	return fmt.Sprintf("%d.%d.%d", s.Dev, s.Ino, info.ModTime().UnixNano()), nil
}

// peerID returns a suffix with the PID, if visible.
func peerID(raw net.Conn) string {
	who, err := unixsock.PeerCredentials(raw)
	if err != nil || who.PID <= 0 {
		return ""
	}
	return fmt.Sprintf(".%d", who.PID)
}

// adopt starts the reader of a new connection.
func (c *Client) adopt(s *slot, raw net.Conn, identity string) (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = raw.Close()
		return nil, errClosed
	}
	c.recordProcess(identity)
	conn := newConn(raw, c.metrics)
	s.conn = conn
	c.metrics.connects.Inc()
	c.metrics.connections.Inc()
	c.readers.Go(func() {
		why := conn.read(newFrames(raw, c.config.MaxAnswer), c.config.Logger.Debug)
		if !errors.Is(why, errClosed) {
			c.config.Logger.Info("connection to SPDK process lost", "socket", c.config.Socket, "err", why)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.drop(s, conn)
	})
	return conn, nil
}

func (c *Client) recordProcess(identity string) {
	if c.facts.process.Identity == identity {
		return
	}
	epoch := c.facts.epoch
	if c.facts.process.Generation > 0 {
		epoch++ // in-flight results are of the previous process
		c.metrics.restarts.Inc()
		c.config.Logger.Warn("SPDK process restarted, its state is lost", "socket", c.config.Socket)
	}
	c.facts = facts{
		process: Process{Generation: c.facts.process.Generation + 1, Identity: identity},
		epoch:   epoch,
	}
}

// drop removes a lost connection, and the cached facts: the next connection can
// be to another process.
func (c *Client) drop(s *slot, lost *conn) {
	if s.conn != lost {
		return
	}
	s.conn = nil
	c.metrics.connections.Dec()
	c.forget()
}

func (c *Client) forget() {
	c.facts.epoch++
	c.facts.version, c.facts.methods = nil, nil
}
