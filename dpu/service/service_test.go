package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/dputest"
	"github.com/cleatproject/cleat/dpu/plugin"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	block      = storagev1.StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_BLOCK_DEVICE
	filesystem = storagev1.StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_FS_DEVICE
	get        = storagev1.StoragePluginServiceCapability_RPC_TYPE_GET_DEVICE_STATS
	list       = storagev1.StoragePluginServiceCapability_RPC_TYPE_LIST_DEVICES
)

// The published text applies to the whole server.
func TestContract(t *testing.T) {
	contexts := func(_ testing.TB, volumeID string) dputest.Contexts {
		return dputest.Contexts{Volume: map[string]string{"target": volumeID}}
	}
	for name, offer := range map[string]plugin.Offer{
		"both": {Block: true, Filesystem: true}, "block": {Block: true}, "filesystem": {Filesystem: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			m.offer = offer
			conn, _ := serve(t, config(m))
			o := dputest.Options{
				Conn: conn, Announced: []dputest.Capability{get, list}, Patience: 100 * time.Millisecond,
				Unusable: func(testing.TB, string, string) dputest.Contexts { return dputest.Contexts{} },
			}
			if offer.Block {
				o.Block, o.Announced = contexts, append(o.Announced, block)
			}
			if offer.Filesystem {
				o.Filesystem, o.Announced = contexts, append(o.Announced, filesystem)
			}
			dputest.Run(t, o)
		})
	}
}

// calls are valid calls of all methods.
func calls(i storagev1.IdentityServiceClient, p storagev1.StoragePluginServiceClient) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"GetPluginInfo": func(ctx context.Context) error {
			_, err := i.GetPluginInfo(ctx, &storagev1.GetPluginInfoRequest{})
			return err
		},
		"Probe": func(ctx context.Context) error {
			_, err := i.Probe(ctx, &storagev1.ProbeRequest{})
			return err
		},
		"StoragePluginGetCapabilities": func(ctx context.Context) error {
			_, err := p.StoragePluginGetCapabilities(ctx, &storagev1.StoragePluginGetCapabilitiesRequest{})
			return err
		},
		"GetSNAPProvider": func(ctx context.Context) error {
			_, err := p.GetSNAPProvider(ctx, &storagev1.GetSNAPProviderRequest{})
			return err
		},
		"CreateDevice": func(ctx context.Context) error {
			_, err := p.CreateDevice(ctx, create("v"))
			return err
		},
		"DeleteDevice": func(ctx context.Context) error {
			_, err := p.DeleteDevice(ctx, &storagev1.DeleteDeviceRequest{VolumeId: "v"})
			return err
		},
		"GetDevice": func(ctx context.Context) error {
			_, err := p.GetDevice(ctx, &storagev1.GetDeviceRequest{VolumeId: "v"})
			return err
		},
		"ListDevices": func(ctx context.Context) error {
			_, err := p.ListDevices(ctx, &storagev1.ListDevicesRequest{})
			return err
		},
	}
}

func create(id string) *storagev1.CreateDeviceRequest {
	return &storagev1.CreateDeviceRequest{
		VolumeId: id, VolumeMode: "Block", AccessModes: []storagev1.AccessMode{storagev1.AccessMode_ACCESS_MODE_RWO},
		VolumeContext: map[string]string{"target": id}, PublishContext: map[string]string{"p": "1"}, StorageParameters: map[string]string{"s": "2"},
	}
}

