// Package spdk is a JSON-RPC client for an SPDK process, such as NVIDIA's SNAP,
// over a UNIX socket or SPDK's HTTP proxy, scripts/rpc_http_proxy.py.
//
// On a socket, a Client dials a few connections when needed, and matches
// responses by id, so that slow calls do not delay others. It never retries a call that might have
// been executed (Unanswered): the caller must check the state of the process
// first.
package spdk

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/errs"
)

const (
	defaultTimeout     = 30 * time.Second
	defaultMaxAnswer   = 16 << 20
	defaultConnections = 4
	// defaultHTTPConnections is what the proxy serves at a time. Calls beyond
	// wait in the client, where it is certain that they were not executed.
	defaultHTTPConnections = 1
	// maxConnections leaves connections of the 64 of a process to other
	// clients.
	maxConnections = 32
	// maxRequest in bytes; the process closes the connection on larger ones.
	maxRequest = 256<<10 - 1
)

// Config configures a Client. Required are either Socket, or URL, User and
// Password.
type Config struct {
	Socket string // absolute path; the socket need not exist yet

	URL  string // of SPDK's HTTP proxy: http://HOST:PORT or https://HOST:PORT
	User string // for the proxy
	// Password is called for each request to the proxy.
	Password func() (string, error)
	RootCAs  *x509.CertPool // for an https URL; nil: those of the system

	// Timeout of calls without deadline, longer than 10 s, the duration of an
	// attach to a silent target. Zero is 30 s.
	Timeout time.Duration
	// MaxAnswer bounds a response, in bytes. Zero is 16 MiB, about 8,000 bdevs.
	MaxAnswer int64
	// Connections is the maximum number of open connections. Zero is 4, or 1
	// with a URL.
	Connections int

	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

func (c Config) check() (Config, error) {
	switch {
	case c.Socket != "" && (c.URL != "" || c.User != "" || c.Password != nil):
		return c, errs.Errorf(errs.Invalid, "socket %q and a URL, user or password of a proxy: a client uses one of both", c.Socket)
	case c.URL != "":
		if err := c.checkURL(); err != nil {
			return c, err
		}
	case !filepath.IsAbs(c.Socket):
		return c, errs.Errorf(errs.Invalid, "socket %q is not an absolute path such as /var/tmp/spdk.sock", c.Socket)
	}
	if c.Timeout < 0 || c.MaxAnswer < 0 || c.Connections < 0 || c.Connections > maxConnections {
		return c, errs.Errorf(errs.Invalid, "invalid timeout %s, maximum response size %d or %d connections: none can be negative, and at most %d connections are allowed", c.Timeout, c.MaxAnswer, c.Connections, maxConnections)
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.MaxAnswer == 0 {
		c.MaxAnswer = defaultMaxAnswer
	}
	switch {
	case c.Connections == 0 && c.URL != "":
		c.Connections = defaultHTTPConnections
	case c.Connections == 0:
		c.Connections = defaultConnections
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Client calls an SPDK process. It is safe for concurrent use.
type Client struct {
	config  Config
	metrics *metrics
	proxy   *proxy         // nil: a socket
	readers sync.WaitGroup // of connections, and calls of the proxy

	mu     sync.Mutex
	slots  []*slot
	closed bool
	facts  facts
}

// Open does not connect. Errors: errs.Invalid.
func Open(c Config) (*Client, error) {
	c, err := c.check()
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, err
	}
	client := &Client{config: c, metrics: m}
	if c.URL != "" {
		client.proxy = newProxy(c, m)
		return client, nil
	}
	for range c.Connections {
		client.slots = append(client.slots, &slot{dialing: make(chan struct{}, 1)})
	}
	return client, nil
}

// Socket returns the path of the process's socket, or "" with a URL.
func (c *Client) Socket() string { return c.config.Socket }

// Address returns the path of the process's socket, or the URL of its proxy.
func (c *Client) Address() string { return cmp.Or(c.config.Socket, c.config.URL) }

// Close closes all connections, fails in-flight calls, and waits for the
// goroutines.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.proxy != nil && !c.closed {
		close(c.proxy.closing)
	}
	c.closed = true
	var open []*conn
	for _, s := range c.slots {
		if s.conn != nil {
			open = append(open, s.conn)
		}
	}
	c.mu.Unlock()
	for _, conn := range open {
		conn.fail(errClosed)
	}
	c.readers.Wait()
	if c.proxy != nil {
		c.proxy.transport.CloseIdleConnections() // ends dials of canceled calls
	}
	return nil
}

var errClosed = errors.New("the client is closed")

// Call sends a request and decodes its result into result, a pointer or nil.
// params is encoded as a JSON object, or nil. Call waits until ctx ends, or for
// Config.Timeout if ctx has no deadline.
//
// An error response is an *Error. All other errors are of kind
// errs.Unavailable, and Unanswered if the request might have been or might
// still be executed; except errs.Invalid for params that cannot be encoded,
// errs.Unauthenticated of a proxy, which then did not pass the request to the
// process, and errs.Internal for an undecodable result.
func (c *Client) Call(ctx context.Context, method string, params, result any) error {
	begin := time.Now()
	err := c.call(ctx, method, params, result)
	took := time.Since(begin)
	c.metrics.call(method, took, err)
	log := c.config.Logger.With("method", method, "duration", took)
	if err != nil {
		log.DebugContext(ctx, "SPDK call failed", "err", err)
		return err
	}
	log.DebugContext(ctx, "SPDK call done")
	return nil
}

// Start sends a request and does not wait for the response, which is dropped: the
// caller must look at the state of the process. The HTTP proxy, which serves one
// request at a time, is not occupied by a call that takes long. nil: the request
// was sent, or might have been.
func (c *Client) Start(ctx context.Context, method string, params any) error {
	body, err := encodeParams(method, params)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	if c.proxy != nil {
		_, err = c.throughProxy(ctx, 0, method, body)
	} else {
		slot := c.take()
		defer c.give(slot)
		var conn *conn
		if conn, err = c.connected(ctx, slot); err == nil {
			err = conn.start(ctx, method, body)
		}
	}
	if err == nil || errors.Is(err, Unanswered) {
		return nil
	}
	return errs.Errorf(errs.Unavailable, "%s at %s: %w", method, c.Address(), err)
}

func (c *Client) call(ctx context.Context, method string, params, result any) error {
	body, err := encodeParams(method, params)
	if err != nil {
		return err
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.config.Timeout)
		defer cancel()
	}
	exchange := c.exchange
	if c.proxy != nil {
		exchange = c.exchangeHTTP
	}
	a, err := exchange(ctx, method, body)
	if err != nil {
		return err
	}
	return a.into(method, body, result)
}

