// Package csitest serves the CSI services that need no kernel over the
// reference engine, for the tests of the rooms beside it.
package csitest

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/csi/controller"
	"github.com/cleatproject/cleat/csi/group"
	"github.com/cleatproject/cleat/csi/metadata"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// Node is the one node of a Rig.
const Node = "node-1"

// Full is the deployment that announces everything.
func Full() csi.Deployment {
	return csi.Deployment{
		Services:          csi.Services{Controller: true, Node: true},
		ControllerPublish: true,
		Topology:          map[string]string{"topology.csi.cleat.dev/node": Node},
		Nodes:             []string{Node, "node-2"},
	}
}

// Rig is a running plugin and clients of it.
type Rig struct {
	Reference  *enginetest.Reference
	Ledger     *ledger.Ledger
	Operations *op.Operations
	Identity   spec.IdentityClient
	Controller spec.ControllerClient
	Group      spec.GroupControllerClient
	Metadata   spec.SnapshotMetadataClient
	Log        Log
}

// Options say what a Rig is like; the zero value is the full one.
type Options struct {
	Deployment *csi.Deployment
	// Backend may take abilities away, or wrap them.
	Backend func(*volume.Backend)
	// Grants may wrap the ledger.
	Grants func(controller.Grants) controller.Grants
	// Wait is how long a request waits for an object, 3 s when zero.
	Wait time.Duration
}

// New starts a plugin that ends with the test.
func New(t testing.TB, o Options) *Rig {
	t.Helper()
	deployment := Full()
	if o.Deployment != nil {
		deployment = *o.Deployment
	}
	if o.Wait == 0 {
		o.Wait = 3 * time.Second
	}
	rig := &Rig{Reference: enginetest.NewReference(), Ledger: newLedger(t)}
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
	var grants controller.Grants = rig.Ledger
	if o.Grants != nil {
		grants = o.Grants(grants)
	}
	conn := Serve(t, &rig.Log, func(r grpc.ServiceRegistrar) { rig.register(t, r, backend, deployment, grants) })
	rig.Identity, rig.Controller = spec.NewIdentityClient(conn), spec.NewControllerClient(conn)
	rig.Group, rig.Metadata = spec.NewGroupControllerClient(conn), spec.NewSnapshotMetadataClient(conn)
	return rig
}

func (rig *Rig) register(t testing.TB, r grpc.ServiceRegistrar, backend volume.Backend, deployment csi.Deployment, grants controller.Grants) {
	t.Helper()
	identity, err := csi.NewIdentity(csi.IdentityConfig{
		Version: "test", Engine: "reference", Announced: csi.Announce(csi.AbilitiesOf(backend), deployment),
	})
	must(t, err)
	spec.RegisterIdentityServer(r, identity)
	c, err := controller.New(controller.Config{Backend: backend, Deployment: deployment, Operations: rig.Operations, Grants: grants})
	must(t, err)
	spec.RegisterControllerServer(r, c)
	g, err := group.New(group.Config{Backend: backend, Deployment: deployment, Operations: rig.Operations})
	must(t, err)
	spec.RegisterGroupControllerServer(r, g)
	m, err := metadata.New(metadata.Config{Backend: backend, Deployment: deployment})
	must(t, err)
	spec.RegisterSnapshotMetadataServer(r, m)
}

func newLedger(t testing.TB) *ledger.Ledger {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), store.Options{Role: "ledger", Version: 1})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return ledger.New(s)
}

// State is a text of all that the engine and the ledger hold; equal texts mean
// that nothing changed.
func (rig *Rig) State(t testing.TB) string {
	t.Helper()
	ctx := context.Background()
	volumes, err := rig.Reference.List(ctx, "", 0)
	must(t, err)
	snapshots, err := rig.Reference.ListSnapshots(ctx, volume.SnapshotQuery{})
	must(t, err)
	grants, err := rig.Ledger.All(ctx, "", 0)
	must(t, err)
	text, err := json.MarshalIndent([]any{volumes, snapshots, grants}, "", " ")
	must(t, err)
	return string(text)
}

// Mount is a capability that most tests want.
func Mount() *spec.VolumeCapability {
	return &spec.VolumeCapability{
		AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

// Block is a capability of a raw block volume.
func Block() *spec.VolumeCapability {
	c := Mount()
	c.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
	return c
}

// Create asks for a volume of 8 MiB.
func Create(name string, c *spec.VolumeCapability) *spec.CreateVolumeRequest {
	return &spec.CreateVolumeRequest{
		Name: name, CapacityRange: &spec.CapacityRange{RequiredBytes: 8 << 20}, VolumeCapabilities: []*spec.VolumeCapability{c},
	}
}

// MustCreate makes a volume of 8 MiB.
func (rig *Rig) MustCreate(t testing.TB, name string, c *spec.VolumeCapability) *spec.Volume {
	t.Helper()
	r, err := rig.Controller.CreateVolume(t.Context(), Create(name, c))
	must(t, err)
	return r.GetVolume()
}

// MustSnapshot cuts a snapshot.
func (rig *Rig) MustSnapshot(t testing.TB, name, source string) *spec.Snapshot {
	t.Helper()
	r, err := rig.Controller.CreateSnapshot(t.Context(), &spec.CreateSnapshotRequest{Name: name, SourceVolumeId: source})
	must(t, err)
	return r.GetSnapshot()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
