package nvme_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// relay is a path to the kernel's target that a test interrupts. The host's
// kernel connects to its address.
type relay struct {
	*testing.T
	address netip.AddrPort

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	silent   chan struct{} // open while nothing is forwarded
	flushes  int           // commands received
	running  sync.WaitGroup
}

func newRelay(t *testing.T) *relay {
	r := &relay{T: t, conns: map[net.Conn]bool{}, silent: closed()}
	r.listen("127.0.0.1:0")
	r.address = netip.MustParseAddrPort(r.listener.Addr().String())
	t.Cleanup(func() {
		r.speak()
		r.close()
		r.running.Wait()
	})
	return r
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (r *relay) listen(address string) {
	l := testkit.Value(net.Listen("tcp", address))(r)
	r.mu.Lock()
	r.listener = l
	r.mu.Unlock()
	r.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			target, err := new(net.Dialer).DialContext(context.Background(), "tcp", portAddress.String())
			if err != nil {
				c.Close()
				continue
			}
			r.forward(c, target)
			r.forward(target, c)
		}
	})
}

// forward copies until one of the two connections is closed.
func (r *relay) forward(from, to net.Conn) {
	r.mu.Lock()
	r.conns[from] = true
	r.mu.Unlock()
	r.running.Go(func() {
		defer to.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			r.mu.Lock()
			if isFlush(buffer[:n]) {
				r.flushes++
			}
			wait := r.silent
			r.mu.Unlock()
			<-wait
			if n > 0 {
				if _, err := to.Write(buffer[:n]); err != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		_, _ = io.Copy(io.Discard, from) // until it is closed
	})
}

// isFlush recognizes a command capsule (PDU type 4) with the opcode 0 (NVMe/TCP
// Transport Specification 1.0, section 3.6.2.5).
func isFlush(pdu []byte) bool { return len(pdu) >= 72 && pdu[0] == 4 && pdu[8] == 0 }

func (r *relay) flushCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.flushes
}

// fallSilent stops forwarding in both directions, without an error for either
// side; speak forwards what came meanwhile.
func (r *relay) fallSilent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = make(chan struct{})
}

func (r *relay) speak() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.silent:
	default:
		close(r.silent)
	}
}

// interrupt closes all connections. New ones are possible.
func (r *relay) interrupt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
	}
	clear(r.conns)
}

// close also refuses new connections, until open.
func (r *relay) close() {
	r.mu.Lock()
	r.listener.Close()
	r.mu.Unlock()
	r.interrupt()
}

func (r *relay) open() { r.listen(r.address.String()) }
