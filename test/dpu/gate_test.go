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

// gate stands before a SNAP process's socket, the double's or a real one's, and
// keeps back a request until it is told to let it go.
type gate struct {
	socket   string
	snap     string // what is behind it
	listener net.Listener
	serving  sync.WaitGroup

	mu    sync.Mutex
	order *hold
	conns map[net.Conn]bool
}

// hold is for one request of one of the methods.
type hold struct {
	methods []string
	held    chan struct{} // closed when it has come
	release chan struct{}
}

// newGate opens one, until the test ends.
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

// keep notes connections to be closed at the end; false ends one.
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

// pass hands requests and answers over. A connection that ends on one side ends
// on the other.
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
		_, _ = snap.Write(append(request, '\n')) // who is gone does not get it
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

// stops returns the order to keep a request back, if there is one.
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

// hold keeps the next request of one of the methods back until release is
// called.
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
