package storage

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Minute)
}

// Session is a client's end of a storage session.
type Session interface {
	// Send sends a write. It can return before the acknowledgement.
	Send(number uint64) error
	// Acknowledged waits for the next acknowledgement and returns the number.
	Acknowledged() (number uint64, err error)
	Close() error
}

// Writer writes consecutive numbers until its session ends.
type Writer struct {
	ID      uint64
	session Session
	sent    atomic.Uint64 // the last number whose sending began
	acked   atomic.Uint64

	mu    sync.Mutex
	begun map[uint64]time.Time
	waits []time.Duration // from sending to acknowledgement
	err   error

	stop chan struct{}
	done chan struct{} // closed after the last acknowledgement
	wait sync.WaitGroup
}

// NewWriter starts to write, one number every pace, acknowledged or not.
func NewWriter(id uint64, session Session, pace time.Duration) *Writer {
	w := &Writer{ID: id, session: session, begun: map[uint64]time.Time{}, stop: make(chan struct{}), done: make(chan struct{})}
	w.wait.Go(func() { w.send(pace) })
	w.wait.Go(w.listen)
	return w
}

func (w *Writer) send(pace time.Duration) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		n := w.sent.Add(1)
		w.mu.Lock()
		w.begun[n] = time.Now()
		w.mu.Unlock()
		if err := w.session.Send(n); err != nil {
			return // the reader gets the error too
		}
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
	}
}

func (w *Writer) listen() {
	defer close(w.done)
	for {
		n, err := w.session.Acknowledged()
		now := time.Now()
		w.mu.Lock()
		if err == nil {
			w.waits = append(w.waits, now.Sub(w.begun[n]))
			delete(w.begun, n)
		} else {
			w.err = err
		}
		w.mu.Unlock()
		if err != nil {
			return
		}
		w.acked.Store(n)
	}
}

// Sent is the last number whose sending began.
func (w *Writer) Sent() uint64 { return w.sent.Load() }

// Acked is the last number that was acknowledged.
func (w *Writer) Acked() uint64 { return w.acked.Load() }

// Done is closed when the session has ended.
func (w *Writer) Done() <-chan struct{} { return w.done }

// Err is the reason of the end.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Waits returns the sorted latencies of acknowledgements since the last call.
func (w *Writer) Waits() []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	waits := w.waits
	w.waits = nil
	slices.Sort(waits)
	return waits
}

// Await waits until that many more writes are acknowledged.
func (w *Writer) Await(ctx context.Context, more uint64) error {
	want := w.Acked() + more
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for w.Acked() < want {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.done:
			return w.Err()
		case <-tick.C:
		}
	}
	return nil
}

// Close ends the session.
func (w *Writer) Close() {
	close(w.stop)
	_ = w.session.Close()
	w.wait.Wait()
}

// recordSession is a session with a record server.
type recordSession struct {
	net.Conn
	id uint64
}

// RecordSession opens a session with a record server.
func RecordSession(id uint64, conn net.Conn) Session { return recordSession{conn, id} }

func (s recordSession) Send(number uint64) error {
	var request [requestSize]byte
	binary.BigEndian.PutUint64(request[:], s.id)
	binary.BigEndian.PutUint64(request[8:], number)
	_, err := s.Write(request[:])
	return err
}

func (s recordSession) Acknowledged() (uint64, error) {
	var answer [8]byte
	_, err := io.ReadFull(s, answer[:])
	return binary.BigEndian.Uint64(answer[:]), err
}