// exchange uses the connection with the fewest calls. If it is lost before any
// byte was sent, exchange reconnects once.
func (c *Client) exchange(ctx context.Context, method string, params []byte) (answer, error) {
	slot := c.take()
	defer c.give(slot)
	for again := true; ; again = false {
		conn, err := c.connected(ctx, slot)
		if err != nil {
			return answer{}, errs.Errorf(errs.Unavailable, "%s: %w", method, err)
		}
		a, err := conn.call(ctx, method, params)
		if again && errors.Is(err, errNotSent) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return answer{}, errs.Errorf(errs.Unavailable, "%s at %s: %w", method, c.config.Socket, err)
		}
		return a, nil
	}
}

type slot struct {
	dialing chan struct{} // a semaphore
	load    int           // in-flight calls; guarded, like conn, by Client.mu
	conn    *conn         // nil: not connected
}

// take selects the least busy slot, preferring connected ones.
func (c *Client) take() *slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	best := slices.MinFunc(c.slots, func(a, b *slot) int {
		return cmp.Or(cmp.Compare(a.busy(), b.busy()), cmp.Compare(a.unconnected(), b.unconnected()))
	})
	best.load++
	return best
}

// busy counts calls, including abandoned ones.
func (s *slot) busy() int {
	if s.conn == nil {
		return s.load
	}
	return s.load + s.conn.abandonedCalls()
}

func (s *slot) unconnected() int {
	if s.conn == nil {
		return 1
	}
	return 0
}

func (c *Client) give(s *slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.load--
}

// connected returns the connection of a slot, dialed if needed.
func (c *Client) connected(ctx context.Context, s *slot) (*conn, error) {
	if conn, err := c.existing(s); conn != nil || err != nil {
		return conn, err
	}
	select {
	case s.dialing <- struct{}{}:
		defer func() { <-s.dialing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to %s: %w", c.config.Socket, context.Cause(ctx))
	}
	if conn, err := c.existing(s); conn != nil || err != nil {
		return conn, err
	}
	raw, who, err := dial(ctx, c.config.Socket)
	if err != nil && ctx.Err() != nil { // the dialer's error lacks the cause
		err = fmt.Errorf("connect to %s: %w", c.config.Socket, context.Cause(ctx))
	}
	if err != nil {
		return nil, err
	}
	return c.adopt(s, raw, who)
}

func (c *Client) existing(s *slot) (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if s.conn != nil && s.conn.lost() != nil {
		c.drop(s, s.conn)
	}
	return s.conn, nil
}
