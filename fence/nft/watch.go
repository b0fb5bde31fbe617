package nft

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cleatproject/cleat/internal/linux/nft"
)

// Changed is signalled, once for many, when somebody else has changed the
// table, when it is not known whether, and when the holder has died: then it is
// time for Held and Apply.
func (f *Filter) Changed() <-chan struct{} { return f.changed }

func (f *Filter) signal() {
	select {
	case f.changed <- struct{}{}:
	default: // one is on its way
	}
}

// listen signals changes by others.
func (f *Filter) listen(ctx context.Context) {
	var events []nft.Event
	for {
		var err error
		events, err = f.monitor.Read(ctx, events[:0])
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, nft.ErrLost):
			f.signal()
		case err != nil:
			f.log.WarnContext(ctx, "changes of the packet filter cannot be followed for a moment", "error", err)
			f.signal()
			if pause(ctx, firstPause) != nil {
				return
			}
		case f.foreign(events):
			f.signal()
		}
	}
}

func (f *Filter) foreign(events []nft.Event) bool {
	for _, e := range events {
		for _, l := range f.layouts {
			if e.Table == l.table && e.Port != f.owner.Port() {
				return true
			}
		}
	}
	return false
}

const (
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
)

// guard replaces a holder that died. The table keeps its owner meanwhile,
// since this process has the socket open as well.
func (f *Filter) guard(ctx context.Context) {
	for {
		f.mu.Lock()
		l := f.link
		f.mu.Unlock()
		if l.wait(ctx) != nil {
			return
		}
		l.bury()
		f.setLink(nil)
		f.log.WarnContext(ctx, "the fence holder died, and another is started", "holder", l.pid)
		f.signal()
		for bound := firstPause; ; bound = min(2*bound, lastPause) {
			next, err := f.replace(ctx)
			if err == nil {
				f.setLink(next)
				f.log.InfoContext(ctx, "a fence holder was started", "holder", next.pid)
				break
			}
			if ctx.Err() != nil {
				return
			}
			f.log.ErrorContext(ctx, "no fence holder: should this server die, others could flush the fences", "error", err)
			if pause(ctx, bound) != nil {
				return
			}
		}
	}
}

// replace starts a holder for the socket that owns the table already.
func (f *Filter) replace(ctx context.Context) (*link, error) {
	l, held, err := f.keeper.hire(ctx, f.owner.File)
	if err != nil {
		return nil, err
	}
	defer func() { _ = held.Close() }()
	c, err := nft.FromFile(held)
	if err == nil {
		err = c.Close()
	}
	if err == nil && c.Port() != f.owner.Port() {
		err = errors.New("another process has started a holder of its own")
	}
	if err != nil {
		l.leave()
		return nil, err
	}
	return l, nil
}

func (f *Filter) setLink(l *link) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.link = l
}

// pause waits, or returns why not.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends the table and the holder when nothing is held. Else it leaves
// both as they are: a server that has stopped lifts no fence.
func (f *Filter) Close(ctx context.Context) error {
	f.turn <- struct{}{}
	defer func() { <-f.turn }()
	if f.closed {
		return nil
	}
	f.closed = true
	f.stop()
	f.owned.Wait()
	var err error
	if f.empty(ctx) {
		err = f.remove(ctx)
	}
	return errors.Join(err, f.release())
}

// empty reports whether it is certain that nothing is held.
func (f *Filter) empty(ctx context.Context) bool {
	readings, err := f.read(ctx, true)
	if err != nil {
		return false
	}
	for _, r := range readings {
		if len(r.elements[clients4])+len(r.elements[clients6]) > 0 {
			return false
		}
	}
	return true
}

func (f *Filter) remove(ctx context.Context) error {
	var b nft.Batch
	for _, l := range f.layouts {
		b.AddTable(l.table)
		b.DeleteTable(l.table)
	}
	if err := f.owner.Commit(ctx, &b); err != nil {
		return refused("remove the table", err)
	}
	if f.link == nil {
		return nil
	}
	err := f.link.end(ctx)
	if err == nil {
		f.link = nil
	}
	return err
}

// release closes what this process has open.
func (f *Filter) release() error {
	var errs []error
	if f.link != nil {
		f.link.leave()
	}
	for _, c := range []*nft.Conn{f.owner, f.reader} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	if f.monitor != nil {
		errs = append(errs, f.monitor.Close())
	}
	if err := errors.Join(errs...); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
