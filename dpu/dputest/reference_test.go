package dputest_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
)

// reference is a conforming plugin in memory.
type reference struct {
	storagev1.UnimplementedIdentityServiceServer
	storagev1.UnimplementedStoragePluginServiceServer

	capabilities []storagev1.StoragePluginServiceCapability_RPC_Type

	mu      sync.Mutex
	last    int
	devices map[string]device     // by volume
	pending map[string]*operation // by volume
	holds   map[string]*hold      // by volume
	work    sync.WaitGroup
	delay   time.Duration // of each create
}

type device struct {
	*storagev1.CreateDeviceRequest
	name string
}

// operation is a CreateDevice, which continues after a cancel.
type operation struct {
	request *storagev1.CreateDeviceRequest
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}
	name    string // valid when done is closed
	err     error
}

type hold struct{ held, released chan struct{} }

func newReference(capabilities ...storagev1.StoragePluginServiceCapability_RPC_Type) *reference {
	return &reference{
		capabilities: capabilities,
		devices:      map[string]device{}, pending: map[string]*operation{}, holds: map[string]*hold{},
	}
}

func (r *reference) Close() {
	r.mu.Lock()
	for _, op := range r.pending {
		op.cancel()
	}
	r.mu.Unlock()
	r.work.Wait()
}

