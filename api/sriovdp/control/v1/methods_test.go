package controlv1

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

const service = "/sriovdp.control.v1.ControlService/"

// methods are called by their Go names; the names on the wire are by hand.
var methods = map[string]func(context.Context, ControlServiceClient) error{
	"EnableDevices": func(ctx context.Context, c ControlServiceClient) error {
		s, err := c.EnableDevices(ctx, &EnableDevicesRequest{})
		if err != nil {
			return err
		}
		_, err = s.Recv()
		return err
	},
	"DisableDevices": func(ctx context.Context, c ControlServiceClient) error {
		_, err := c.DisableDevices(ctx, nil)
		return err
	},
	"Heartbeat": func(ctx context.Context, c ControlServiceClient) error {
		_, err := c.Heartbeat(ctx, nil)
		return err
	},
	"GetStatus": func(ctx context.Context, c ControlServiceClient) error {
		_, err := c.GetStatus(ctx, nil)
		return err
	},
	"GetVersion": func(ctx context.Context, c ControlServiceClient) error {
		_, err := c.GetVersion(ctx, nil)
		return err
	},
}

// A client of ours asks for the published names, by a server that knows none.
func TestClientMethods(t *testing.T) {
	called := make(chan string, 1)
	client := NewControlServiceClient(serve(t, nil, grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		name, _ := grpc.Method(s.Context())
		called <- name
		return status.Error(codes.DataLoss, "heard")
	})))
	for want, call := range methods {
		if err := call(t.Context(), client); status.Code(err) != codes.DataLoss {
			t.Fatalf("%s: %v", want, err)
		}
		if got := <-called; got != service+want {
			t.Errorf("asked for %s, want %s", got, service+want)
		}
	}
}

// old serves what is published and nothing else, by the bytes.
var old = grpc.ServiceDesc{ServiceName: "sriovdp.control.v1.ControlService", Streams: []grpc.StreamDesc{{
	StreamName: "EnableDevices", ServerStreams: true,
	Handler: func(_ any, s grpc.ServerStream) error {
		var req EnableDevicesRequest
		if err := s.RecvMsg(&req); err != nil {
			return err
		}
		return s.SendMsg(&DevicePluginStatus{State: DevicePluginStatus_SERVING, ServingGeneration: req.NodeStateGeneration})
	},
}}}

// A plugin without the extensions serves our client's EnableDevices, and
// answers each other call as one that it does not know.
func TestOldPlugin(t *testing.T) {
	client := NewControlServiceClient(serve(t, func(s *grpc.Server) { s.RegisterService(&old, nil) }))
	s, err := client.EnableDevices(t.Context(), &EnableDevicesRequest{NodeStateGeneration: 9, NodeStateUid: "u", ConfigHash: "h"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Recv(); err != nil || got.State != DevicePluginStatus_SERVING || got.ServingGeneration != 9 || got.Session != "" {
		t.Errorf("status %v, %v", got, err)
	}
	for name, call := range methods {
		if name == "EnableDevices" {
			continue
		}
		if err := call(t.Context(), client); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v, want UNIMPLEMENTED", name, err)
		}
	}
}

// A server of ours serves the names, and no others.
func TestServerMethods(t *testing.T) {
	s := grpc.NewServer()
	RegisterControlServiceServer(s, UnimplementedControlServiceServer{})
	served := s.GetServiceInfo()["sriovdp.control.v1.ControlService"].Methods
	if len(served) != len(methods) {
		t.Errorf("%d methods are served, want %d", len(served), len(methods))
	}
	for _, m := range served {
		if _, known := methods[m.Name]; !known || m.IsServerStream != (m.Name == "EnableDevices") || m.IsClientStream {
			t.Errorf("served is %+v", m)
		}
	}
}

func serve(t *testing.T, register func(*grpc.Server), options ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	s := grpc.NewServer(options...)
	if register != nil {
		register(s)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return conn
}
