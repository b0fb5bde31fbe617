package spdk

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
)

// hastened calls a function when something was written.
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

// A context that ends while a request is written leaves the connection able to
// write the next.
func TestContextThatEndsDuringAWrite(t *testing.T) {
	path := socketPath(t)
	start(t, path, echo)
	raw, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
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
