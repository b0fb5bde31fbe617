package dpu

import (
	"encoding/json"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// gate proxies the socket of a SNAP process, the double's or a real one's, and
// holds a request until it is released.
type gate struct {
	socket   string
	snap     string // the SNAP socket
	listener net.Listener
	serving  sync.WaitGroup

	mu    sync.Mutex
	order *hold
	conns map[net.Conn]bool
}

// hold is for one request of one of the methods.
type hold struct {
	methods []string
	held    chan struct{} // closed when the request is held
	release chan struct{}
}

// newGate opens a gate until the test ends.
func newGate(t testing.TB, dir, snap string) *gate {
	t.Helper()
	g := &gate{socket: filepath.Join(dir, "gate.sock"), snap: snap, conns: map[net.Conn]bool{}}
	g.listener = testkit.Value(net.Listen("unix", g.socket))(t)
	g.serving.Go(func() {
		for {
			c, err := g.listener.Accept()
			if err != nil {
				return
			}
			g.serving.Go(func() { g.pass(c) })
		}
	})
	t.Cleanup(func() {
		_ = g.listener.Close()
		g.mu.Lock()
		for c := range g.conns {
			_ = c.Close()
		}
		g.mu.Unlock()
		g.serving.Wait()
	})
	return g
}

// keep records connections to close at the end; false removes one.
func (g *gate) keep(c net.Conn, open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if open {
		g.conns[c] = true
		return
	}
	_ = c.Close()
	delete(g.conns, c)
}

// pass forwards requests and responses. A connection that ends on one side is
// closed on the other.
func (g *gate) pass(client net.Conn) {
	g.keep(client, true)
	defer g.keep(client, false)
	snap, err := net.Dial("unix", g.snap)
	if err != nil {
		return
	}
	g.keep(snap, true)
	var answers sync.WaitGroup
	defer answers.Wait()
	defer g.keep(snap, false)
	answers.Go(func() {
		defer g.keep(client, false)
		buffer := make([]byte, 64<<10)
		for {
			n, err := snap.Read(buffer)
			if n > 0 {
				if _, err := client.Write(buffer[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	var late sync.WaitGroup
	defer late.Wait()
	var writing sync.Mutex
	send := func(request []byte) {
		writing.Lock()
		defer writing.Unlock()
		_, _ = snap.Write(append(request, '\n')) // a closed client does not get the response
	}
	requests := json.NewDecoder(client)
	for {
		var request json.RawMessage
		if err := requests.Decode(&request); err != nil {
			return
		}
		if h := g.stops(request); h != nil {
			late.Go(func() {
				<-h.release
				send(request)
			})
			continue
		}
		send(request)
	}
}

// stops returns the hold for a request, or nil.
func (g *gate) stops(request []byte) *hold {
	var r struct{ Method string }
	if err := json.Unmarshal(request, &r); err != nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.order
	if h == nil || !slices.Contains(h.methods, r.Method) {
		return nil
	}
	g.order = nil
	close(h.held)
	return h
}

// hold holds the next request of one of the methods until release is called.
func (g *gate) hold(methods ...string) (held <-chan struct{}, release func()) {
	h := &hold{methods: methods, held: make(chan struct{}), release: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.order = h
	return h.held, sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.order == h {
			g.order = nil
		}
		close(h.release)
	})
}
