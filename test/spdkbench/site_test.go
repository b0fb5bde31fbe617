// Package spdkbench measures the calls of a controller of SPDK volumes against a
// double of SPDK, in one process and without gRPC. Run it with
// BENCH=spdk make bench.
package spdkbench

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/csi"
	engine "github.com/cleatproject/cleat/engine/spdk"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const (
	mib       = 1 << 20
	size      = 16 * mib
	storeName = "lvs0"
	storeSize = 64 << 30
	targetIP  = "198.51.100.1"
)

// site is a controller with its state in a file, and its target.
type site struct {
	*testing.B
	target     *spdktest.Process
	database   *counted
	ledger     *ledger.Ledger
	controller *csi.Controller
	bare       *spdk.Client // another client of the target
	storeUUID  string
	present    int
	serial     int
}

// counted counts the transactions of the controller's state.
type counted struct {
	store.Database
	views, updates atomic.Int64
}

func (c *counted) View(ctx context.Context, fn func(*store.Tx) error) error {
	c.views.Add(1)
	return c.Database.View(ctx, fn)
}

func (c *counted) Update(ctx context.Context, fn func(*store.Tx) error) error {
	c.updates.Add(1)
	return c.Database.Update(ctx, fn)
}

// forget forgets the requests and transactions until now.
func (s *site) forget() {
	s.target.Forget()
	s.database.views.Store(0)
	s.database.updates.Store(0)
}

func newSite(b *testing.B) *site {
	s := &site{B: b}
	dir := testkit.Dir(b)
	s.target = testkit.Value(spdktest.NewNetwork(nil).Start(spdktest.Config{Socket: filepath.Join(dir, "rpc.sock"), Addresses: []string{targetIP}}))(b)
	b.Cleanup(func() { testkit.Must(b, s.target.Close()) })
	s.bare = s.client()
	disk := filepath.Join(dir, "disk")
	testkit.Must(b, os.WriteFile(disk, nil, 0o600), os.Truncate(disk, storeSize), s.bare.CreateAIO(b.Context(), spdk.AIO{Name: "disk", Filename: disk, BlockSize: 4096, Fallocate: true}))
	testkit.Must(b, s.bare.Call(b.Context(), "bdev_lvol_create_lvstore", map[string]any{"bdev_name": "disk", "lvs_name": storeName, "cluster_sz": mib}, &s.storeUUID))
	s.database = &counted{Database: testkit.Open(store.Open(b.Context(), filepath.Join(dir, "controller.db"), store.Options{Role: "controller", Version: 1, Preallocate: 4 << 20}))(b)}
	s.ledger = ledger.New(s.database)
	operations := op.New(context.WithoutCancel(b.Context()), time.Minute)
	b.Cleanup(func() { testkit.Must(b, operations.Close(context.Background())) })
	s.controller = csi.NewController(csi.ControllerConfig{
		Backend: s.engine(time.Minute).Backend(), Operations: operations, Grants: s.ledger,
		Deployment: csi.Deployment{Services: csi.Services{Controller: true}, ControllerPublish: true, MultiNode: true, StorageGrants: true, PlainNodeIDs: true},
	})
	return s
}

func (s *site) client() *spdk.Client {
	s.Helper()
	return testkit.Open(spdk.Open(spdk.Config{Socket: s.target.Socket()}))(s)
}

func (s *site) engine(interval time.Duration) *engine.Engine {
	s.Helper()
	return testkit.Value(engine.New(engine.Config{
		Targets: []engine.Target{{
			Name: "one", Client: s.client(), Transport: "tcp", Addresses: []netip.AddrPort{netip.MustParseAddrPort(targetIP + ":4420")},
		}},
		Database: s.database, Grants: s.ledger, HostNQN: access.HostNQN, Interval: interval,
	}))(s)
}

// fill creates and publishes volumes until there are this many.
func (s *site) fill(want int) {
	s.Helper()
	for ; s.present < want; s.present++ {
		s.publish(s.create(nil), fmt.Sprintf("node-%d@192.0.2.%d", s.present%10, s.present%10+1))
	}
}

func capability() *spec.VolumeCapability {
	return &spec.VolumeCapability{
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}},
	}
}

func (s *site) name() string {
	s.serial++
	return fmt.Sprintf("volume-%d", s.serial)
}

func (s *site) create(from *spec.VolumeContentSource) *spec.Volume {
	s.Helper()
	return testkit.Value(s.controller.CreateVolume(s.Context(), &spec.CreateVolumeRequest{
		Name: s.name(), CapacityRange: &spec.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*spec.VolumeCapability{capability()}, VolumeContentSource: from,
	}))(s).GetVolume()
}

func (s *site) publish(v *spec.Volume, node string) {
	s.Helper()
	testkit.Value(s.controller.ControllerPublishVolume(s.Context(), &spec.ControllerPublishVolumeRequest{
		VolumeId: v.GetVolumeId(), NodeId: node, VolumeCapability: capability(), VolumeContext: v.GetVolumeContext(),
	}))(s)
}

func (s *site) unpublish(v *spec.Volume, node string) {
	s.Helper()
	testkit.Value(s.controller.ControllerUnpublishVolume(s.Context(), &spec.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: node}))(s)
}

func (s *site) expand(v *spec.Volume, bytes int64) {
	s.Helper()
	testkit.Value(s.controller.ControllerExpandVolume(s.Context(), &spec.ControllerExpandVolumeRequest{
		VolumeId: v.GetVolumeId(), CapacityRange: &spec.CapacityRange{RequiredBytes: bytes}, VolumeCapability: capability(),
	}))(s)
}

func (s *site) snapshot(v *spec.Volume) *spec.Snapshot {
	s.Helper()
	return testkit.Value(s.controller.CreateSnapshot(s.Context(), &spec.CreateSnapshotRequest{Name: s.name(), SourceVolumeId: v.GetVolumeId()}))(s).GetSnapshot()
}

func (s *site) deleteSnapshot(snap *spec.Snapshot) {
	s.Helper()
	testkit.Value(s.controller.DeleteSnapshot(s.Context(), &spec.DeleteSnapshotRequest{SnapshotId: snap.GetSnapshotId()}))(s)
}

func (s *site) remove(v *spec.Volume) {
	s.Helper()
	testkit.Value(s.controller.DeleteVolume(s.Context(), &spec.DeleteVolumeRequest{VolumeId: v.GetVolumeId()}))(s)
}

func (s *site) capacity() {
	s.Helper()
	testkit.Value(s.controller.GetCapacity(s.Context(), &spec.GetCapacityRequest{}))(s)
}

func (s *site) list() {
	s.Helper()
	want := s.present + 1 // beside the one that is measured
	if got := len(testkit.Value(s.controller.ListVolumes(s.Context(), &spec.ListVolumesRequest{}))(s).GetEntries()); got != want {
		s.Fatalf("ListVolumes returns %d volumes, want %d", got, want)
	}
}
