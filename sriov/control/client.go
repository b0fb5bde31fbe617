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

// ErrNobody: nobody serves the control socket. The plugin does not run, or is
// one without a control interface, which offers its devices by itself.
var ErrNobody = errors.New("nobody serves the control socket")

// silence is how long a plugin may say nothing during a call before it is asked
// whether it lives, and how long it may then take. gRPC asks no sooner.
const silence = 10 * time.Second

// Version is who serves a control socket.
type Version struct {
	Name       string
	Version    string
	Extensions int
}

// Withdrawal is what became of a Disable.
type Withdrawal struct {
	// Acknowledged: the plugin said that no Allocate runs and that the kubelet was
	// told that there is no device.
	Acknowledged bool
	Confirmed    bool    // the kubelet itself said that it offers none
	InUse        []InUse // that running pods still have; known with Confirmed only
	Reason       string  // why it is not acknowledged
}

// Client asks a plugin. It may be used by several goroutines, and connects once.
// What the plugin says no with is an *End.
type Client struct {
	socket  string
	conn    *grpc.ClientConn
	service controlv1.ControlServiceClient
}

// Dial connects to a control socket by its absolute path, or as unix:///path.
// Errors: ErrNobody, and what the file system says, as fs.ErrPermission.
func Dial(ctx context.Context, socket string) (*Client, error) {
	path, err := unixsock.ParseEndpoint(socket)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	conn, err := rpcdial.Connect(ctx, path, rpcdial.Listening(), grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: silence, Timeout: silence}))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", ErrNobody, err)
	case err != nil:
		return nil, err
	}
	return &Client{socket: path, conn: conn, service: controlv1.NewControlServiceClient(conn)}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Status asks the plugin how it is. A plugin that speaks the proposal only
// refuses with Unimplemented.
func (c *Client) Status(ctx context.Context) (gate.Status, error) {
	m, err := ask(ctx, c.service.GetStatus, &controlv1.GetStatusRequest{})
	if err != nil {
		return gate.Status{}, fmt.Errorf("GetStatus at %s: %w", c.socket, err)
	}
	return statusOf(m), nil
}

// Version asks who serves.
func (c *Client) Version(ctx context.Context) (Version, error) {
	m, err := ask(ctx, c.service.GetVersion, &controlv1.GetVersionRequest{})
	if err != nil {
		return Version{}, fmt.Errorf("GetVersion at %s: %w", c.socket, err)
	}
	return Version{m.GetName(), m.GetVersion(), int(m.GetExtensions())}, nil
}

// Disable takes the devices back from a session, or from whoever holds them when
// it is empty, and returns when that is done. The plugin gives up waiting with
// DeadlineExceeded after a bound of its own; it goes on, and may be asked again.
func (c *Client) Disable(ctx context.Context, session string) (Withdrawal, error) {
	m, err := ask(ctx, c.service.DisableDevices, &controlv1.DisableDevicesRequest{Session: session})
	if err != nil {
		return Withdrawal{}, fmt.Errorf("DisableDevices at %s: %w", c.socket, err)
	}
	return Withdrawal{Acknowledged: true, Confirmed: m.GetKubeletConfirmed(), InUse: inUseOf(m)}, nil
}

// ask makes a call. What the plugin itself answered is an *End.
func ask[Q, A any](ctx context.Context, method func(context.Context, *Q, ...grpc.CallOption) (*A, error), request *Q) (*A, error) {
	attempt, heard := rpcdial.Listen(ctx)
	answer, err := method(attempt, request)
	if err == nil {
		return answer, nil
	}
	return nil, outcome(ctx, heard, err)
}

// outcome tells the plugin's word from what befell the call: gRPC gives the same
// codes to both.
func outcome(ctx context.Context, heard *rpcdial.Heard, err error) error {
	st := status.Convert(err)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("no answer in time: %w", ctx.Err())
	case heard.Ended(ctx, st.Code()) != nil: // a moment before the context sees it
		return fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)
	case heard.FromServer():
		return &End{Code: st.Code(), Reason: text(st.Message())}
	}
	return fmt.Errorf("the connection failed: %s", text(st.Message()))
}