// Any error of Devices results in a code of the contract.
func TestEveryFailureOfEveryCall(t *testing.T) {
	m := newMemory()
	conn, _ := serve(t, config(m))
	all := calls(storagev1.NewIdentityServiceClient(conn), storagev1.NewStoragePluginServiceClient(conn))
	failing := []string{"Probe", "StoragePluginGetCapabilities", "CreateDevice", "DeleteDevice", "GetDevice", "ListDevices"}
	for _, c := range []struct {
		name string
		err  error
		not  map[string]codes.Code // instead of FAILED_PRECONDITION
	}{
		{"absent", fmt.Errorf("volume v: %w", plugin.ErrNotFound), map[string]codes.Code{"GetDevice": codes.NotFound}},
		{"unserved", fmt.Errorf("volume_mode Block: %w", plugin.ErrUnsupported), nil},
		{"a bad token", fmt.Errorf("inside: %w", request.ErrToken), nil},
		{"invalid", errs.Errorf(errs.Invalid, "nsId is 0"), nil},
		{"not found", errs.Errorf(errs.NotFound, "no such pool"), nil},
		{"busy", errs.Errorf(errs.Busy, "ask again"), nil},
		{"unavailable", errs.Errorf(errs.Unavailable, "SNAP does not answer"), nil},
		{"internal", errors.New("a fault"), nil},
		{"a deadline inside", fmt.Errorf("SNAP: %w", context.DeadlineExceeded), nil},
		{"a cancel inside", fmt.Errorf("SNAP: %w", context.Canceled), nil},
		{"two things", errors.Join(plugin.ErrNotFound, context.DeadlineExceeded), map[string]codes.Code{"GetDevice": codes.NotFound}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.fail = func(context.Context, string) error { return c.err }
			for _, call := range failing {
				want, particular := c.not[call]
				if !particular {
					want = codes.FailedPrecondition
				}
				err := all[call](t.Context())
				if status.Code(err) != want || !strings.Contains(status.Convert(err).Message(), c.err.Error()) {
					t.Errorf("%s: %v, want %s with %q", call, err, want, c.err)
				}
			}
			for _, call := range []string{"GetPluginInfo", "GetSNAPProvider"} {
				if err := all[call](t.Context()); err != nil {
					t.Errorf("%s: %v", call, err)
				}
			}
		})
	}
}

// Cancelled and timed out calls return CANCELED and DEADLINE_EXCEEDED.
func TestCancelledCalls(t *testing.T) {
	for name, particular := range map[string]error{"alone": nil, "with another answer": plugin.ErrUnsupported} {
		for _, c := range []struct {
			code codes.Code
			end  func(context.Context) (context.Context, context.CancelFunc)
		}{
			{codes.Canceled, func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				return ctx, cancel
			}},
			{codes.DeadlineExceeded, func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 0)
			}},
		} {
			m := newMemory()
			m.fail = func(ctx context.Context, _ string) error {
				return errors.Join(fmt.Errorf("SNAP: %w", context.Cause(ctx)), particular)
			}
			s := testkit.Value(New(config(m)))(t)
			ctx, cancel := c.end(t.Context())
			defer cancel()
			for call, err := range map[string]error{
				"Probe":        second(s.Probe(ctx, &storagev1.ProbeRequest{})),
				"DeleteDevice": second(s.DeleteDevice(ctx, &storagev1.DeleteDeviceRequest{VolumeId: "v"})),
				"GetDevice":    second(s.GetDevice(ctx, &storagev1.GetDeviceRequest{VolumeId: "v"})),
				"ListDevices":  second(s.ListDevices(ctx, &storagev1.ListDevicesRequest{})),
			} {
				if Code(err) != c.code || !strings.Contains(err.Error(), "SNAP: ") {
					t.Errorf("%s, %s: %s: %v", name, call, Code(err), err)
				}
			}
			m.fail = func(context.Context, string) error { return errs.Errorf(errs.Precondition, "no such pool") }
			if err := second(s.Probe(ctx, &storagev1.ProbeRequest{})); Code(err) != codes.FailedPrecondition {
				t.Errorf("what failed while the caller went: %v", err)
			}
			m.fail = func(ctx context.Context, _ string) error { return ctx.Err() }
			if particular == nil {
				if err := second(s.CreateDevice(ctx, create("v"))); Code(err) != c.code {
					t.Errorf("CreateDevice: %v", err)
				}
			}
		}
	}
}

func second[A any](_ A, err error) error { return err }

