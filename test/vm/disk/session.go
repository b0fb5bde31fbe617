package disk

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"

	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// session lasts from power-on to power loss or Close: a listening socket and
// its client connections.
type session struct {
	disk     *Disk
	listener net.Listener
	cancel   context.CancelFunc
	running  sync.WaitGroup
	gone     chan struct{} // closed at the power loss
}

func newSession(d *Disk) (*session, error) {
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), "unix", d.Socket())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &session{disk: d, listener: l, cancel: cancel, gone: make(chan struct{})}
	s.running.Go(func() { s.accept(ctx) })
	return s, nil
}

func (s *session) accept(ctx context.Context) {
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.disk.spec.Log.Error("accept failed", "path", s.disk.spec.Path, "err", err)
			return
		}
		s.running.Go(func() {
			// Errors are logged at info level: clients are often killed in the
			// middle of a request.
			if err := nbd.Serve(ctx, conn, s); err != nil {
				s.disk.spec.Log.Info("client disconnected", slog.String("path", s.disk.spec.Path), slog.Any("err", err))
			}
		})
	}
}

// stopAnswering stops answering clients and accepting new ones, without closing
// connections.
func (s *session) stopAnswering() {
	close(s.gone)
	_ = s.listener.Close() // end returns other errors
}

// end closes all connections and waits for the goroutines. It can be called
// again, but not under the disk's lock.
func (s *session) end() error {
	err := s.listener.Close() // removes the socket too
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	s.cancel()
	s.running.Wait()
	return err
}

// Geometry and the methods below implement nbd.Device. They belong to the
// session, so that an old session cannot reach a disk that was powered on
// again.
func (s *session) Geometry() nbd.Geometry {
	return nbd.Geometry{Size: s.disk.spec.Size, Sector: sector, Block: uint32(s.disk.spec.Block)}
}

// Mark returns the number of the latest completed write.
func (s *session) Mark() uint64 { return s.disk.cache.last.Load() }

func (s *session) Gone() <-chan struct{} { return s.gone }

func (s *session) off() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

func (s *session) Do(r nbd.Request) nbd.Answer {
	d := s.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.off() {
		return nbd.Answer{}
	}
	ordered := d.trigger.arrives(r.Command)
	if ordered && d.trigger.Moment == OnArrival {
		d.losePowerLocked(d.trigger.String())
		return nbd.Answer{}
	}
	a := d.carryOut(r)
	if ordered && d.trigger.Moment == BeforeAnswer {
		d.losePowerLocked(d.trigger.String())
	}
	return a
}

func (s *session) Answered(r nbd.Request) {
	d := s.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if e, counted := eventOf(r.Command); counted && d.trigger != nil && d.trigger.due && d.trigger.Event == e && !s.off() {
		d.losePowerLocked(d.trigger.String())
	}
}

// carryOut is called with the disk's lock held.
func (d *Disk) carryOut(r nbd.Request) nbd.Answer {
	for _, f := range d.faults {
		if f.hits(r) {
			d.stats.count(r, true)
			return nbd.Answer{Error: nbd.EIO}
		}
	}
	var a nbd.Answer
	var err error
	off, length := int64(r.Offset), int64(r.Length)
	switch r.Command {
	case nbd.Read:
		a.Data = make([]byte, length)
		err = d.cache.read(a.Data, off)
	case nbd.Write:
		err = d.cache.write(off, length, r.Data, r.FUA)
	case nbd.WriteZeroes, nbd.Trim: // the file is sparse: NoHole is only a hint
		err = d.cache.write(off, length, nil, r.FUA)
	case nbd.Flush:
		err = d.cache.flush(r.Mark)
	}
	if err != nil {
		d.spec.Log.Error("backing file I/O failed", "path", d.spec.Path, "operation", r.Command.String(), "err", err)
		a = nbd.Answer{Error: nbd.EIO}
	}
	d.stats.count(r, err != nil)
	return a
}
