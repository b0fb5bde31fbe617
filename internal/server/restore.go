package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// restorePoll is the interval of checks for lost sockets.
const restorePoll = 2 * time.Second

// lastingOf returns the restorable socket of a listener, or nil.
func lastingOf(l net.Listener) *unixsock.Lasting {
	for {
		switch now := l.(type) {
		case *unixsock.Lasting:
			return now
		case interface{ Unwrap() net.Listener }:
			l = now.Unwrap()
		default:
			return nil
		}
	}
}

// restoring creates a lost socket again while serve runs.
func restoring(ctx context.Context, logger *slog.Logger, l net.Listener, serve func() error) error {
	socket := lastingOf(l)
	if socket == nil {
		return serve()
	}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { restore(ctx, logger, socket) })
	defer work.Wait()
	defer cancel()
	return serve()
}

func restore(ctx context.Context, logger *slog.Logger, l *unixsock.Lasting) {
	ticker := time.NewTicker(restorePoll)
	defer ticker.Stop()
	for failed := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		lost, err := l.Restore(ctx)
		switch {
		case err != nil && l.Check() == nil: // it was created again
			logger.Warn("closing lost socket failed", "socket", l.Addr().String(), "err", err)
		case err != nil && !failed && ctx.Err() == nil:
			logger.Error("socket lost, will retry", "socket", l.Addr().String(), "err", err)
		case err == nil && lost != unixsock.Ours:
			logger.Warn("socket lost, created again", "socket", l.Addr().String(), "reason", string(lost))
		}
		failed = err != nil
	}
}

// listening is the listener of a service, for readiness.
type listening struct {
	mu    sync.Mutex
	bound bool
	l     net.Listener // nil: nothing to serve
}

func (s *listening) bind(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bound, s.l = true, l
}

func (s *listening) check(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.bound {
		return errors.New("not listening yet")
	}
	if socket := lastingOf(s.l); socket != nil {
		return socket.Check()
	}
	return nil
}