// Bad input is refused without a call to Devices.
func TestBadInput(t *testing.T) {
	m := newMemory()
	conn, log := serve(t, config(m))
	p := storagev1.NewStoragePluginServiceClient(conn)
	const key = "NVMeTLSkey-1:01:aaaaaaaaaaaaaaaaaaaaaaaaaaaa:"
	with := func(change func(*storagev1.CreateDeviceRequest)) *storagev1.CreateDeviceRequest {
		r := create("v")
		change(r)
		return r
	}
	for name, c := range map[string]struct {
		err  error
		code codes.Code
		want string
	}{
		"create without a volume": {second(p.CreateDevice(t.Context(), &storagev1.CreateDeviceRequest{})), codes.FailedPrecondition, "volume_id is missing"},
		"create in another mode":  {second(p.CreateDevice(t.Context(), with(func(r *storagev1.CreateDeviceRequest) { r.VolumeMode = "Raw" }))), codes.FailedPrecondition, "Block or Filesystem"},
		"create for other access": {second(p.CreateDevice(t.Context(), with(func(r *storagev1.CreateDeviceRequest) { r.AccessModes = append(r.AccessModes, 9) }))), codes.FailedPrecondition, "RWOP (4)"},
		"create with a key":       {second(p.CreateDevice(t.Context(), with(func(r *storagev1.CreateDeviceRequest) { r.VolumeContext["psk"] = key }))), codes.FailedPrecondition, "key directory"},
		"delete without a volume": {second(p.DeleteDevice(t.Context(), &storagev1.DeleteDeviceRequest{})), codes.FailedPrecondition, "volume_id is missing"},
		"delete elsewhere":        {second(p.DeleteDevice(t.Context(), &storagev1.DeleteDeviceRequest{VolumeId: "../x"})), codes.OK, ""},
		"get without a volume":    {second(p.GetDevice(t.Context(), &storagev1.GetDeviceRequest{})), codes.FailedPrecondition, "volume_id is missing"},
		"list fewer than none":    {second(p.ListDevices(t.Context(), &storagev1.ListDevicesRequest{MaxEntries: -1})), codes.FailedPrecondition, "max_entries -1"},
		"list from nowhere":       {second(p.ListDevices(t.Context(), &storagev1.ListDevicesRequest{StartingToken: "x"})), codes.Aborted, "start again without a token"},
	} {
		if status.Code(c.err) != c.code || !strings.Contains(status.Convert(c.err).Message(), c.want) {
			t.Errorf("%s: %v, want %s with %q", name, c.err, c.code, c.want)
		}
	}
	for _, call := range m.asked {
		if call != "Offer" {
			t.Errorf("%s was called", call)
		}
	}
	if text := log.String(); strings.Contains(text, key) || !strings.Contains(text, "CreateDevice") {
		t.Errorf("the log: %s", text)
	}
}

// An unsupported volume mode is FAILED_PRECONDITION; UNIMPLEMENTED if no mode
// is supported.
func TestUnsupportedVolumeModes(t *testing.T) {
	for _, c := range []struct {
		name    string
		offer   plugin.Offer
		request *storagev1.CreateDeviceRequest
		code    codes.Code
		want    string
	}{
		{"one mode", plugin.Offer{Filesystem: true}, create("v"), codes.FailedPrecondition, "volume_mode Block"},
		{"the other mode", plugin.Offer{Block: true}, &storagev1.CreateDeviceRequest{VolumeId: "v"}, codes.FailedPrecondition, "volume_mode Filesystem"},
		{"none", plugin.Offer{}, create("v"), codes.Unimplemented, "neither"},
		{"none, and asked badly", plugin.Offer{}, &storagev1.CreateDeviceRequest{}, codes.Unimplemented, "neither"},
		{"one mode, and asked badly", plugin.Offer{Block: true}, &storagev1.CreateDeviceRequest{}, codes.FailedPrecondition, "volume_id is missing"},
	} {
		m := newMemory()
		m.offer = c.offer
		conn, _ := serve(t, config(m))
		p := storagev1.NewStoragePluginServiceClient(conn)
		if _, err := p.CreateDevice(t.Context(), c.request); status.Code(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s with %q", c.name, err, c.code, c.want)
		}
		if _, err := p.DeleteDevice(t.Context(), &storagev1.DeleteDeviceRequest{VolumeId: "v"}); err != nil {
			t.Errorf("%s: DeleteDevice: %v", c.name, err)
		}
	}
}

