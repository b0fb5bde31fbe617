package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/sriov/gate"
)

// ErrNotServed: the plugin does not run, or has no control interface and always
// offers its devices.
var ErrNotServed = errors.New("no process serves the control socket")

const (
	// pingInterval is longer than the five minutes between two pings that servers
	// of gRPC permit by default: one that gets them more often ends the stream
	// (ENHANCE_YOUR_CALM, too_many_pings).
	pingInterval = 6 * time.Minute
	pingTimeout  = 20 * time.Second
)

// connectionOptions are for any server. Heartbeats notice a hung plugin earlier,
// if it has the extensions.
func connectionOptions() []grpc.DialOption {
	return []grpc.DialOption{
		rpcdial.Listening(), grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingInterval, Timeout: pingTimeout}),
	}
}

// Version is the answer of GetVersion.
type Version struct {
	Name       string
	Version    string
	Extensions int
}

// Client is a client of a control socket, safe for concurrent use. An error of
// the plugin is a *gate.End.
type Client struct {
	socket  string
	conn    *grpc.ClientConn
	service controlv1.ControlServiceClient
}

// Dial connects to an absolute path or unix:///path. Errors: ErrNotServed, and
// file system errors such as fs.ErrPermission.
func Dial(ctx context.Context, socket string) (*Client, error) {
	path, err := unixsock.ParseEndpoint(socket)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	conn, err := rpcdial.Connect(ctx, path, connectionOptions()...)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", ErrNotServed, err)
	case err != nil:
		return nil, err
	}
	return &Client{socket: path, conn: conn, service: controlv1.NewControlServiceClient(conn)}, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Status calls GetStatus. A plugin without the extensions answers
// Unimplemented.
func (c *Client) Status(ctx context.Context) (gate.Status, error) {
	m, err := invoke(ctx, c.service.GetStatus, &controlv1.GetStatusRequest{})
	if err != nil {
		return gate.Status{}, fmt.Errorf("GetStatus at %s: %w", c.socket, err)
	}
	return statusOf(m), nil
}

// Version calls GetVersion.
func (c *Client) Version(ctx context.Context) (Version, error) {
	m, err := invoke(ctx, c.service.GetVersion, &controlv1.GetVersionRequest{})
	if err != nil {
		return Version{}, fmt.Errorf("GetVersion at %s: %w", c.socket, err)
	}
	return Version{m.GetName(), m.GetVersion(), int(m.GetExtensions())}, nil
}

// Disable withdraws the devices from a session, or any holder if it is empty,
// and waits. After DeadlineExceeded the plugin continues; the call can be
// repeated.
func (c *Client) Disable(ctx context.Context, session string) (gate.Withdrawal, error) {
	m, err := invoke(ctx, c.service.DisableDevices, &controlv1.DisableDevicesRequest{Session: session})
	if err != nil {
		return gate.Withdrawal{}, fmt.Errorf("DisableDevices at %s: %w", c.socket, err)
	}
	return gate.Withdrawal{Acknowledged: true, Confirmed: m.GetKubeletConfirmed(), InUse: inUseOf(m)}, nil
}

// An error of the plugin is a *gate.End.
func invoke[Q, A any](ctx context.Context, method func(context.Context, *Q, ...grpc.CallOption) (*A, error), request *Q) (*A, error) {
	attempt, response := rpcdial.Listen(ctx)
	answer, err := method(attempt, request)
	if err == nil {
		return answer, nil
	}
	return nil, outcome(ctx, response, err)
}

// outcome separates the plugin's errors from gRPC's, which have the same codes.
func outcome(ctx context.Context, response *rpcdial.CallEnd, err error) error {
	st := status.Convert(err)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("no answer before the deadline: %w", ctx.Err())
	case response.Ended(ctx, st.Code()) != nil: // slightly early
		return fmt.Errorf("no answer before the deadline: %w", context.DeadlineExceeded)
	case response.FromServer():
		return &gate.End{Code: st.Code(), Reason: text(st.Message())}
	}
	return fmt.Errorf("the connection failed: %s", text(st.Message()))
}
