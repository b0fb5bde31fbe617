// Package spdk speaks JSON-RPC with an SPDK process, or with NVIDIA's SNAP,
// which is one, over a UNIX socket.
//
// A Client keeps a few connections, dials them when they are needed, and tells
// answers apart by their id, so that a slow call delays no other. It never
// repeats a call that may have been carried out: whoever asked looks at the
// state of the process first (Unanswered).
package spdk

import (
	"cmp"
	"context"
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
	// maxConnections leaves room for others: a process takes 64.
	maxConnections = 32
	// maxRequest is what a process receives of one request, in bytes; with
	// more it closes the connection without a word.
	maxRequest = 256<<10 - 1
)

// Config says where the process is, and how patient a Client is with it. Only
// Socket is needed.
type Config struct {
	Socket string // absolute path; it need not be there yet
	// Timeout bounds a call whose context has no deadline. An attach to a
	// target that is silent takes 10 s, so it must be longer. Zero is 30 s.
	Timeout time.Duration
	// MaxAnswer bounds one answer, in bytes. Zero is 16 MiB, which is some
	// 8,000 bdevs.
	MaxAnswer int64
	// Connections is how many are open at most. Zero is 4.
	Connections int

	Logger  *slog.Logger          // nil: no log
	Metrics prometheus.Registerer // nil: none
}

func (c Config) check() (Config, error) {
	if !filepath.IsAbs(c.Socket) {
		return c, errs.Errorf(errs.Invalid, "the socket %q is not an absolute path, as /var/tmp/spdk.sock is", c.Socket)
	}
	if c.Timeout < 0 || c.MaxAnswer < 0 || c.Connections < 0 || c.Connections > maxConnections {
		return c, errs.Errorf(errs.Invalid, "a timeout of %s, answers of %d bytes and %d connections are not possible: none is negative, and there are at most %d connections", c.Timeout, c.MaxAnswer, c.Connections, maxConnections)
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.MaxAnswer == 0 {
		c.MaxAnswer = defaultMaxAnswer
	}
	if c.Connections == 0 {
		c.Connections = defaultConnections
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Client calls one process. It may be used by several goroutines.
type Client struct {
	config  Config
	metrics *metrics
	readers sync.WaitGroup

	mu     sync.Mutex
	slots  []*slot
	closed bool
	facts  facts
}

// Open prepares a Client. It does not connect. Errors: errs.Invalid.
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
	for range c.Connections {
		client.slots = append(client.slots, &slot{dialing: make(chan struct{}, 1)})
	}
	return client, nil
}

// Socket is the path of the process's socket.
func (c *Client) Socket() string { return c.config.Socket }

// Close ends all connections. Calls that wait for an answer fail. It returns
// when nothing of the client runs any more.
func (c *Client) Close() error {
	c.mu.Lock()
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
	return nil
}

var errClosed = errors.New("the client is closed")

// Call sends one request and decodes its result into result, a pointer, or nil
// when only success matters. params becomes a JSON object, or is nil. It waits
// until ctx ends, or Config.Timeout when ctx has no deadline.
//
// The process's own refusal is an *Error. All else is of kind
// errs.Unavailable, and Unanswered as well when the request may have been
// carried out, or may yet be; save what cannot be sent (errs.Invalid) and
// what cannot be read (errs.Internal).
func (c *Client) Call(ctx context.Context, method string, params, result any) error {
	begin := time.Now()
	err := c.call(ctx, method, params, result)
	took := time.Since(begin)
	c.metrics.call(method, took, err)
	log := c.config.Logger.With("method", method, "duration", took)
	if err != nil {
		log.DebugContext(ctx, "The SPDK process did not do what it was asked", "err", err)
		return err
	}
	log.DebugContext(ctx, "The SPDK process answered")
	return nil
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
	a, err := c.exchange(ctx, method, body)
	if err != nil {
		return err
	}
	return a.into(method, body, result)
}

// exchange sends a request over the connection with the fewest calls. When
// that turns out to be dead before any byte went out, it dials once more.
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

// slot is room for one connection.
type slot struct {
	dialing chan struct{} // holds an element while somebody dials
	load    int           // calls; guarded by Client.mu, as conn is
	conn    *conn         // nil: not connected
}

// take chooses a slot for a call: the least busy, and of these one that is
// connected.
func (c *Client) take() *slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	best := slices.MinFunc(c.slots, func(a, b *slot) int {
		return cmp.Or(cmp.Compare(a.busy(), b.busy()), cmp.Compare(a.unconnected(), b.unconnected()))
	})
	best.load++
	return best
}

// busy is how many calls a slot has, with those that were given up.
func (s *slot) busy() int {
	if s.conn == nil {
		return s.load
	}
	return s.load + s.conn.owes()
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

// connected returns the connection of a slot, and dials when there is none.
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
	if err != nil && ctx.Err() != nil { // which the dialer words as its own
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
