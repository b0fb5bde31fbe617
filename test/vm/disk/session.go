package disk

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"

	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// session is the time from a power-on to the end of it: a listening socket and
// the connections of clients.
type session struct {
	disk     *Disk
	listener net.Listener
	cancel   context.CancelFunc
	running  sync.WaitGroup
	gone     chan struct{} // closed at the cut
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
			s.disk.spec.Log.Error("accept a client", "disk", s.disk.spec.Path, "error", err)
			return
		}
		s.running.Go(func() {
			// A client that was killed in the middle of a request is no news
			// here, but the reason of one that we hung up on may be.
			if err := nbd.Serve(ctx, conn, s); err != nil {
				s.disk.spec.Log.Info("client left", slog.String("disk", s.disk.spec.Path), slog.Any("error", err))
			}
		})
	}
}

// fallSilent leaves the clients that are there waiting, and lets no other in.
func (s *session) fallSilent() {
	close(s.gone)
	_ = s.listener.Close() // says no more than that it is closed; end says it again
}

// end hangs up on everybody and waits for all goroutines. It must not be
// called under the disk's lock. It may be called again.
func (s *session) end() error {
	err := s.listener.Close() // removes the socket too
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	s.cancel()
	s.running.Wait()
	return err
}

// Geometry and the methods below make the session the nbd.Device of its
// clients, so that nothing of an old session can reach a disk that has been
// powered on again.
func (s *session) Geometry() nbd.Geometry {
	return nbd.Geometry{Size: s.disk.spec.Size, Sector: sector, Block: uint32(s.disk.spec.Block)}
}

// Mark numbers the latest write that has been carried out, and so perhaps
// answered, when a request comes in.
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
	ordered := d.order.arrives(r.Command)
	if ordered && d.order.Moment == OnArrival {
		d.cutLocked(d.order.String())
		return nbd.Answer{}
	}
	a := d.carryOut(r)
	if ordered && d.order.Moment == BeforeAnswer {
		d.cutLocked(d.order.String())
	}
	return a
}

func (s *session) Answered(r nbd.Request) {
	d := s.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if e, counted := eventOf(r.Command); counted && d.order != nil && d.order.due && d.order.Event == e && !s.off() {
		d.cutLocked(d.order.String())
	}
}

// carryOut is called under the disk's lock.
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
	case nbd.WriteZeroes, nbd.Trim: // the file is sparse anyway: NoHole is no more than a wish
		err = d.cache.write(off, length, nil, r.FUA)
	case nbd.Flush:
		err = d.cache.flush(r.Mark)
	}
	if err != nil {
		d.spec.Log.Error("the backing file fails", "disk", d.spec.Path, "request", r.Command.String(), "error", err)
		a = nbd.Answer{Error: nbd.EIO}
	}
	d.stats.count(r, err != nil)
	return a
}
