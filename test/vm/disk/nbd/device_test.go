package nbd_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a device in memory that records its requests.
type memory struct {
	geometry nbd.Geometry
	gone     chan struct{}
	marks    atomic.Uint64
	before   func(nbd.Request) // called by Do, if set

	mu       sync.Mutex
	bytes    []byte
	did      []nbd.Request
	answered int
}

func newMemory(size int) *memory {
	return &memory{geometry: nbd.Geometry{Size: int64(size), Sector: 512, Block: 4096}, gone: make(chan struct{}), bytes: make([]byte, size)}
}

func (m *memory) Geometry() nbd.Geometry { return m.geometry }
func (m *memory) Mark() uint64           { return m.marks.Add(1) }
func (m *memory) Gone() <-chan struct{}  { return m.gone }

func (m *memory) Do(r nbd.Request) nbd.Answer {
	if m.before != nil {
		m.before(r)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.did = append(m.did, r)
	piece := m.bytes
	if r.Command != nbd.Flush {
		piece = m.bytes[r.Offset : r.Offset+uint64(r.Length)]
	}
	switch r.Command {
	case nbd.Read:
		return nbd.Answer{Data: append([]byte(nil), piece...)}
	case nbd.Write:
		copy(piece, r.Data)
	case nbd.WriteZeroes, nbd.Trim:
		clear(piece)
	}
	return nbd.Answer{}
}

func (m *memory) Answered(nbd.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answered++
}

func (m *memory) requests() []nbd.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]nbd.Request(nil), m.did...)
}

// serve serves a device on one end of a connection. It returns the other end
// and a function that waits for Serve.
func serve(t *testing.T, d nbd.Device) (net.Conn, func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ours, theirs := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- nbd.Serve(ctx, theirs, d) }()
	var once sync.Once
	var err error
	wait := func() error {
		once.Do(func() { err = <-ended })
		return err
	}
	t.Cleanup(func() { cancel(); ours.Close(); wait() })
	return ours, wait
}

func dial(t *testing.T, d nbd.Device) (*nbd.Client, func() error) {
	t.Helper()
	conn, wait := serve(t, d)
	c := testkit.Value(nbd.NewClient(t.Context(), conn))(t)
	return c, wait
}
