package control

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/test/testkit"
)

// proposal is a plugin with the proposal's one call, on a server of gRPC with its
// default settings.
type proposal struct {
	controlv1.UnimplementedControlServiceServer
}

func (proposal) EnableDevices(_ *controlv1.EnableDevicesRequest, s grpc.ServerStreamingServer[controlv1.DevicePluginStatus]) error {
	if err := s.Send(&controlv1.DevicePluginStatus{State: controlv1.DevicePluginStatus_SERVING}); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

// stalling reads nothing more once stalled, as a stopped process.
type stalling struct {
	net.Conn
	stalled, closed chan struct{}
	once            sync.Once
}

func (s *stalling) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	select {
	case <-s.stalled:
		<-s.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (s *stalling) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

// A server that was built with grpc.NewServer() keeps the stream: it ends those
// of clients that ping more often than each five minutes. One that hangs is
// noticed.
func TestStreamOfADefaultServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener, server := bufconn.Listen(64<<10), grpc.NewServer()
		controlv1.RegisterControlServiceServer(server, proposal{})
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(listener) }()
		stalled := make(chan struct{})
		client := testkit.Value(rpcdial.Over(func(ctx context.Context) (net.Conn, error) {
			conn, err := listener.DialContext(ctx)
			return &stalling{Conn: conn, stalled: stalled, closed: make(chan struct{})}, err
		}, connectionOptions()...))(t)
		stream := testkit.Value(controlv1.NewControlServiceClient(client).EnableDevices(t.Context(), &controlv1.EnableDevicesRequest{}))(t)
		testkit.Value(stream.Recv())(t)
		received := make(chan error, 1)
		go func() { received <- testkit.Err(stream.Recv()) }()
		select {
		case err := <-received:
			t.Errorf("the stream ended: %v", err)
		case <-time.After(12 * time.Hour):
		}
		close(stalled)
		began := time.Now()
		testkit.WantError(t, "Recv from a server that hangs", <-received, nil)
		if took := time.Since(began); took > 2*pingInterval {
			t.Errorf("noticed after %s", took)
		}
		testkit.Must(t, client.Close())
		server.Stop()
		testkit.Must(t, <-ended)
	})
}