func (r *reference) Hold(volumeID string) (<-chan struct{}, func()) {
	h := &hold{held: make(chan struct{}), released: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds[volumeID] = h
	return h.held, func() { close(h.released) }
}

func (r *reference) GetPluginInfo(context.Context, *storagev1.GetPluginInfoRequest) (*storagev1.GetPluginInfoResponse, error) {
	return &storagev1.GetPluginInfoResponse{Name: "reference.example", VendorVersion: "1.0", Manifest: map[string]string{"storage": "memory"}}, nil
}

func (r *reference) Probe(context.Context, *storagev1.ProbeRequest) (*storagev1.ProbeResponse, error) {
	return &storagev1.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (r *reference) StoragePluginGetCapabilities(context.Context, *storagev1.StoragePluginGetCapabilitiesRequest) (*storagev1.StoragePluginGetCapabilitiesResponse, error) {
	reply := &storagev1.StoragePluginGetCapabilitiesResponse{}
	for _, c := range r.capabilities {
		reply.Capabilities = append(reply.Capabilities, &storagev1.StoragePluginServiceCapability{
			Type: &storagev1.StoragePluginServiceCapability_Rpc{Rpc: &storagev1.StoragePluginServiceCapability_RPC{Type: c}},
		})
	}
	return reply, nil
}

func (r *reference) GetSNAPProvider(context.Context, *storagev1.GetSNAPProviderRequest) (*storagev1.GetSNAPProviderResponse, error) {
	return &storagev1.GetSNAPProviderResponse{ProviderName: "reference"}, nil
}

func refuse(format string, args ...any) error {
	return status.Errorf(codes.FailedPrecondition, format, args...)
}

func unserved(method string) error {
	return status.Errorf(codes.Unimplemented, "%s is not served", method)
}

func mode(of string) string {
	if of == "" {
		return "Filesystem"
	}
	return of
}

func (r *reference) check(req *storagev1.CreateDeviceRequest) error {
	var needed storagev1.StoragePluginServiceCapability_RPC_Type
	switch {
	case !slices.Contains(r.capabilities, blockDevice) && !slices.Contains(r.capabilities, fsDevice):
		return unserved("CreateDevice")
	case req.VolumeId == "" || strings.ContainsAny(req.VolumeId, "/\x00") || len(req.VolumeId) > 253:
		return refuse("volume_id %.300q is invalid", req.VolumeId)
	case len(req.AccessModes) == 0:
		return refuse("access_modes is empty")
	case mode(req.VolumeMode) == "Block":
		needed = blockDevice
	case mode(req.VolumeMode) == "Filesystem":
		needed = fsDevice
	default:
		return refuse("volume_mode %q is neither Block nor Filesystem", req.VolumeMode)
	}
	for _, m := range req.AccessModes {
		if m < storagev1.AccessMode_ACCESS_MODE_RWO || m > storagev1.AccessMode_ACCESS_MODE_RWOP {
			return refuse("access mode %v is not known", m)
		}
	}
	if !slices.Contains(r.capabilities, needed) {
		return refuse("devices with volume_mode %q are not made here", req.VolumeMode)
	}
	return nil
}

// same ignores contexts.
func same(a, b *storagev1.CreateDeviceRequest) bool {
	return slices.Equal(a.AccessModes, b.AccessModes) && mode(a.VolumeMode) == mode(b.VolumeMode)
}

func (r *reference) CreateDevice(ctx context.Context, req *storagev1.CreateDeviceRequest) (*storagev1.CreateDeviceResponse, error) {
	if err := r.check(req); err != nil {
		return nil, err
	}
	r.mu.Lock()
	if err := ctx.Err(); err != nil { // a cancelled call must not create: a DeleteDevice might have returned
		r.mu.Unlock()
		return nil, status.FromContextError(err).Err()
	}
	if d, found := r.devices[req.VolumeId]; found {
		defer r.mu.Unlock()
		if !same(d.CreateDeviceRequest, req) {
			return nil, refuse("volume %q has a device with %v %s, not %v %s", req.VolumeId, d.AccessModes, mode(d.VolumeMode), req.AccessModes, mode(req.VolumeMode))
		}
		return &storagev1.CreateDeviceResponse{DeviceName: d.name}, nil
	}
	op, found := r.pending[req.VolumeId]
	if !found {
		op = r.begin(req)
	}
	r.mu.Unlock()
	if found && !same(op.request, req) {
		return nil, refuse("volume %q is busy with another request", req.VolumeId)
	}
	select {
	case <-op.done:
		if op.err != nil {
			return nil, op.err
		}
		return &storagev1.CreateDeviceResponse{DeviceName: op.name}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (r *reference) begin(req *storagev1.CreateDeviceRequest) *operation {
	ctx, cancel := context.WithCancel(context.Background())
	op := &operation{request: req, ctx: ctx, cancel: cancel, done: make(chan struct{})}
	r.pending[req.VolumeId] = op
	h := r.holds[req.VolumeId]
	delete(r.holds, req.VolumeId)
	r.work.Go(func() {
		defer cancel()
		op.wait(h, r.delay)
		r.finish(op)
	})
	return op
}

func (op *operation) wait(h *hold, delay time.Duration) {
	select {
	case <-time.After(delay):
	case <-op.ctx.Done():
	}
	if h == nil {
		return
	}
	close(h.held)
	select {
	case <-h.released:
	case <-op.ctx.Done():
	}
}

func (r *reference) finish(op *operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer close(op.done)
	delete(r.pending, op.request.VolumeId)
	switch {
	case op.ctx.Err() != nil:
		op.err = refuse("volume %q was deleted meanwhile", op.request.VolumeId)
	case op.request.VolumeContext["target"] != op.request.VolumeId:
		op.err = refuse("there is no target %q for volume %q", op.request.VolumeContext["target"], op.request.VolumeId)
	default:
		op.name = r.newName()
		r.devices[op.request.VolumeId] = device{op.request, op.name}
	}
}

func (r *reference) newName() string {
	r.last++
	return fmt.Sprintf("mem%d", r.last)
}

func (r *reference) DeleteDevice(ctx context.Context, req *storagev1.DeleteDeviceRequest) (*storagev1.DeleteDeviceResponse, error) {
	if !slices.Contains(r.capabilities, blockDevice) && !slices.Contains(r.capabilities, fsDevice) {
		return nil, unserved("DeleteDevice")
	}
	if req.VolumeId == "" {
		return nil, refuse("volume_id is empty")
	}
	for {
		r.mu.Lock()
		op := r.pending[req.VolumeId]
		if op == nil {
			if d, found := r.devices[req.VolumeId]; found && (req.DeviceName == "" || req.DeviceName == d.name) {
				delete(r.devices, req.VolumeId)
			}
			r.mu.Unlock()
			return &storagev1.DeleteDeviceResponse{}, nil
		}
		r.mu.Unlock()
		op.cancel()
		select {
		case <-op.done:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

func (r *reference) GetDevice(_ context.Context, req *storagev1.GetDeviceRequest) (*storagev1.GetDeviceResponse, error) {
	if !slices.Contains(r.capabilities, getDevice) {
		return nil, unserved("GetDevice")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d, found := r.devices[req.VolumeId]
	if !found || d.name != req.DeviceName {
		return nil, status.Errorf(codes.NotFound, "volume %q has no device %q", req.VolumeId, req.DeviceName)
	}
	return &storagev1.GetDeviceResponse{
		AccessModes: d.AccessModes, VolumeMode: d.VolumeMode,
		PublishContext: d.PublishContext, VolumeContext: d.VolumeContext, StorageParameters: d.StorageParameters,
	}, nil
}

const tokenPrefix = "after:"

func (r *reference) ListDevices(_ context.Context, req *storagev1.ListDevicesRequest) (*storagev1.ListDevicesResponse, error) {
	if !slices.Contains(r.capabilities, listDevices) {
		return nil, unserved("ListDevices")
	}
	after, valid := strings.CutPrefix(req.StartingToken, tokenPrefix)
	if req.StartingToken != "" && !valid {
		return nil, status.Errorf(codes.Aborted, "starting_token %.80q was not returned by this plugin", req.StartingToken)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	reply := &storagev1.ListDevicesResponse{}
	for _, id := range slices.Sorted(maps.Keys(r.devices)) {
		if valid && id <= after {
			continue
		}
		if n := len(reply.Entries); req.MaxEntries > 0 && n == int(req.MaxEntries) {
			reply.NextToken = tokenPrefix + reply.Entries[n-1].VolumeId
			break
		}
		reply.Entries = append(reply.Entries, &storagev1.ListDevicesResponse_Entry{VolumeId: id, DeviceName: r.devices[id].name})
	}
	return reply, nil
}
