package storagev1

import (
	"context"
	"net"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

const (
	identity = "/nvidia.storage.plugins.v1.IdentityService/"
	plugin   = "/nvidia.storage.plugins.v1.StoragePluginService/"
)

// methods are called by their Go names; the names on the wire are by hand.
var methods = map[string]func(context.Context, *grpc.ClientConn) error{
	identity + "GetPluginInfo": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := NewIdentityServiceClient(c).GetPluginInfo(ctx, nil)
		return err
	},
	identity + "Probe": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := NewIdentityServiceClient(c).Probe(ctx, nil)
		return err
	},
	plugin + "StoragePluginGetCapabilities": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := NewStoragePluginServiceClient(c).StoragePluginGetCapabilities(ctx, nil)
		return err
	},
	plugin + "GetSNAPProvider": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := NewStoragePluginServiceClient(c).GetSNAPProvider(ctx, nil)
		return err
	},
	plugin + "CreateDevice": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := NewStoragePluginServiceClient(c).CreateDevice(ctx, nil)
		return err
	},
	plugin + "DeleteDevice": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := NewStoragePluginServiceClient(c).DeleteDevice(ctx, nil)
		return err
	},
	plugin + "GetDevice": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := NewStoragePluginServiceClient(c).GetDevice(ctx, nil)
		return err
	},
	plugin + "ListDevices": func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := NewStoragePluginServiceClient(c).ListDevices(ctx, nil)
		return err
	},
}

// A client of ours asks for the published methods, by a server that knows none.
func TestClientMethods(t *testing.T) {
	called := make(chan string, 1)
	conn := serve(t, nil, grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		name, _ := grpc.Method(s.Context())
		called <- name
		return status.Error(codes.DataLoss, "heard")
	}))
	for want, call := range methods {
		err := call(t.Context(), conn)
		if status.Code(err) != codes.DataLoss {
			t.Fatalf("%s: %v", want, err)
		}
		if got := <-called; got != want {
			t.Errorf("asked for %s, published is %s", got, want)
		}
	}
}

// A server of ours serves the published methods and no others.
func TestServerMethods(t *testing.T) {
	register := func(s *grpc.Server) {
		RegisterIdentityServiceServer(s, UnimplementedIdentityServiceServer{})
		RegisterStoragePluginServiceServer(s, answering{})
		var served, want []string
		for name, info := range s.GetServiceInfo() {
			for _, m := range info.Methods {
				served = append(served, "/"+name+"/"+m.Name)
			}
		}
		for name := range methods {
			want = append(want, name)
		}
		slices.Sort(served)
		slices.Sort(want)
		if diff := cmp.Diff(want, served); diff != "" {
			t.Errorf("published -, served +:\n%s", diff)
		}
	}
	conn := serve(t, register)
	in, out := &GetDeviceRequest{VolumeId: "v", DeviceName: "d"}, &GetDeviceResponse{}
	if err := conn.Invoke(t.Context(), plugin+"GetDevice", in, out); err != nil || out.VolumeMode != "v d" {
		t.Errorf("GetDevice by its name on the wire: %v, %v", out, err)
	}
	// What a plugin does not implement answers as the contract says.
	if err := conn.Invoke(t.Context(), plugin+"ListDevices", in, &ListDevicesResponse{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("ListDevices: %v, want UNIMPLEMENTED", err)
	}
}

type answering struct {
	UnimplementedStoragePluginServiceServer
}

func (answering) GetDevice(_ context.Context, req *GetDeviceRequest) (*GetDeviceResponse, error) {
	return &GetDeviceResponse{VolumeMode: req.VolumeId + " " + req.DeviceName}, nil
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
