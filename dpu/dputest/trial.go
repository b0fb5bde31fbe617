package dputest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
)

const (
	blockDevice = storagev1.StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_BLOCK_DEVICE
	fsDevice    = storagev1.StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_FS_DEVICE
	getDevice   = storagev1.StoragePluginServiceCapability_RPC_TYPE_GET_DEVICE_STATS
	listDevices = storagev1.StoragePluginServiceCapability_RPC_TYPE_LIST_DEVICES

	block      = "Block"
	filesystem = "Filesystem"
)

type suite struct {
	Options
	id                    string // begins every volume id
	conn                  grpc.ClientConnInterface
	identity              storagev1.IdentityServiceClient
	plugin                storagev1.StoragePluginServiceClient
	announced             map[Capability]bool
	servesGet, servesList bool
}

type kind struct {
	mode     string // volume_mode
	other    string
	contexts func(t testing.TB, volumeID string) Contexts
}

type trial struct {
	*testing.T
	*suite
	kind
	ctx context.Context
}

func (s *suite) part(t *testing.T, name string, k kind, run func(*trial)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), s.Timeout)
		defer cancel()
		run(&trial{T: t, suite: s, kind: k, ctx: ctx})
	})
}

// discover queries what the plugin announces and serves.
func (s *suite) discover(t *testing.T) {
	t.Helper()
	// A plugin that was just started can be slow.
	ctx, cancel := context.WithTimeout(t.Context(), max(s.Timeout, time.Minute))
	defer cancel()
	reply, err := s.plugin.StoragePluginGetCapabilities(ctx, &storagev1.StoragePluginGetCapabilitiesRequest{})
	if err != nil {
		t.Fatalf("StoragePluginGetCapabilities: %v", err)
	}
	s.announced = map[Capability]bool{}
	for _, c := range reply.GetCapabilities() {
		s.announced[c.GetRpc().GetType()] = true
	}
	_, err = s.plugin.GetDevice(ctx, &storagev1.GetDeviceRequest{VolumeId: s.id, DeviceName: s.id})
	s.servesGet = s.announced[getDevice] || s.Unannounced && status.Code(err) != codes.Unimplemented
	_, err = s.plugin.ListDevices(ctx, &storagev1.ListDevicesRequest{})
	s.servesList = s.announced[listDevices] || s.Unannounced && status.Code(err) != codes.Unimplemented
}

// kinds returns the announced and testable kinds.
func (s *suite) kinds() []kind {
	var out []kind
	if s.announced[blockDevice] && s.Block != nil {
		out = append(out, kind{mode: block, other: filesystem, contexts: s.Block})
	}
	if s.announced[fsDevice] && s.Filesystem != nil {
		out = append(out, kind{mode: filesystem, other: block, contexts: s.Filesystem})
	}
	return out
}

// allowed are the contract's codes, by call. ListDevices has none for errors
// other than the token; other calls return FAILED_PRECONDITION then.
var allowed = map[string][]codes.Code{
	"GetPluginInfo":                {codes.OK, codes.FailedPrecondition},
	"Probe":                        {codes.OK, codes.FailedPrecondition},
	"StoragePluginGetCapabilities": {codes.OK, codes.FailedPrecondition},
	"GetSNAPProvider":              {codes.OK, codes.FailedPrecondition},
	"CreateDevice":                 {codes.OK, codes.FailedPrecondition},
	"DeleteDevice":                 {codes.OK, codes.FailedPrecondition},
	"GetDevice":                    {codes.OK, codes.NotFound, codes.FailedPrecondition},
	"ListDevices":                  {codes.OK, codes.Aborted, codes.FailedPrecondition},
}

// checkCode ignores calls cancelled by a test, but a test must not time out.
func (t *trial) checkCode(ctx context.Context, method string, err error) {
	t.Helper()
	code := status.Code(err)
	if code == codes.DeadlineExceeded || code == codes.Canceled {
		if t.ctx.Err() != nil {
			t.Errorf("%s: no response within the timeout of %s", method, t.Timeout)
			return
		}
		if ctx != t.ctx {
			return
		}
	}
	if !slices.Contains(allowed[method], code) {
		t.Errorf("%s returns %v, want one of %v", method, err, allowed[method])
	}
}

type volume struct {
	Contexts
	id    string
	mode  string
	modes []storagev1.AccessMode
}

func (v volume) request() *storagev1.CreateDeviceRequest {
	return &storagev1.CreateDeviceRequest{
		VolumeId: v.id, AccessModes: v.modes, VolumeMode: v.mode,
		PublishContext: v.Publish, VolumeContext: v.Volume, StorageParameters: v.Storage,
	}
}

// volume prepares a volume, whose device is deleted at the end.
func (t *trial) volume(name string) volume {
	t.Helper()
	v := volume{id: strings.ToLower(t.id + "-" + t.mode + "-" + name), mode: t.mode, modes: t.AccessModes}
	v.Contexts = t.contexts(t.T, v.id)
	ctx := context.WithoutCancel(t.ctx)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(ctx, t.Timeout)
		defer cancel()
		if err := retry(ctx, func() error { return t.remove(ctx, v.id, "") }); err != nil {
			t.Errorf("cleanup: DeleteDevice(%q): %v", v.id, err)
		}
	})
	return v
}

func (t *trial) volumes(name string, n int) []volume {
	t.Helper()
	var out []volume
	for i := range n {
		out = append(out, t.volume(name+"-"+string(rune('a'+i%26))+strings.Repeat("x", i/26)))
	}
	return out
}

func (t *trial) create(ctx context.Context, req *storagev1.CreateDeviceRequest) (string, error) {
	t.Helper()
	reply, err := t.plugin.CreateDevice(ctx, req)
	t.checkCode(ctx, "CreateDevice", err)
	if err == nil && reply.GetDeviceName() == "" {
		t.Errorf("CreateDevice(%q) returns an empty name", req.GetVolumeId())
	}
	return reply.GetDeviceName(), err
}

func (t *trial) remove(ctx context.Context, volumeID, name string) error {
	t.Helper()
	_, err := t.plugin.DeleteDevice(ctx, &storagev1.DeleteDeviceRequest{VolumeId: volumeID, DeviceName: name})
	t.checkCode(ctx, "DeleteDevice", err)
	return err
}

func (t *trial) get(volumeID, name string) (*storagev1.GetDeviceResponse, error) {
	t.Helper()
	reply, err := t.plugin.GetDevice(t.ctx, &storagev1.GetDeviceRequest{VolumeId: volumeID, DeviceName: name})
	t.checkCode(t.ctx, "GetDevice", err)
	return reply, err
}

func (t *trial) page(max int32, token string) (*storagev1.ListDevicesResponse, error) {
	t.Helper()
	reply, err := t.plugin.ListDevices(t.ctx, &storagev1.ListDevicesRequest{MaxEntries: max, StartingToken: token})
	t.checkCode(t.ctx, "ListDevices", err)
	if n := len(reply.GetEntries()); max > 0 && n > int(max) {
		t.Errorf("ListDevices with max_entries %d returns %d entries", max, n)
	}
	return reply, err
}

// retry works like the node driver. The contract has no code for busy.
func retry(ctx context.Context, call func() error) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	var refusal error
	for {
		err := call()
		if ctx.Err() != nil && refusal != nil {
			return refusal // more specific than a timeout
		}
		if status.Code(err) != codes.FailedPrecondition {
			return err
		}
		refusal = err
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return refusal
		}
	}
}
