package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// vendor always returns one response, and keeps the last request.
type vendor struct {
	storagev1.UnimplementedIdentityServiceServer
	storagev1.UnimplementedStoragePluginServiceServer
	answer func(context.Context, proto.Message) (proto.Message, error)
	asked  chan proto.Message
}

func ask[A proto.Message](ctx context.Context, v *vendor, r proto.Message) (A, error) {
	select {
	case v.asked <- r:
	default:
	}
	a, err := v.answer(ctx, r)
	if err != nil {
		var none A
		return none, err
	}
	return a.(A), nil
}

func (v *vendor) GetPluginInfo(ctx context.Context, r *storagev1.GetPluginInfoRequest) (*storagev1.GetPluginInfoResponse, error) {
	return ask[*storagev1.GetPluginInfoResponse](ctx, v, r)
}

func (v *vendor) Probe(ctx context.Context, r *storagev1.ProbeRequest) (*storagev1.ProbeResponse, error) {
	return ask[*storagev1.ProbeResponse](ctx, v, r)
}

func (v *vendor) StoragePluginGetCapabilities(ctx context.Context, r *storagev1.StoragePluginGetCapabilitiesRequest) (*storagev1.StoragePluginGetCapabilitiesResponse, error) {
	return ask[*storagev1.StoragePluginGetCapabilitiesResponse](ctx, v, r)
}

func (v *vendor) GetSNAPProvider(ctx context.Context, r *storagev1.GetSNAPProviderRequest) (*storagev1.GetSNAPProviderResponse, error) {
	return ask[*storagev1.GetSNAPProviderResponse](ctx, v, r)
}

func (v *vendor) CreateDevice(ctx context.Context, r *storagev1.CreateDeviceRequest) (*storagev1.CreateDeviceResponse, error) {
	return ask[*storagev1.CreateDeviceResponse](ctx, v, r)
}

func (v *vendor) DeleteDevice(ctx context.Context, r *storagev1.DeleteDeviceRequest) (*storagev1.DeleteDeviceResponse, error) {
	return ask[*storagev1.DeleteDeviceResponse](ctx, v, r)
}

func (v *vendor) GetDevice(ctx context.Context, r *storagev1.GetDeviceRequest) (*storagev1.GetDeviceResponse, error) {
	return ask[*storagev1.GetDeviceResponse](ctx, v, r)
}

func (v *vendor) ListDevices(ctx context.Context, r *storagev1.ListDevicesRequest) (*storagev1.ListDevicesResponse, error) {
	return ask[*storagev1.ListDevicesResponse](ctx, v, r)
}

func serve(t *testing.T) (v *vendor, c *Client, stop func()) {
	t.Helper()
	v = &vendor{asked: make(chan proto.Message, 1)}
	path := filepath.Join(t.TempDir(), "dpu.sock")
	stop = testkit.Serve(t, path, func(s grpc.ServiceRegistrar) {
		storagev1.RegisterIdentityServiceServer(s, v)
		storagev1.RegisterStoragePluginServiceServer(s, v)
	})
	c = testkit.Open(Dial(t.Context(), "unix://"+path))(t)
	if c.Socket() != path {
		t.Error(c.Socket())
	}
	return v, c, stop
}

func everything(ctx context.Context, c *Client) map[string]func() (any, error) {
	return map[string]func() (any, error){
		"GetPluginInfo":                func() (any, error) { return c.Info(ctx) },
		"Probe":                        func() (any, error) { ready, known, err := c.Probe(ctx); return [2]bool{ready, known}, err },
		"StoragePluginGetCapabilities": func() (any, error) { return c.Capabilities(ctx) },
		"GetSNAPProvider":              func() (any, error) { return c.Provider(ctx) },
		"CreateDevice":                 func() (any, error) { return c.Create(ctx, wanted()) },
		"DeleteDevice":                 func() (any, error) { return nil, c.Delete(ctx, "v", "d") },
		"GetDevice":                    func() (any, error) { return c.Get(ctx, "v", "d") },
		"ListDevices":                  func() (any, error) { page, next, err := c.List(ctx, 7, "from"); return []any{page, next}, err },
	}
}

func wanted() Create {
	return Create{Volume: "v", Mode: request.Block, Modes: []storagev1.AccessMode{storagev1.AccessMode_ACCESS_MODE_ROX}, Contexts: contexts()}
}

