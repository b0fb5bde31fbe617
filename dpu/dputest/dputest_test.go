package dputest_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/dputest"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	blockDevice = storagev1.StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_BLOCK_DEVICE
	fsDevice    = storagev1.StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_FS_DEVICE
	getDevice   = storagev1.StoragePluginServiceCapability_RPC_TYPE_GET_DEVICE_STATS
	listDevices = storagev1.StoragePluginServiceCapability_RPC_TYPE_LIST_DEVICES
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type server interface {
	storagev1.IdentityServiceServer
	storagev1.StoragePluginServiceServer
}

func serve(t *testing.T, plugin server, with ...grpc.ServerOption) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "dpu.sock")
	testkit.Serve(t, socket, func(s grpc.ServiceRegistrar) {
		storagev1.RegisterIdentityServiceServer(s, plugin)
		storagev1.RegisterStoragePluginServiceServer(s, plugin)
	}, with...)
	return socket
}

func contexts(_ testing.TB, volumeID string) dputest.Contexts {
	return dputest.Contexts{
		Publish: map[string]string{"nv-volumeAttachmentName": "first"},
		Volume:  map[string]string{"target": volumeID},
	}
}

// options enable all checks.
func options(socket string, hold func(string) (<-chan struct{}, func())) dputest.Options {
	return dputest.Options{
		Socket: socket, Block: contexts, Filesystem: contexts,
		Unusable: func(_ testing.TB, volumeID, _ string) dputest.Contexts {
			return dputest.Contexts{Volume: map[string]string{"target": "none of " + volumeID}}
		},
		Hold:     func(_ testing.TB, volumeID string) (<-chan struct{}, func()) { return hold(volumeID) },
		Parallel: true,
	}
}

// TestReference runs the suite on the reference, or on the mutant in the
// environment.
func TestReference(t *testing.T) {
	t.Parallel()
	r := newReference(blockDevice, fsDevice, getDevice, listDevices)
	t.Cleanup(r.Close)
	name := os.Getenv(mutantVariable)
	o := options(serve(t, r, mutated(t, r, name)...), r.Hold)
	o.Announced = []dputest.Capability{listDevices, getDevice, fsDevice, blockDevice}
	if name == "" {
		r.delay = 2 * time.Millisecond
	} else { // mutants waste the time
		o.Timeout, o.Patience = 4*time.Second, 300*time.Millisecond
	}
	dputest.Run(t, o)
}

// The suite accepts plugins with fewer capabilities.
func TestPartialPlugins(t *testing.T) {
	for name, capabilities := range map[string][]dputest.Capability{
		"block":         {blockDevice},
		"file system":   {fsDevice},
		"block and get": {blockDevice, getDevice},
		"list":          {fsDevice, listDevices},
		"nothing":       {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReference(capabilities...)
			t.Cleanup(r.Close)
			dputest.Run(t, dputest.Options{Socket: serve(t, r), Block: contexts, Filesystem: contexts, Announced: capabilities, Devices: 3})
		})
	}
}

// A plugin can start slowly, have other devices, and serve unannounced calls if
// allowed.
func TestLivingPlugin(t *testing.T) {
	t.Parallel()
	r := &shy{reference: newReference(blockDevice, getDevice, listDevices)}
	t.Cleanup(r.Close)
	for _, id := range []string{"a", "dputest-zz", "z"} {
		r.devices[id] = device{&storagev1.CreateDeviceRequest{VolumeId: id, VolumeMode: "Block"}, "foreign-" + id}
	}
	conn := testkit.Dial(t, serve(t, r))
	dputest.Run(t, dputest.Options{
		Conn: conn, Block: contexts, Unannounced: true, Announced: []dputest.Capability{blockDevice},
		AccessModes: []storagev1.AccessMode{storagev1.AccessMode_ACCESS_MODE_ROX, storagev1.AccessMode_ACCESS_MODE_RWO},
	})
	if len(r.devices) != 3 {
		t.Errorf("the suite left %v, or took others' devices", r.devices)
	}
}

// shy announces block devices only, after a delay.
type shy struct {
	*reference
	probes atomic.Int32
}

func (s *shy) Probe(context.Context, *storagev1.ProbeRequest) (*storagev1.ProbeResponse, error) {
	return &storagev1.ProbeResponse{Ready: wrapperspb.Bool(s.probes.Add(1) > 3)}, nil
}

func (s *shy) StoragePluginGetCapabilities(ctx context.Context, req *storagev1.StoragePluginGetCapabilitiesRequest) (*storagev1.StoragePluginGetCapabilitiesResponse, error) {
	reply, err := s.reference.StoragePluginGetCapabilities(ctx, req)
	reply.Capabilities = reply.Capabilities[:1]
	return reply, err
}
