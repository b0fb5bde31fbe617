package spdk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// errNotSent: the connection was lost before any byte of the request was sent,
// so a retry is safe.
var errNotSent = errors.New("the connection was lost before the request was sent")

// conn is a connection; its reader goroutine passes responses to calls.
type conn struct {
	raw     net.Conn
	metrics *metrics
	writing chan struct{} // a semaphore
	done    chan struct{}

	mu        sync.Mutex
	last      uint64                 // id of the last request
	pending   map[uint64]chan answer // by id; nil for an abandoned call
	abandoned int
	err       error
}

func newConn(raw net.Conn, m *metrics) *conn {
	return &conn{
		raw: raw, metrics: m,
		writing: make(chan struct{}, 1), done: make(chan struct{}),
		pending: map[uint64]chan answer{},
	}
}

// call waits for a response. If ctx ends first, the connection stays open and
// the response is dropped.
func (c *conn) call(ctx context.Context, method string, params []byte) (answer, error) {
	id, answered, err := c.expect()
	if err != nil {
		return answer{}, err
	}
	if err := c.write(ctx, encodeRequest(id, method, params)); err != nil {
		c.forget(id)
		return answer{}, err
	}
	select {
	case a := <-answered:
		return a, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-c.done:
		err = c.lost()
	}
	select { // the response can have arrived at the same moment
	case a := <-answered:
		return a, nil
	default:
		c.abandon(id)
		return answer{}, fmt.Errorf("%w: %w", Unanswered, err)
	}
}

// start sends a request whose response is dropped.
func (c *conn) start(ctx context.Context, method string, params []byte) error {
	id, _, err := c.expect()
	if err != nil {
		return err
	}
	if err := c.write(ctx, encodeRequest(id, method, params)); err != nil {
		c.forget(id)
		return err
	}
	c.abandon(id)
	return nil
}

func (c *conn) expect() (uint64, <-chan answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errNotSent, c.err)
	}
	c.last++
	answered := make(chan answer, 1)
	c.pending[c.last] = answered
	return c.last, answered, nil
}

// forget removes an unsent call.
func (c *conn) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

// abandon drops the response of a call.
func (c *conn) abandon(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, waits := c.pending[id]; waits {
		c.pending[id] = nil
		c.abandoned++
	}
}

// abandonedCalls counts pending responses to abandoned calls. While it is
// positive, the process might be stuck on this connection.
func (c *conn) abandonedCalls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.abandoned
}

// write sends a frame. A partial frame breaks the connection, since the process
// would read the next one as its rest.
func (c *conn) write(ctx context.Context, frame []byte) error {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return fmt.Errorf("the process does not read requests: %w", context.Cause(ctx))
	case <-c.done:
		return fmt.Errorf("%w: %w", errNotSent, c.lost())
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the request was not sent: %w", context.Cause(ctx))
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = c.raw.SetWriteDeadline(time.Unix(1, 0)) // fails only on a closed connection
	})
	n, err := c.raw.Write(frame)
	if !stop() {
		<-interrupted
		_ = c.raw.SetWriteDeadline(time.Time{})
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && n == 0:
		return fmt.Errorf("the process does not read requests: %w", context.Cause(ctx))
	case ctx.Err() != nil:
		err = fmt.Errorf("the process stopped reading in the middle of a request: %w", context.Cause(ctx))
	}
	c.fail(err)
	if n == 0 {
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	return fmt.Errorf("%w: %w", Unanswered, err) // a process should execute complete frames only, but this is not certain
}

// read delivers responses until the connection is lost.
func (c *conn) read(frames *frames, log func(string, ...any)) error {
	for {
		a, err := frames.next()
		if err != nil {
			c.fail(err)
			return c.lost()
		}
		if a.id == 0 {
			c.fail(fmt.Errorf("response without a request id, code %d", a.code))
			return c.lost()
		}
		if !c.deliver(a) {
			c.metrics.late.Inc()
			log("late SPDK response dropped", "id", a.id)
		}
	}
}

func (c *conn) deliver(a answer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	answered, known := c.pending[a.id]
	delete(c.pending, a.id)
	switch {
	case !known:
	case answered == nil:
		c.abandoned--
	default:
		answered <- a // buffered
	}
	return answered != nil
}

// fail keeps the first error only.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	close(c.done)
	_ = c.raw.Close() // no buffered data
}

func (c *conn) lost() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// encodeRequest ends a frame with a newline, which all releases accept and some
// tools need. Without an id (0) the process executes a request and sends no result.
func encodeRequest(id uint64, method string, params []byte) []byte {
	var b bytes.Buffer
	b.WriteString(`{"jsonrpc":"2.0",`)
	if id != 0 {
		b.WriteString(`"id":`)
		b.WriteString(strconv.FormatUint(id, 10))
		b.WriteByte(',')
	}
	b.WriteString(`"method":`)
	b.WriteString(strconv.Quote(method)) // validated by encodeParams, needs no JSON escapes
	if params != nil {
		b.WriteString(`,"params":`)
		b.Write(params)
	}
	b.WriteString("}\n")
	return b.Bytes()
}
