package server

import (
	"cmp"
	"context"
	"errors"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// Service is a part that serves gRPC on one listener.
type Service struct {
	Name string     // of the part
	GRPC GRPCConfig // without Logger and Metrics
	// Register is called before the listener exists.
	Register func(r grpc.ServiceRegistrar) error
	// Listen binds the listener; calls wait from then on. nil: nothing to
	// serve.
	Listen func(ctx context.Context) (net.Listener, error)
	// Event and Attrs are logged at the start.
	Event string
	Attrs []any
	// CancelWaiting cancels waiting calls at the stop. Their work is recorded and
	// continues with the next request.
	CancelWaiting func(ctx context.Context) error

	breakOffAfter time.Duration
}

// breakOffAfter is for in-flight calls, before CancelWaiting.
const breakOffAfter = 5 * time.Second

// AddService adds a gRPC service. Its socket is created again when another program
// removes it; until then the process is not ready.
func (s *Server) AddService(v Service) {
	var (
		g     *GRPC
		l     net.Listener
		state listening
	)
	s.Check(v.Name+" socket", state.check)
	s.Add(Part{
		Name: v.Name,
		Prepare: func(ctx context.Context) (err error) {
			v.GRPC.Logger, v.GRPC.Metrics = s.Logger, s.Metrics
			if g, err = NewGRPC(v.GRPC); err != nil {
				return err
			}
			if err := v.Register(g); err != nil {
				return err
			}
			if l, err = v.Listen(ctx); err != nil {
				return err
			}
			state.bind(l)
			return nil
		},
		Run: func(ctx context.Context) error {
			if l == nil {
				return nil
			}
			s.Logger.Info(v.Event, v.Attrs...)
			return restoring(ctx, s.Logger, l, func() error { return g.Serve(ctx, l) })
		},
		Stop: func(ctx context.Context) error {
			switch {
			case l == nil:
				return nil
			case v.CancelWaiting == nil:
				return g.Drain(ctx)
			}
			return v.drainOrBreakOff(ctx, g)
		},
	})
}

// drainOrBreakOff cancels in-flight calls after breakOffAfter.
func (v *Service) drainOrBreakOff(ctx context.Context, g *GRPC) error {
	drained := make(chan error, 1)
	go func() { drained <- g.Drain(ctx) }()
	short, cancel := context.WithTimeout(ctx, cmp.Or(v.breakOffAfter, breakOffAfter))
	defer cancel()
	select {
	case err := <-drained:
		return err
	case <-short.Done():
	}
	return errors.Join(v.CancelWaiting(ctx), <-drained)
}

// ListenEndpoint binds --endpoint for root and --socket-group.
func (s *Server) ListenEndpoint(ctx context.Context) (net.Listener, error) {
	path, err := unixsock.ParseEndpoint(s.Endpoint)
	if err != nil {
		return nil, err
	}
	a := unixsock.Address{Path: path, Group: s.SocketGroup}
	if filepath.Dir(s.StatusSocket) == filepath.Dir(path) {
		a.Beside = filepath.Base(s.StatusSocket)
	}
	if s.SocketGroup != "" {
		a.Mode = 0o660
	}
	l, err := unixsock.ListenLasting(ctx, a)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// ListenPrivileged binds a socket for calls of root and AllowUIDs. With
// AllowUIDs all users can connect, and their peer credentials are checked.
func (s *Server) ListenPrivileged(ctx context.Context, a unixsock.Address) (net.Listener, error) {
	var uids []uint32
	for _, uid := range s.AllowUIDs {
		uids = append(uids, uint32(uid))
	}
	if len(uids) > 0 {
		a.Mode, a.DirMode = 0o666, 0o755
	}
	l, err := unixsock.ListenLasting(ctx, a)
	if err != nil {
		return nil, err
	}
	return unixsock.AllowUIDs(l, func(who unixsock.Credentials) {
		s.Logger.Warn("caller refused, user not allowed", "user", who.UID, "pid", who.PID)
	}, uids...), nil
}
