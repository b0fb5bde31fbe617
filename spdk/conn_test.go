package spdk

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

type hastened struct {
	net.Conn
	mu      sync.Mutex
	written func()
}

func (h *hastened) Write(b []byte) (int, error) {
	n, err := h.Conn.Write(b)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.written()
	return n, err
}

func (h *hastened) then(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.written = f
}

// A context that ends during a write leaves the connection usable.
func TestCanceledWriteKeepsTheConnection(t *testing.T) {
	path := socketPath(t)
	start(t, path, echo)
	raw := testkit.Value(net.Dial("unix", path))(t)
	m := testkit.Value(newMetrics(nil))(t)
	h := &hastened{Conn: raw}
	c := newConn(h, m)
	over := make(chan struct{})
	go func() { defer close(over); _ = c.read(newFrames(raw, 1<<20), func(string, ...any) {}) }()
	defer func() { c.fail(errClosed); <-over }()
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		h.then(cancel)
		if _, err := c.call(ctx, "echo", []byte(`{}`)); err != nil && !errors.Is(err, Unanswered) {
			t.Fatal(err)
		}
		h.then(func() {})
		if _, err := c.call(t.Context(), "echo", []byte(`{}`)); err != nil {
			t.Fatalf("the next call: %v", err)
		}
	}
}

// A process that stops reading blocks callers only until their timeout.
func TestTimeoutWhenProcessDoesNotRead(t *testing.T) {
	release, open := gate()
	defer open()
	client, p := serve(t, Config{Connections: 1}, func(p *peer) {
		<-release
		echo(p)
	})
	unsent := 0
	connected := func() bool {
		client.mu.Lock()
		defer client.mu.Unlock()
		c := client.slots[0].conn
		return c != nil && c.lost() == nil
	}
	for patience := 100 * time.Millisecond; patience < time.Minute; patience *= 2 {
		unsent += unsentWithin(t, client, patience)
		if all, _ := p.connects(); all > 0 && !connected() { // closed in the middle of a request
			break
		}
	}
	if unsent == 0 {
		t.Error("all requests went out: the test tests nothing")
	}
	open()
	if err := client.Call(t.Context(), "echo", map[string]int{"n": 1}, nil); err != nil {
		t.Errorf("the next call: %v", err)
	}
	if all, _ := p.connects(); all != 2 {
		t.Errorf("%d connections, want 2: the one with half a request is of no use", all)
	}
}

// unsentWithin sends more large calls than the socket's buffers hold, to a
// process that does not read, and counts those that were certainly not sent.
func unsentWithin(t *testing.T, client *Client, patience time.Duration) (unsent int) {
	t.Helper()
	params := map[string]string{"x": strings.Repeat("x", maxRequest-300)}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var running sync.WaitGroup
	var mu sync.Mutex
	for range 8 {
		running.Go(func() {
			err := client.Call(ctx, "echo", params, nil)
			testkit.WantError(t, "the error", err, errs.Unavailable)
			mu.Lock()
			defer mu.Unlock()
			if !errors.Is(err, Unanswered) {
				unsent++
			}
		})
	}
	running.Wait()
	return unsent
}
