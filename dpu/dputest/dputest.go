// Package dputest is a conformance suite for storage vendors' DPF plugins, for
// nvidia.storage.plugins.v1. A vendor's test calls Run with the plugin's
// socket, and contexts of volumes that the plugin can reach. The rules are
// those of NVIDIA's "DPF Storage Development Guide", repeated in
// api/dpf/storage/v1.
//
// The suite changes only devices of its own volumes. Other devices must not be
// created or deleted meanwhile.
package dputest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// Capability of a plugin, such as TYPE_CREATE_DELETE_BLOCK_DEVICE.
type Capability = storagev1.StoragePluginServiceCapability_RPC_Type

// Contexts are the three maps of a CreateDevice request.
type Contexts struct {
	Publish map[string]string
	Volume  map[string]string
	Storage map[string]string
}

// Options configure the suite for a plugin.
type Options struct {
	// Socket is the absolute path. Conn replaces it.
	Socket string
	Conn   grpc.ClientConnInterface

	// Block and Filesystem prepare storage for a volume and return its
	// contexts: the same for the same id, other storage for another id.
	// t.Cleanup removes the storage, after the suite has deleted the device.
	// One is required per kind that the plugin announces. The ids are DNS
	// labels.
	Block      func(t testing.TB, volumeID string) Contexts
	Filesystem func(t testing.TB, volumeID string) Contexts

	// Unusable returns contexts that must fail, such as those of a missing
	// target. Nil: not checked.
	Unusable func(t testing.TB, volumeID, volumeMode string) Contexts

	// Hold makes the next CreateDevice of a volume stay pending until release,
	// for example with a slow SNAP process. held is closed when the call is
	// pending. Nil: not checked.
	Hold func(t testing.TB, volumeID string) (held <-chan struct{}, release func())

	// Announced are the capabilities that the plugin must announce, in any
	// order. Nil: any.
	Announced []Capability
	// Unannounced allows GetDevice and ListDevices to be served unannounced, as
	// NVIDIA's sample plugins do with GetDevice. Served calls are checked.
	Unannounced bool
	// Parallel requires that a pending volume does not block others, beyond the
	// contract. It needs Hold.
	Parallel bool

	// AccessModes that the plugin accepts; ACCESS_MODE_RWO if empty.
	AccessModes []storagev1.AccessMode
	// Devices is the number of concurrent volumes of a kind, at least 3; 0 is
	// 8.
	Devices int
	// Timeout of each test; 0 is 2 minutes.
	Timeout time.Duration
	// Patience is the wait for a DeleteDevice to reach the plugin, before a
	// pending CreateDevice continues; 0 is 1 s.
	Patience time.Duration
}

// Run checks a plugin against the contract, and logs skipped checks.
func Run(t *testing.T, o Options) {
	t.Helper()
	o, err := o.complete()
	if err != nil {
		t.Fatalf("dputest: the options: %v", err)
	}
	s := &suite{Options: o, id: fmt.Sprintf("dputest-%08x", rand.Uint32())}
	conn := o.Conn
	if conn == nil {
		conn = dial(t, o.Socket)
	}
	s.identity, s.plugin, s.conn = storagev1.NewIdentityServiceClient(conn), storagev1.NewStoragePluginServiceClient(conn), conn

	s.part(t, "Ready", kind{}, testReady)
	if t.Failed() {
		return // nothing else can be checked
	}
	s.discover(t)
	for _, p := range generalParts() {
		s.part(t, p.name, kind{}, p.run)
	}
	for _, k := range s.kinds() {
		t.Run(k.mode, func(t *testing.T) {
			for _, p := range deviceParts() {
				s.part(t, p.name, k, p.run)
			}
		})
	}
	s.part(t, "NothingLeft", kind{}, testNothingLeft)
}

func (o Options) complete() (Options, error) {
	switch {
	case o.Conn == nil && o.Socket == "":
		return o, errors.New("no Socket or Conn")
	case o.Block == nil && o.Filesystem == nil:
		return o, errors.New("no Block or Filesystem to create devices with")
	case o.Parallel && o.Hold == nil:
		return o, errors.New("option Parallel requires Hold")
	case o.Devices != 0 && o.Devices < 3:
		return o, fmt.Errorf("option Devices %d is too small: use 3 or more, or 0 for the default", o.Devices)
	case o.Timeout < 0 || o.Patience < 0:
		return o, fmt.Errorf("options Timeout %s and Patience %s must not be negative", o.Timeout, o.Patience)
	}
	if len(o.AccessModes) == 0 {
		o.AccessModes = []storagev1.AccessMode{storagev1.AccessMode_ACCESS_MODE_RWO}
	}
	if o.Devices == 0 {
		o.Devices = 8
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Minute
	}
	if o.Patience == 0 {
		o.Patience = time.Second
	}
	return o, nil
}

func dial(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return unixsock.Dial(ctx, path) }))
	if err != nil {
		t.Fatalf("dputest: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

type part struct {
	name string
	run  func(*trial)
}

func generalParts() []part {
	return []part{
		{"PluginInfo", testPluginInfo},
		{"Capabilities", testCapabilities},
		{"Served", testServed},
		{"Provider", testProvider},
	}
}

func deviceParts() []part {
	return []part{
		{"Create", testCreate},
		{"Repeat", testRepeat},
		{"RepeatWithOtherContexts", testOtherContexts},
		{"DefaultVolumeMode", testDefaultVolumeMode},
		{"OtherAccessModes", testOtherAccessModes},
		{"OtherVolumeMode", testOtherVolumeMode},
		{"BadRequests", testBadRequests},
		{"Unusable", testUnusable},
		{"Delete", testDelete},
		{"DeleteAbsent", testDeleteAbsent},
		{"DeleteMismatch", testDeleteMismatch},
		{"Get", testGet},
		{"GetAbsent", testGetAbsent},
		{"List", testList},
		{"Pages", testPages},
		{"BadTokens", testBadTokens},
		{"PagesWhileDeleting", testPagesWhileDeleting},
		{"InterruptedCalls", testInterruptedCalls},
		{"SameVolumeAtOnce", testSameVolumeAtOnce},
		{"VolumesAtOnce", testVolumesAtOnce},
		{"CreateAndDeleteAtOnce", testChurn},
		{"RetryContinues", testRetryContinues},
		{"Negation", testNegation},
		{"NegationOfAnAbandonedCall", testAbandoned},
		{"Parallel", testParallel},
	}
}
