//go:build ceph

package ceph

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/ceph/go-ceph/rados"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/op"
)

// Connection is a connection to a cluster as one user. Its methods return when
// their context ends; what they began goes on until the cluster answers or a
// timeout of librados ends it.
type Connection struct {
	cluster cephconf.Cluster
	rados   *rados.Conn
	mgr     managerConn
	pools   []*pool // the first one also has the state of the controller
	logger  *slog.Logger
	release func() // ends the use of rados by others, before its shutdown; nil: none
	// "name:" and "snapname:" with a hash, "image:" with an internal id
	locks op.Locks

	mu        sync.Mutex
	instances []string // client instances that the next controller would fence
	closed    bool
	running   sync.WaitGroup // calls into the libraries
}

// managerConn is a connection for commands to the manager. These have no
// timeout: after one librados writes a late answer to memory that it has freed,
// and the command is executed although its locks are released. The manager
// executes one at a time, so that one thread waits for it.
type managerConn struct {
	mu    sync.Mutex
	rados *rados.Conn
}

func (m *managerConn) command(json []byte) ([]byte, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rados.MgrCommand([][]byte{json})
}

// pool is a pool, in one namespace.
type pool struct {
	cluster   string
	name      string
	id        int64
	namespace string
	rados     *rados.Conn
	io        *rados.IOContext
}

const trashObject = "rbd_trash" // of librbd

// options of librados, in seconds. They bound every call but commands to the
// manager, also one whose caller is gone.
var options = map[string]string{
	"client_mount_timeout": "10",
	"rados_mon_op_timeout": "15",
	"rados_osd_op_timeout": "30",
	"log_to_file":          "false",
	"log_to_stderr":        "false",
	"err_to_stderr":        "false",
	"keyring":              "", // only the key of the configuration
	// The engine writes no data.
	"rbd_cache": "false",
}

// connect returns a connection, which open prepares. The context ends the wait,
// not the attempt.
func connect(ctx context.Context, cluster cephconf.Cluster, user cephconf.Credentials, logger *slog.Logger, open func(*Connection) error) (*Connection, error) {
	conn := &Connection{cluster: cluster, logger: logger}
	_, err := call(ctx, conn, "connect to Ceph cluster "+cluster.ID, func() (struct{}, error) {
		err := conn.dial(user)
		if err == nil {
			err = open(conn)
		}
		if err != nil || ctx.Err() != nil {
			conn.shutdown()
		}
		return struct{}{}, err
	})
	if err != nil {
		return nil, err
	}
	return conn, nil
}

func (c *Connection) dial(user cephconf.Credentials) (err error) {
	if c.rados, err = c.dialAs(user, nil); err != nil {
		return err
	}
	c.mgr.rados, err = c.dialAs(user, map[string]string{"rados_mon_op_timeout": "0"})
	return err
}

// dialAs returns a connection with further options.
func (c *Connection) dialAs(user cephconf.Credentials, further map[string]string) (*rados.Conn, error) {
	conn, err := rados.NewConnWithUser(user.User)
	if err != nil {
		return nil, explain(err, "prepare a connection to Ceph")
	}
	settings := map[string]string{"mon_host": strings.Join(c.cluster.Monitors, ","), "key": user.Key}
	for _, set := range []map[string]string{options, settings, further} {
		for name, value := range set {
			if err := conn.SetConfigOption(name, value); err != nil {
				return nil, explain(err, "set option %s of librados", name)
			}
		}
	}
	if err := c.connected(user, conn.Connect()); err != nil {
		conn.Shutdown()
		return nil, err
	}
	return conn, nil
}

// connected explains the error of a connection attempt.
func (c *Connection) connected(user cephconf.Credentials, err error) error {
	switch {
	case is(err, unix.EACCES, unix.EPERM, unix.EINVAL, unix.ENOENT):
		return errs.Errorf(errs.Unauthenticated, "Ceph cluster %s does not accept the key of user %s; check the Secret of the controller: %w", c.cluster.ID, user, plain(err))
	case is(err, unix.ETIMEDOUT):
		return errs.Errorf(errs.Unavailable, "no monitor of Ceph cluster %s at %s lets user %s in: none answers, or the key is wrong: %w",
			c.cluster.ID, strings.Join(c.cluster.Monitors, ", "), user, plain(err))
	}
	return explain(err, "connect to Ceph cluster %s", c.cluster.ID)
}

