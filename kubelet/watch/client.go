package watch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// maxAnswer bounds what a plugin may say, in bytes.
const maxAnswer = 256 << 10

// client speaks with one plugin over one connection.
type client struct {
	conn *grpc.ClientConn
	rpc  registration.RegistrationClient
}

// connect makes the connection and waits until the plugin speaks HTTP/2 on it.
func connect(ctx context.Context, path string, peer func(Peer) error) (*client, error) {
	raw, err := dial(ctx, path, peer)
	if err != nil {
		return nil, err
	}
	c, err := newClient(raw)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	if err := c.ready(ctx); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// dialError is a failure before anything was said.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

func dial(ctx context.Context, path string, peer func(Peer) error) (net.Conn, error) {
	raw, err := unixsock.Dial(ctx, path)
	if err != nil {
		return nil, dialError{err}
	}
	if peer == nil {
		return raw, nil
	}
	who, err := unixsock.PeerCredentials(raw)
	if err == nil {
		err = peer(Peer(who))
	}
	if err != nil {
		return nil, errors.Join(peerError{fmt.Errorf("the process that serves the socket is refused: %w", err)}, raw.Close())
	}
	return raw, nil
}

// peerError is a refusal by Options.Peer.
type peerError struct{ error }

func (e peerError) Unwrap() error { return e.error }

// retryable: somebody may listen in a moment.
func retryable(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EAGAIN)
}

// newClient takes the connection over. It is used once: when it breaks, the
// calls fail, and nothing is dialled behind the host's back. The options keep
// a connection that lives for two calls cheap.
func newClient(raw net.Conn) (*client, error) {
	once := make(chan net.Conn, 1)
	once <- raw
	conn, err := grpc.NewClient("passthrough:///plugin",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case raw := <-once:
				return raw, nil
			default:
				return nil, errEnded
			}
		}),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithDisableHealthCheck(),
		grpc.WithIdleTimeout(0),
		grpc.WithReadBufferSize(4<<10),
		grpc.WithWriteBufferSize(4<<10),
		grpc.WithStaticStreamWindowSize(maxAnswer),
		grpc.WithStaticConnWindowSize(maxAnswer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
	)
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, rpc: registration.NewRegistrationClient(conn)}, nil
}

var errEnded = errors.New("the connection has ended")

// ready waits for the plugin's side of the handshake.
func (c *client) ready(ctx context.Context) error {
	c.conn.Connect()
	for {
		switch state := c.conn.GetState(); state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			// Only a call tells why.
			_, err := c.rpc.GetInfo(ctx, &registration.InfoRequest{})
			if err == nil || status.Code(err) == codes.DeadlineExceeded {
				err = errEnded
			}
			return err
		default:
			if !c.conn.WaitForStateChange(ctx, state) {
				return ctx.Err()
			}
		}
	}
}

// usable reports whether the connection still stands.
func (c *client) usable() bool { return c.conn.GetState() == connectivity.Ready }

// info asks the plugin who it is.
func (c *client) info(ctx context.Context, within time.Duration) (Plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	info, err := c.rpc.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return Plugin{}, err
	}
	return Plugin{Type: info.GetType(), Name: info.GetName(), Endpoint: info.GetEndpoint(), Versions: info.GetSupportedVersions()}, nil
}

// notify tells the plugin that it was registered, or why not.
func (c *client) notify(ctx context.Context, within time.Duration, why string) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := c.rpc.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: why == "", Error: why})
	return err
}

func (c *client) close() { _ = c.conn.Close() }
