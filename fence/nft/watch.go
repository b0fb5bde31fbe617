package nft

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/internal/linux/nft"
)

// Changed receives a (coalesced) value when another program might have changed
// the table, or the holder died. The caller then calls Held and Apply.
func (f *Filter) Changed() <-chan struct{} { return f.changed }

func (f *Filter) signal() {
	select {
	case f.changed <- struct{}{}:
	default: // pending
	}
}

func (f *Filter) watchChanges(ctx context.Context) {
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
			f.log.WarnContext(ctx, "packet filter events could not be read, will retry", "err", err)
			f.signal()
			if backoff.Sleep(ctx, minBackoff) != nil {
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
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// superviseHolder replaces dead holders; this process's netlink socket owns the
// table meanwhile.
func (f *Filter) superviseHolder(ctx context.Context) {
	for {
		f.mu.Lock()
		l := f.link
		f.mu.Unlock()
		if l.wait(ctx) != nil {
			return
		}
		l.reap()
		f.setLink(nil)
		f.log.WarnContext(ctx, "fence holder died, starting another", "pid", l.pid)
		f.signal()
		for pause := (backoff.Backoff{First: minBackoff, Most: maxBackoff}); ; {
			next, err := f.replace(ctx)
			if err == nil {
				f.setLink(next)
				f.log.InfoContext(ctx, "fence holder started", "pid", next.pid)
				break
			}
			if ctx.Err() != nil {
				return
			}
			f.log.ErrorContext(ctx, "cannot start a fence holder, table unprotected if this server dies, will retry", "err", err)
			if pause.Wait(ctx) != nil {
				return
			}
		}
	}
}

func (f *Filter) replace(ctx context.Context) (*link, error) {
	l, held, err := f.client.open(ctx, f.owner.File)
	if err != nil {
		return nil, err
	}
	defer func() { _ = held.Close() }()
	c, err := nft.FromFile(held)
	if err == nil {
		err = c.Close()
	}
	if err == nil && c.Port() != f.owner.Port() {
		err = errors.New("another process has started its own fence holder")
	}
	if err != nil {
		l.detach()
		return nil, err
	}
	return l, nil
}

func (f *Filter) setLink(l *link) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.link = l
}

// Close removes the table and ends the holder only if no block is in force:
// stopping the server lifts no fence.
func (f *Filter) Close(ctx context.Context) error {
	f.lock <- struct{}{}
	defer func() { <-f.lock }()
	if f.closed {
		return nil
	}
	f.closed = true
	f.stop()
	f.running.Wait()
	var err error
	if f.empty(ctx) {
		err = f.remove(ctx)
	}
	return errors.Join(err, f.release())
}

// empty: the tables certainly contain no clients.
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
		return wrapKind("remove the fence table", err)
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

func (f *Filter) release() error {
	var errs []error
	if f.link != nil {
		f.link.detach()
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