func TestAnswers(t *testing.T) {
	m := newMemory()
	conn, _ := serve(t, config(m))
	i, p := storagev1.NewIdentityServiceClient(conn), storagev1.NewStoragePluginServiceClient(conn)
	same := func(what string, got, want any, err error) {
		t.Helper()
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || err != nil {
			t.Errorf("%s: %v %s", what, err, diff)
		}
	}
	info, err := i.GetPluginInfo(t.Context(), &storagev1.GetPluginInfoRequest{})
	same("GetPluginInfo", info, &storagev1.GetPluginInfoResponse{Name: "dpu.example.com", VendorVersion: "1.0", Manifest: map[string]string{"go": "1"}}, err)
	for _, ready := range []bool{true, false} {
		m.notReady = !ready
		probe, err := i.Probe(t.Context(), &storagev1.ProbeRequest{})
		same("Probe", probe, &storagev1.ProbeResponse{Ready: wrapperspb.Bool(ready)}, err)
	}
	provider, err := p.GetSNAPProvider(t.Context(), &storagev1.GetSNAPProviderRequest{})
	same("GetSNAPProvider", provider, &storagev1.GetSNAPProviderResponse{ProviderName: "snap"}, err)
	for _, id := range []string{"b", "a", "c"} {
		made, err := p.CreateDevice(t.Context(), create(id))
		same("CreateDevice", made, &storagev1.CreateDeviceResponse{DeviceName: "bdev-" + id}, err)
	}
	device, err := p.GetDevice(t.Context(), &storagev1.GetDeviceRequest{VolumeId: "b", DeviceName: "bdev-b"})
	r := create("b")
	same("GetDevice", device, &storagev1.GetDeviceResponse{
		AccessModes: r.AccessModes, VolumeMode: r.VolumeMode,
		PublishContext: r.PublishContext, VolumeContext: r.VolumeContext, StorageParameters: r.StorageParameters,
	}, err)
	page, err := p.ListDevices(t.Context(), &storagev1.ListDevicesRequest{MaxEntries: 2})
	entry := func(id string) *storagev1.ListDevicesResponse_Entry {
		return &storagev1.ListDevicesResponse_Entry{VolumeId: id, DeviceName: "bdev-" + id}
	}
	same("ListDevices", page, &storagev1.ListDevicesResponse{Entries: []*storagev1.ListDevicesResponse_Entry{entry("a"), entry("b")}, NextToken: request.Token("b")}, err)
	page, err = p.ListDevices(t.Context(), &storagev1.ListDevicesRequest{StartingToken: page.GetNextToken()})
	same("ListDevices", page, &storagev1.ListDevicesResponse{Entries: []*storagev1.ListDevicesResponse_Entry{entry("c")}}, err)
}

func TestInvalidConfig(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"":                            func(c *Config) { c.Provider = "" },
		"invalid plugin name \"\"":    func(c *Config) { c.Name = "" },
		"domain name":                 func(c *Config) { c.Name = "a_b" },
		"63 characters":               func(c *Config) { c.Name = strings.Repeat("a", 64) },
		"such as dpu.cleat.dev":       func(c *Config) { c.Name = "a..b" },
		"version":                     func(c *Config) { c.Version = "" },
		"manifest":                    func(c *Config) { c.Manifest = nil },
		"invalid SNAP provider":       func(c *Config) { c.Provider = "a/b" },
		"SNAP provider \"..\"":        func(c *Config) { c.Provider = ".." },
		"invalid SNAP provider \"ppp": func(c *Config) { c.Provider = strings.Repeat("p", 256) },
		"Devices is required":         func(c *Config) { c.Devices = nil },
	} {
		c := config(newMemory())
		change(&c)
		if _, err := New(c); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestPrivateFieldsExist(t *testing.T) {
	fields := (&storagev1.CreateDeviceRequest{}).ProtoReflect().Descriptor().Fields()
	if len(Private()) != 3 {
		t.Error(Private())
	}
	for _, name := range Private() {
		if f := fields.ByName(name.Name()); f == nil || f.FullName() != name || !f.IsMap() {
			t.Errorf("%s is no map of CreateDevice", name)
		}
	}
	if Code(nil) != codes.OK {
		t.Error("no error is one")
	}
}
