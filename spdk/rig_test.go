package spdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is a fake process on a real socket.
type served struct {
	t        *testing.T
	listener *net.UnixListener
	running  sync.WaitGroup

	mu    sync.Mutex
	peers []*peer // in the order of connection
	open  int
	most  int // open at once
	ended bool
}

type request struct {
	ID     uint64
	Method string
	Params json.RawMessage
}

type peer struct {
	net.Conn
	t       *testing.T
	decoder *json.Decoder
}

// start serves a socket; each connection is handled by the function.
func start(t *testing.T, path string, handle func(*peer)) *served {
	t.Helper()
	l := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	p := &served{t: t, listener: l}
	p.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			one := p.enter(conn)
			p.running.Go(func() {
				defer p.leave(one)
				handle(one)
			})
		}
	})
	t.Cleanup(p.stop)
	return p
}

func (p *served) enter(conn net.Conn) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := &peer{Conn: conn, t: p.t, decoder: json.NewDecoder(conn)}
	p.peers = append(p.peers, one)
	p.open++
	p.most = max(p.most, p.open)
	if p.ended { // it was accepted at the last moment
		_ = conn.Close()
	}
	return one
}

func (p *served) leave(one *peer) {
	_ = one.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
}

func (p *served) connects() (all, most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.peers), p.most
}

func (p *served) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.peers {
		_ = one.Close()
	}
}

func (p *served) stop() {
	_ = p.listener.Close() // this removes the socket
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.drop()
	p.running.Wait()
}

// next returns the next request; false: the connection is over.
func (p *peer) next() (request, bool) {
	var r request
	if err := p.decoder.Decode(&r); err != nil {
		// The client can close the connection in the middle of a request.
		closed := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if !closed && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
			p.t.Errorf("the client sent what is no JSON: %v", err)
		}
		return request{}, false
	}
	return r, true
}

func (p *peer) send(format string, args ...any) {
	_, _ = fmt.Fprintf(p, format, args...) // the client can have disconnected
}

// answers gives every request the same answer, which has a %d for the id.
func answers(format string) func(*peer) {
	return func(p *peer) {
		for {
			r, ok := p.next()
			if !ok {
				return
			}
			p.send(format, r.ID)
		}
	}
}

func echo(p *peer) {
	for {
		r, ok := p.next()
		if !ok {
			return
		}
		p.send(`{"jsonrpc":"2.0","id":%d,"result":%s}`+"\n", r.ID, r.Params)
	}
}

// gate blocks servers until it is opened; opening is idempotent. A failed test
// opens it too.
func gate() (<-chan struct{}, func()) {
	c := make(chan struct{})
	return c, sync.OnceFunc(func() { close(c) })
}

func socketPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(testkit.Dir(t), "spdk.sock")
}

func open(t *testing.T, c Config) *Client {
	t.Helper()
	return testkit.Open(Open(c))(t)
}

func serve(t *testing.T, c Config, handle func(*peer)) (*Client, *served) {
	t.Helper()
	c.Socket = socketPath(t)
	p := start(t, c.Socket, handle)
	return open(t, c), p
}
