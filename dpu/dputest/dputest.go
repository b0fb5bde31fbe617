// Package dputest holds a storage vendor's plugin for DPF to the published
// contract, nvidia.storage.plugins.v1, from the outside: all it needs is the
// plugin's socket, and contexts of volumes that the plugin can reach. A vendor's
// own test calls Run. Source of the rules: "DPF Storage Development Guide" of
// NVIDIA; api/dpf/storage/v1 repeats them.
//
// The suite touches only devices of volumes that it named itself, so the plugin
// may hold others meanwhile, as long as nobody creates or deletes them.
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

// Capability is what a plugin announces, as
// TYPE_CREATE_DELETE_BLOCK_DEVICE.
type Capability = storagev1.StoragePluginServiceCapability_RPC_Type

// Contexts are the three maps of a CreateDevice request.
type Contexts struct {
	Publish map[string]string
	Volume  map[string]string
	Storage map[string]string
}

// Options tell the suite how to reach one plugin, and what it can be asked.
type Options struct {
	// Socket is the absolute path of the plugin's socket. Conn is used instead
	// when it is set.
	Socket string
	Conn   grpc.ClientConnInterface

	// Block and Filesystem prepare storage for a volume and return contexts
	// that the plugin accepts for it: always the same for the same id, other
	// storage for another id. t.Cleanup takes the storage away; the suite has
	// deleted the device by then. Each kind of device that the plugin announces
	// needs its function, and at least one is given. The ids are DNS labels.
	Block      func(t testing.TB, volumeID string) Contexts
	Filesystem func(t testing.TB, volumeID string) Contexts

	// Unusable returns contexts that the plugin cannot make a device from, such
	// as those of a target that is not there. Nil: not checked.
	Unusable func(t testing.TB, volumeID, volumeMode string) Contexts

	// Hold makes the next CreateDevice of a volume stay pending, for example by
	// a SNAP process that is slow to answer, until release is called. held is
	// closed once the call is under way and stuck. Nil: what happens to pending
	// calls is not checked.
	Hold func(t testing.TB, volumeID string) (held <-chan struct{}, release func())

	// Announced are the capabilities that the plugin must announce, in any
	// order. Nil: whatever it announces.
	Announced []Capability
	// Unannounced lets the plugin serve GetDevice and ListDevices although it
	// does not announce them, as NVIDIA's sample plugins do with GetDevice.
	// What is served is held to its rules.
	Unannounced bool
	// Parallel demands that a volume does not wait for a pending one. The
	// contract does not. It needs Hold.
	Parallel bool

	// AccessModes that the plugin takes; ACCESS_MODE_RWO when empty.
	AccessModes []storagev1.AccessMode
	// Devices is how many volumes of a kind may be there at the same time, at
	// least 3; 8 when zero.
	Devices int
	// Timeout bounds each part of the suite, 2 minutes when zero.
	Timeout time.Duration
	// Patience is how long a DeleteDevice may need to reach the plugin, before
	// what it negates goes on; 1 s when zero.
	Patience time.Duration
}

// Run holds a plugin to the contract. What cannot be checked, since a function
// of the options is missing or a call is not served, is named in the log.
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
		return // nothing else can be told of a plugin that does not get ready
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

// complete fills in the defaults.
func (o Options) complete() (Options, error) {
	switch {
	case o.Conn == nil && o.Socket == "":
		return o, errors.New("neither Socket nor Conn is set: give the path of the plugin's socket")
	case o.Block == nil && o.Filesystem == nil:
		return o, errors.New("neither Block nor Filesystem is set: without contexts no device can be made")
	case o.Parallel && o.Hold == nil:
		return o, errors.New("with Parallel, Hold must be set: it takes a volume that stays pending")
	case o.Devices != 0 && o.Devices < 3:
		return o, fmt.Errorf("too few Devices, %d: give 3 or more, or 0 for the default", o.Devices)
	case o.Timeout < 0 || o.Patience < 0:
		return o, fmt.Errorf("neither Timeout %s nor Patience %s may be negative", o.Timeout, o.Patience)
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
		{"CutShort", testCutShort},
		{"SameVolumeAtOnce", testSameVolumeAtOnce},
		{"VolumesAtOnce", testVolumesAtOnce},
		{"CreateAndDeleteAtOnce", testChurn},
		{"RetryContinues", testRetryContinues},
		{"Negation", testNegation},
		{"NegationOfAnAbandonedCall", testAbandoned},
		{"Parallel", testParallel},
	}
}
