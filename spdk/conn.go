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

// errNotSent says that a connection broke before any byte of the request went
// out, so that it may be sent again.
var errNotSent = errors.New("the connection was lost before the request was sent")

// conn is one connection. Its reader goroutine owns what comes in and hands
// each answer to the call that waits for its id.
type conn struct {
	raw     net.Conn
	metrics *metrics
	writing chan struct{} // holds an element while somebody writes
	done    chan struct{} // closed when the connection is lost

	mu      sync.Mutex
	last    uint64                 // id that was given out last
	pending map[uint64]chan answer // nil for a call that was given up
	owed    int                    // answers to calls that were given up
	err     error                  // why it is lost
}

func newConn(raw net.Conn, m *metrics) *conn {
	return &conn{
		raw: raw, metrics: m,
		writing: make(chan struct{}, 1), done: make(chan struct{}),
		pending: map[uint64]chan answer{},
	}
}

// call sends a request and waits for its answer. When ctx ends first the
// connection stays: the answer is dropped when it comes.
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
	select { // it may have come at the same moment
	case a := <-answered:
		return a, nil
	default:
		c.giveUp(id)
		return answer{}, fmt.Errorf("%w: %w", Unanswered, err)
	}
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

// forget drops a call that was not sent.
func (c *conn) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

// giveUp lets nobody wait for an answer any more that may still come.
func (c *conn) giveUp(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, waits := c.pending[id]; waits {
		c.pending[id] = nil
		c.owed++
	}
}

// owes is how many answers are still to come that nobody waits for. As long as
// they do not, the process may be stuck with this connection.
func (c *conn) owes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owed
}

// write sends a whole frame. A frame that could be sent only in part breaks
// the connection, since the process would take the next for its rest.
func (c *conn) write(ctx context.Context, frame []byte) error {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return fmt.Errorf("the process takes no requests: %w", context.Cause(ctx))
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
		return fmt.Errorf("the process takes no requests: %w", context.Cause(ctx))
	case ctx.Err() != nil:
		err = fmt.Errorf("the process stopped reading in the middle of a request: %w", context.Cause(ctx))
	}
	c.fail(err)
	if n == 0 {
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	return fmt.Errorf("%w: %w", Unanswered, err) // whole frames alone are carried out, but who knows
}

// read hands answers out until the connection is lost, and returns why.
func (c *conn) read(frames *frames, log func(string, ...any)) error {
	for {
		a, err := frames.next()
		if err != nil {
			c.fail(err)
			return c.lost()
		}
		if a.id == 0 {
			// Whose it is cannot be told, so nobody's answer can be relied on.
			c.fail(fmt.Errorf("an answer came without the id of a request, code %d", a.code))
			return c.lost()
		}
		if !c.deliver(a) {
			c.metrics.late.Inc()
			log("An answer came that nobody waits for any more", "id", a.id)
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
		c.owed--
	default:
		answered <- a // has room for the one answer
	}
	return answered != nil
}

// fail ends the connection. The first reason counts.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	close(c.done)
	_ = c.raw.Close() // nothing is buffered here
}

func (c *conn) lost() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// encodeRequest makes a frame. Its end is a newline, which every release
// tolerates and some tools want.
func encodeRequest(id uint64, method string, params []byte) []byte {
	var b bytes.Buffer
	b.WriteString(`{"jsonrpc":"2.0","id":`)
	b.WriteString(strconv.FormatUint(id, 10))
	b.WriteString(`,"method":`)
	b.WriteString(strconv.Quote(method)) // checked by encodeParams: letters, digits, _ and the like
	if params != nil {
		b.WriteString(`,"params":`)
		b.Write(params)
	}
	b.WriteString("}\n")
	return b.Bytes()
}