func contexts() request.Contexts {
	return request.Contexts{Publish: map[string]string{"p": "1"}, Volume: map[string]string{"v": "2"}, Storage: map[string]string{"s": "3"}}
}

func TestRequestsAndResponses(t *testing.T) {
	v, c, _ := serve(t)
	all := everything(t.Context(), c)
	capability := func(of storagev1.StoragePluginServiceCapability_RPC_Type) *storagev1.StoragePluginServiceCapability {
		return &storagev1.StoragePluginServiceCapability{Type: &storagev1.StoragePluginServiceCapability_Rpc{Rpc: &storagev1.StoragePluginServiceCapability_RPC{Type: of}}}
	}
	modes := []storagev1.AccessMode{storagev1.AccessMode_ACCESS_MODE_ROX, 77}
	for _, x := range []struct {
		call         string
		sent, answer proto.Message
		want         any
	}{
		{"GetPluginInfo", &storagev1.GetPluginInfoRequest{},
			&storagev1.GetPluginInfoResponse{Name: "a.example", VendorVersion: "1", Manifest: map[string]string{"k": "v"}},
			Info{"a.example", "1", map[string]string{"k": "v"}}},
		{"Probe", &storagev1.ProbeRequest{}, &storagev1.ProbeResponse{}, [2]bool{false, false}},
		{"Probe", &storagev1.ProbeRequest{}, &storagev1.ProbeResponse{Ready: wrapperspb.Bool(false)}, [2]bool{false, true}},
		{"Probe", &storagev1.ProbeRequest{}, &storagev1.ProbeResponse{Ready: wrapperspb.Bool(true)}, [2]bool{true, true}},
		{"StoragePluginGetCapabilities", &storagev1.StoragePluginGetCapabilitiesRequest{}, &storagev1.StoragePluginGetCapabilitiesResponse{}, Capabilities{}},
		{"StoragePluginGetCapabilities", &storagev1.StoragePluginGetCapabilitiesRequest{},
			&storagev1.StoragePluginGetCapabilitiesResponse{Capabilities: []*storagev1.StoragePluginServiceCapability{capability(4), capability(1), capability(9), {}}},
			Capabilities{Block: true, List: true, All: []string{"TYPE_LIST_DEVICES", "TYPE_CREATE_DELETE_BLOCK_DEVICE", "9", "TYPE_UNSPECIFIED"}}},
		{"StoragePluginGetCapabilities", &storagev1.StoragePluginGetCapabilitiesRequest{},
			&storagev1.StoragePluginGetCapabilitiesResponse{Capabilities: []*storagev1.StoragePluginServiceCapability{capability(2), capability(3)}},
			Capabilities{Filesystem: true, Get: true, All: []string{"TYPE_CREATE_DELETE_FS_DEVICE", "TYPE_GET_DEVICE_STATS"}}},
		{"GetSNAPProvider", &storagev1.GetSNAPProviderRequest{}, &storagev1.GetSNAPProviderResponse{ProviderName: "snap"}, "snap"},
		{"CreateDevice", &storagev1.CreateDeviceRequest{
			VolumeId: "v", VolumeMode: "Block", AccessModes: modes[:1],
			PublishContext: map[string]string{"p": "1"}, VolumeContext: map[string]string{"v": "2"}, StorageParameters: map[string]string{"s": "3"},
		}, &storagev1.CreateDeviceResponse{DeviceName: "n1"}, "n1"},
		{"DeleteDevice", &storagev1.DeleteDeviceRequest{VolumeId: "v", DeviceName: "d"}, &storagev1.DeleteDeviceResponse{}, nil},
		{"GetDevice", &storagev1.GetDeviceRequest{VolumeId: "v", DeviceName: "d"}, &storagev1.GetDeviceResponse{
			AccessModes: modes, VolumeMode: "Filesystem",
			PublishContext: map[string]string{"p": "1"}, VolumeContext: map[string]string{"v": "2"}, StorageParameters: map[string]string{"s": "3"},
		}, Device{Mode: request.Filesystem, Modes: modes, Contexts: contexts()}},
		{"ListDevices", &storagev1.ListDevicesRequest{MaxEntries: 7, StartingToken: "from"}, &storagev1.ListDevicesResponse{
			Entries: []*storagev1.ListDevicesResponse_Entry{{VolumeId: "b", DeviceName: "y"}, {VolumeId: "a", DeviceName: "x"}}, NextToken: "on",
		}, []any{[]Entry{{"b", "y"}, {"a", "x"}}, "on"}},
	} {
		v.answer = func(context.Context, proto.Message) (proto.Message, error) { return x.answer, nil }
		got, err := all[x.call]()
		if err != nil {
			t.Errorf("%s: %v", x.call, err)
		}
		if diff := cmp.Diff(x.want, got); diff != "" {
			t.Errorf("%s: %s", x.call, diff)
		}
		if diff := cmp.Diff(x.sent, <-v.asked, protocmp.Transform()); diff != "" {
			t.Errorf("%s sends another thing: %s", x.call, diff)
		}
	}
}

