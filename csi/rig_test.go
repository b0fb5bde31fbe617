package csi_test

import (
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const nodeID = "node-1"

// fullDeployment announces everything.
func fullDeployment() csi.Deployment {
	return csi.Deployment{
		Services:          csi.Services{Controller: true, Node: true},
		ControllerPublish: true,
		Topology:          map[string]string{"topology.csi.cleat.dev/node": nodeID},
		Nodes:             []string{nodeID, "node-2"},
	}
}

// plugin serves the reference engine, without the node service.
type plugin struct {
	Reference  *enginetest.Reference
	Ledger     *ledger.Ledger
	Operations *op.Operations
	Identity   spec.IdentityClient
	Controller spec.ControllerClient
	Group      spec.GroupControllerClient
	Metadata   spec.SnapshotMetadataClient
	Conn       *grpc.ClientConn
	Log        testkit.Log
}

// The zero options are the full plugin.
type options struct {
	Deployment *csi.Deployment
	Backend    func(*volume.Backend)
	Grants     func(csi.Grants) csi.Grants
	// for an object; zero: 3 s
	Wait time.Duration
}

func newPlugin(t testing.TB, o options) *plugin {
	t.Helper()
	deployment := fullDeployment()
	if o.Deployment != nil {
		deployment = *o.Deployment
	}
	if o.Wait == 0 {
		o.Wait = 3 * time.Second
	}
	rig := &plugin{Reference: enginetest.NewReference(), Ledger: newLedger(t)}
	backend := rig.Reference.Backend()
	if o.Backend != nil {
		o.Backend(&backend)
	}
	rig.Operations = op.New(context.WithoutCancel(t.Context()), o.Wait)
	t.Cleanup(func() {
		if err := rig.Operations.Close(context.Background()); err != nil {
			t.Errorf("operations: %v", err)
		}
	})
	var grants csi.Grants = rig.Ledger
	if o.Grants != nil {
		grants = o.Grants(grants)
	}
	conn := serve(t, &rig.Log, func(r grpc.ServiceRegistrar) {
		spec.RegisterIdentityServer(r, &csi.Identity{
			Name: csi.DefaultName, Version: "test", Engine: "reference", Abilities: csi.AbilitiesOf(backend), Deployment: deployment,
		})
		csi.NewController(csi.ControllerConfig{Backend: backend, Deployment: deployment, Operations: rig.Operations, Grants: grants}).Register(r)
	})
	rig.Conn = conn
	rig.Identity, rig.Controller = spec.NewIdentityClient(conn), spec.NewControllerClient(conn)
	rig.Group, rig.Metadata = spec.NewGroupControllerClient(conn), spec.NewSnapshotMetadataClient(conn)
	return rig
}

func newLedger(t testing.TB) *ledger.Ledger {
	t.Helper()
	s := testkit.Open(store.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), store.Options{Role: "ledger", Version: 1}))(t)
	return ledger.New(s)
}

// State describes engine and ledger; equal texts mean that nothing changed.
func (rig *plugin) State(t testing.TB) string {
	t.Helper()
	ctx := context.Background()
	volumes := testkit.Value(rig.Reference.List(ctx, "", 0))(t)
	snapshots := testkit.Value(rig.Reference.ListSnapshots(ctx, volume.SnapshotQuery{}))(t)
	grants := testkit.Value(rig.Ledger.All(ctx, "", 0))(t)
	text := testkit.Value(json.MarshalIndent([]any{volumes, snapshots, grants}, "", " "))(t)
	return string(text)
}

func mountCap() *spec.VolumeCapability {
	return &spec.VolumeCapability{
		AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func blockCap() *spec.VolumeCapability {
	c := mountCap()
	c.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
	return c
}

// 8 MiB
func createRequest(name string, c *spec.VolumeCapability) *spec.CreateVolumeRequest {
	return &spec.CreateVolumeRequest{
		Name: name, CapacityRange: &spec.CapacityRange{RequiredBytes: 8 << 20}, VolumeCapabilities: []*spec.VolumeCapability{c},
	}
}

// 8 MiB
func (rig *plugin) MustCreate(t testing.TB, name string, c *spec.VolumeCapability) *spec.Volume {
	t.Helper()
	r := testkit.Value(rig.Controller.CreateVolume(t.Context(), createRequest(name, c)))(t)
	return r.GetVolume()
}

func (rig *plugin) MustSnapshot(t testing.TB, name, source string) *spec.Snapshot {
	t.Helper()
	r := testkit.Value(rig.Controller.CreateSnapshot(t.Context(), &spec.CreateSnapshotRequest{Name: name, SourceVolumeId: source}))(t)
	return r.GetSnapshot()
}

// serve serves CSI services as the program does, until the end of the test.
func serve(t testing.TB, log *testkit.Log, register func(grpc.ServiceRegistrar)) *grpc.ClientConn {
	t.Helper()
	srv := testkit.Value(server.NewGRPC(server.GRPCConfig{
		Logger: log.Logger(),
		Code:   errs.Code, Secrets: []protoreflect.ExtensionType{spec.E_CsiSecret},
	}))(t)
	register(srv)
	listener := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(context.Background(), listener) }()
	conn := testkit.Value(grpc.NewClient("passthrough:///csitest", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		testkit.Must(t, conn.Close())
		testkit.Must(t, srv.Drain(ctx))
		testkit.Must(t, <-served)
	})
	return conn
}
