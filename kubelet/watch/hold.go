package watch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/cleatproject/cleat/internal/backoff"
)

const (
	// A registered plugin's lost connection is re-established with delays from
	// firstCheck, in which an exiting plugin removes its file. A connection
	// that lasted for steady resets the delay.
	firstCheck, lastCheck = 100 * time.Millisecond, 30 * time.Second
	steady                = 10 * time.Second

	// deadCheck is the interval for checking an endpoint that is not served.
	deadCheck = 500 * time.Millisecond
)

// stay waits until the file or the host goes, or fails when no process has
// served the socket or the endpoint for the grace time.
func (s *socket) stay() *failure {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	expired := make(chan *failure, 1)
	if endpoint := s.status.Endpoint; endpoint != s.path && filepath.IsAbs(endpoint) {
		s.work.Go(func() {
			defer cancel()
			expired <- s.watchEndpoint(ctx, endpoint)
		})
	} else {
		expired <- nil
	}
	conn := s.conn
	s.conn = nil
	err := s.hold(ctx, s.path, s.o.Peer, conn)
	cancel()
	f := <-expired
	switch {
	case f != nil:
		s.endpointLost = true
	case err != nil: // final: a refused file cannot be listened on again
		if f = s.dead(err, deadReason, nil, s.ctx); f == nil {
			return nil
		}
	default:
		return nil
	}
	s.release()
	return f
}

// watchEndpoint is for a plugin whose registrar is another process. It fails
// when no process has served the endpoint for the grace time.
func (s *socket) watchEndpoint(ctx context.Context, endpoint string) *failure {
	for {
		err := s.hold(ctx, endpoint, nil, nil)
		if err == nil {
			return nil
		}
		back := func() bool { return !isUnserved(probe(ctx, endpoint)) }
		if f := s.dead(err, fmt.Sprintf(endpointReason, endpoint), back, ctx); f != nil || ctx.Err() != nil {
			return f
		}
		s.update(Registered, func(st *Status) {
			st.Dead, st.Step, st.Error, st.Reason, st.NextTry = false, "", "", "", time.Time{}
		})
	}
}

// hold keeps a connection to path, which shows the end of its process. It
// returns an error when no process serves path, and nil when ctx ends.
func (s *socket) hold(ctx context.Context, path string, peer func(Peer) error, conn *grpc.ClientConn) error {
	for pause := (backoff.Backoff{First: firstCheck, Most: lastCheck}); ; {
		if conn != nil {
			since := time.Now()
			lost := conn.WaitForStateChange(ctx, connectivity.Ready)
			_ = conn.Close()
			if !lost {
				return nil
			}
			if time.Since(since) >= steady {
				pause.Reset()
			}
		}
		if pause.Wait(ctx) != nil {
			return nil
		}
		dialing, cancel := context.WithTimeout(ctx, s.o.Timeouts.Dial)
		var err error
		conn, err = connect(dialing, path, peer)
		cancel()
		// The removal of the socket itself is an event of the directory.
		if isUnserved(err) && ctx.Err() == nil && (path != s.path || errors.Is(err, unix.ECONNREFUSED)) {
			return err
		}
		// Others are inconclusive: permission, file descriptors, timeout.
	}
}

// dead waits for the grace time to end, unless ctx ends or the plugin is back.
func (s *socket) dead(err error, reason string, back func() bool, ctx context.Context) *failure {
	f := &failure{step: Registered, text: err.Error(), reason: reason}
	var expired, check <-chan time.Time
	s.update(Registered, func(st *Status) {
		st.Dead, st.Step, st.Error, st.Reason = true, f.step, f.text, f.reason
		if s.o.Grace > 0 {
			st.NextTry = time.Now().Add(s.o.Grace)
			expired = time.After(s.o.Grace)
		}
	})
	if back != nil {
		ticker := time.NewTicker(deadCheck)
		defer ticker.Stop()
		check = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-expired:
			return f
		case <-check:
			if back() {
				return nil
			}
		}
	}
}