// A plugin's UNAVAILABLE is distinguished from gRPC's for a failed connection.
func TestErrorsOfThePlugin(t *testing.T) {
	v, c, _ := serve(t)
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		v.answer = func(context.Context, proto.Message) (proto.Message, error) {
			return nil, status.Error(code, "its own words")
		}
		for method, do := range everything(t.Context(), c) {
			_, err := do()
			found, isError := errors.AsType[*Error](err)
			s, isStatus := status.FromError(fmt.Errorf("outside: %w", err))
			if !isError || !found.Answered() || !isStatus || s.Code() != code || errors.Is(err, ErrNotServed) || found.Method != method ||
				status.Convert(err).Message() != "its own words" {
				t.Errorf("%s, %s: %v", method, code, err)
			}
			if want := c.Socket() + " answered " + method + " with " + code.String() + ": its own words"; err.Error() != want {
				t.Errorf("got %q, want %q", err, want)
			}
		}
	}
	v.answer = func(context.Context, proto.Message) (proto.Message, error) {
		return nil, status.Error(codes.FailedPrecondition, strings.Repeat("ä", 3000))
	}
	if _, err := c.Provider(t.Context()); len(err.Error()) > 4300 || !strings.HasSuffix(err.Error(), "ä…") {
		t.Errorf("%d bytes: %.20q", len(err.Error()), err.Error()[len(err.Error())-8:])
	}
}

func TestNoPlugin(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "left.sock")
	l := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: left}))(t)
	l.SetUnlinkOnClose(false)
	testkit.Must(t, l.Close())
	for path, want := range map[string]error{filepath.Join(dir, "absent.sock"): fs.ErrNotExist, left: syscall.ECONNREFUSED} {
		_, err := Dial(t.Context(), path)
		if !errors.Is(err, ErrNotServed) || !errors.Is(err, want) || status.Code(err) != codes.Unavailable || strings.Count(err.Error(), path) != 1 {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := Dial(t.Context(), "dpu.sock"); !errors.Is(err, errs.Invalid) || errors.Is(err, ErrNotServed) {
		t.Errorf("a relative path: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dial(ended, left); status.Code(err) != codes.Canceled || !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that is gone: %v", err)
	}
}

// The error depends on what replaced the plugin.
func TestThePluginGoesAway(t *testing.T) {
	_, c, stop := serve(t)
	stop()
	for {
		_, err := c.Info(t.Context())
		if status.Code(err) != codes.Unavailable || !errors.Is(err, ErrNotServed) || !strings.Contains(err.Error(), c.Socket()) {
			t.Fatalf("%v", err)
		}
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	// A server that closes connections is no plugin.
	l := testkit.Value(net.Listen("unix", c.Socket()))(t)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	for {
		_, err := c.Info(t.Context())
		if !errors.Is(err, ErrNotServed) {
			t.Fatalf("%v", err)
		}
		if strings.Contains(err.Error(), "connection lost") {
			break
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	<-over
	if _, err := os.Stat(c.Socket()); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestCallerTimeout(t *testing.T) {
	v, c, _ := serve(t)
	v.answer = func(ctx context.Context, _ proto.Message) (proto.Message, error) {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	v.asked = make(chan proto.Message, 100)
	for patience := 50 * time.Millisecond; len(v.asked) == 0 && patience < time.Minute; patience *= 2 { // until a call reaches the plugin
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := c.Create(ctx, wanted())
		if cancel(); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%v", err)
		}
	}
	gone, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Delete(gone, "v", "") }()
	for deletes := false; !deletes; {
		_, deletes = (<-v.asked).(*storagev1.DeleteDeviceRequest)
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) || status.Code(err) != codes.Canceled || !strings.Contains(err.Error(), "has not answered DeleteDevice in time") {
		t.Errorf("%v", err)
	}
}