// openPool opens a pool, in a namespace.
func (c *Connection) openPool(name, namespace string) (p *pool, err error) {
	p = &pool{cluster: c.cluster.ID, name: name, namespace: namespace, rados: c.rados}
	if p.io, err = c.rados.OpenIOContext(name); err != nil {
		return nil, explain(err, "open pool %s of Ceph cluster %s", errs.Quote(name), c.cluster.ID)
	}
	c.pools = append(c.pools, p)
	p.id = p.io.GetPoolID()
	p.io.SetNamespace(namespace)
	return p, explain(p.io.SetPoolFullTry(), "set FULL_TRY for pool %s", name)
}

// openPools opens the pools of RBD images.
func (c *Connection) openPools(config Config) error {
	for _, name := range config.Pools {
		p, err := c.openPool(name, c.cluster.RBD.RadosNamespace)
		if err != nil {
			return err
		}
		// librbd removes images by way of its trash, and cannot create this object
		// when the pool is full.
		if err := p.io.Create(trashObject, rados.CreateIdempotent); err != nil && !is(err, unix.ENOSPC, unix.EDQUOT) {
			return explain(err, "create object %s in pool %s", trashObject, name)
		}
	}
	return nil
}

func (c *Connection) shutdown() {
	for _, p := range c.pools {
		p.io.Destroy()
	}
	for _, conn := range []*rados.Conn{c.mgr.rados, c.rados} {
		if conn != nil {
			conn.Shutdown()
		}
	}
}

// close ends the connection once all calls have ended. It is idempotent.
func (c *Connection) close(ctx context.Context) error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	if !first {
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.running.Wait()
		if c.release != nil {
			c.release()
		}
		c.leave()
		c.shutdown()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errs.Errorf(errs.Unavailable, "calls to Ceph cluster %s have not ended: %w", c.cluster.ID, context.Cause(ctx))
	}
}

// begin registers a call; false after close.
func (c *Connection) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// call runs fn, which calls into the libraries, in a goroutine that close waits
// for, and returns its results or, earlier, when the context ends.
func call[T any](ctx context.Context, c *Connection, what string, fn func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if ctx.Err() != nil {
		return none, late(ctx, what)
	}
	if !c.begin() {
		return none, errs.Errorf(errs.Unavailable, "%s: the connection to the Ceph cluster is closed", what)
	}
	done := make(chan result, 1)
	go func() {
		defer c.running.Done()
		value, err := fn()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, late(ctx, what)
	}
}

// mutate is call with locks, held until fn has ended, also when the caller is
// gone: a repeat waits for it and then finds its result.
func mutate[T any](ctx context.Context, c *Connection, what string, locks []string, fn func() (T, error)) (T, error) {
	return call(ctx, c, what, func() (T, error) {
		unlock, err := c.locks.Lock(ctx, locks...)
		if err != nil {
			var none T
			return none, late(ctx, what)
		}
		defer unlock()
		return fn()
	})
}

// MonCommand runs a command of the monitors, in JSON.
func (c *Connection) MonCommand(ctx context.Context, json []byte) ([]byte, error) {
	return call(ctx, c, "command to the monitors", func() ([]byte, error) {
		out, status, err := c.rados.MonCommand(json)
		return out, commandError(err, status, "command %s to the monitors", json)
	})
}

// OSDCommand runs a command of one OSD, in JSON.
func (c *Connection) OSDCommand(ctx context.Context, osd int, json []byte) ([]byte, error) {
	return call(ctx, c, "command to an OSD", func() ([]byte, error) {
		out, status, err := c.rados.OsdCommand(osd, [][]byte{json})
		return out, commandError(err, status, "command %s to osd.%d", json, osd)
	})
}

// PGCommand runs a command of the primary OSD of a placement group, in JSON.
func (c *Connection) PGCommand(ctx context.Context, pg string, json []byte) ([]byte, error) {
	return call(ctx, c, "command to a placement group", func() ([]byte, error) {
		out, status, err := c.rados.PGCommand([]byte(pg), [][]byte{json})
		return out, commandError(err, status, "command %s to placement group %s", json, pg)
	})
}

func (c *Connection) mgrCommand(json []byte) ([]byte, error) {
	out, status, err := c.mgr.command(json)
	return out, commandError(err, status, "command %s to the manager", json)
}

func commandError(err error, status, format string, args ...any) error {
	if status = strings.TrimSpace(status); err != nil && status != "" {
		err = fmt.Errorf("%w (%s)", plain(err), errs.Clip(status, 300))
	}
	return explain(err, format, args...)
}

// WaitForLatestOSDMap waits until this client has the newest OSD map of the
// monitors.
func (c *Connection) WaitForLatestOSDMap(ctx context.Context) error {
	_, err := call(ctx, c, "wait for the latest OSD map", func() (struct{}, error) {
		return struct{}{}, explain(c.rados.WaitForLatestOSDMap(), "wait for the latest OSD map")
	})
	return err
}
