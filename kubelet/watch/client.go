package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/unixsock"
)

const (
	maxAnswer  = 256 << 10 // bytes
	maxHeaders = 16 << 10
	maxText    = 8 << 10 // of an error
)

var (
	errSilent = errors.New("the server sent no data")
	// No HTTP/2, or the connection was closed.
	errForeign = errors.New("the server does not speak HTTP/2, or closed the connection")
	// A handler panicked.
	errPanic = errors.New("panic")
)

type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

// peerError is from Options.Peer.
type peerError struct{ error }

func (e peerError) Unwrap() error { return e.error }

// isRefused: no process listens, or the backlog is full.
func isRefused(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EAGAIN)
}

// isUnserved: no process serves the path. Other errors are inconclusive.
func isUnserved(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}

// CheckEndpoint returns why no process serves a plugin's endpoint, or nil: also if
// that is not certain, as without permission to connect.
func CheckEndpoint(ctx context.Context, p Plugin) error {
	if !filepath.IsAbs(p.Endpoint) {
		return nil // the handler's business
	}
	if err := probe(ctx, p.Endpoint); isUnserved(err) {
		return err
	}
	return nil
}

// probe connects without sending anything.
func probe(ctx context.Context, path string) error {
	c, err := unixsock.Dial(ctx, path)
	if err != nil {
		return err
	}
	return c.Close()
}

func connect(ctx context.Context, path string, peer func(Peer) error) (*grpc.ClientConn, error) {
	raw, err := greet(ctx, path, peer)
	if err != nil {
		return nil, err
	}
	return handshake(ctx, raw)
}

// handshake waits until the server speaks HTTP/2. The connection is never
// re-established: another plugin could serve then.
func handshake(ctx context.Context, raw net.Conn) (*grpc.ClientConn, error) {
	once := make(chan net.Conn, 1)
	once <- raw
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case raw := <-once:
				return raw, nil
			default:
				return nil, errors.New("the connection was closed")
			}
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Hour}), // ctx bounds it
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithNoProxy(),
		grpc.WithMaxHeaderListSize(maxHeaders), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithInitialWindowSize(maxAnswer),                           // a fixed size avoids bandwidth pings
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10), // there can be a thousand
	)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		switch {
		case state == connectivity.TransientFailure:
			err = errForeign
		case !conn.WaitForStateChange(ctx, state):
			err = fmt.Errorf("%w: %w", errSilent, ctx.Err())
		}
		if err != nil {
			_, _ = conn.Close(), raw.Close()
			return nil, err
		}
	}
	return conn, nil
}

// dial applies Options.Peer.
func dial(ctx context.Context, path string, peer func(Peer) error) (net.Conn, error) {
	raw, err := unixsock.Dial(ctx, path)
	if err != nil {
		return nil, dialError{err}
	}
	if peer == nil {
		return raw, nil
	}
	process, err := unixsock.PeerCredentials(raw)
	if err == nil {
		err = peer(Peer(process))
	}
	if err != nil {
		return nil, peerError{fmt.Errorf("the process that serves the socket is refused: %w", errors.Join(err, raw.Close()))}
	}
	return raw, nil
}

func getInfo(ctx context.Context, conn *grpc.ClientConn, within time.Duration) (Plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	info, err := registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{})
	return Plugin{Type: info.GetType(), Name: info.GetName(), Endpoint: info.GetEndpoint(), Versions: info.GetSupportedVersions()}, err
}

func notify(ctx context.Context, conn *grpc.ClientConn, within time.Duration, why string) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := registration.NewRegistrationClient(conn).NotifyRegistrationStatus(ctx,
		&registration.RegistrationStatus{PluginRegistered: why == "", Error: sendable(why)})
	return err
}

// sendable returns valid UTF-8 of limited length.
func sendable(text string) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}

func (h *Host) call(p Plugin, step Phase) *failure {
	handler := h.handler(p.Type)
	do, bound := handler.Validate, h.o.Timeouts.Validate
	switch step {
	case Registering:
		do, bound = handler.Register, h.o.Timeouts.Register
	case DeRegistering:
		do, bound = handler.DeRegister, h.o.Timeouts.DeRegister
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(h.calls, bound)
	defer cancel()
	err := h.guarded(ctx, p, do)
	h.metrics.step(step, begun)
	if step == DeRegistering {
		h.metrics.deregistered(p.Type, err)
	}
	if err == nil {
		return nil
	}
	return &failure{
		step: step, text: err.Error(), reason: handlerReason(step, err, p, bound), interrupted: ctx.Err() != nil || errors.Is(err, errPanic),
	}
}

func (h *Host) guarded(ctx context.Context, p Plugin, do func(context.Context, Plugin) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v", errPanic, v)
			h.metrics.panics.Inc()
			h.o.Logger.Error("handler panicked", "type", p.Type, "name", p.Name, "socket", p.Socket, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	return do(ctx, p)
}
