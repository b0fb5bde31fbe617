package workload

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/crash/workload/site"
	"github.com/cleatproject/cleat/test/testkit"
)

// A copy whose call was interrupted by a power loss can be made when the call
// is repeated, of a source that has lost its unsynced data.
func TestCopiesInterruptedByPowerLoss(t *testing.T) {
	ended := make(chan struct{})
	close(ended)
	for name, test := range map[string]struct {
		begin func(w *worker) error
		made  func(w *worker) contents
	}{
		"snapshot": {func(w *worker) error { return w.snapshot(w.disks[0]) }, func(w *worker) contents { return w.snapshots[0].data }},
		"group":    {(*worker).group, func(w *worker) contents { return w.snapshots[1].data }},
		"clone":    {(*worker).clone, func(w *worker) contents { return w.disks[2].data }},
	} {
		for _, power := range []bool{false, true} {
			w := &worker{rand: rand.New(rand.NewPCG(1, 2)), conn: failOnce(t), down: ended, patience: 10 * time.Second, calls: map[string]int{}, reflink: true}
			for _, id := range []string{"a", "b"} {
				d := &disk{id: id, staged: true, data: contents{}}
				d.data.written("file", 7, true)
				w.disks = append(w.disks, d)
			}
			if err := test.begin(w); !errors.Is(err, ErrDown) {
				t.Fatalf("%s: the first call ended with %v", name, err)
			}
			want := []uint64{7} // the data is in the page cache, whichever process reads
			if power {
				w.rebooted()
				want = []uint64{site.Never, 7}
			}
			if _, err := w.settle(); err != nil {
				t.Fatalf("%s: the repeat: %v", name, err)
			}
			if diff := cmp.Diff(want, test.made(w)["file"].now()); diff != "" {
				t.Errorf("%s, power loss: %v: possible data (-want +got):\n%s", name, power, diff)
			}
		}
	}
}

// The kernel can still execute a call of a driver that was killed: the next driver
// is Unavailable then, and does the same call later.
func TestUnavailableDriverLives(t *testing.T) {
	w := &worker{rand: rand.New(rand.NewPCG(1, 2)), conn: failOnce(t), down: make(chan struct{}), patience: 10 * time.Second, calls: map[string]int{}}
	if err := w.create(); err != nil || len(w.disks) != 1 || w.open != nil {
		t.Errorf("the call ended with %v; %d volumes, pending: %+v", err, len(w.disks), w.open)
	}
}

// failOnce connects to a driver that goes down in its first call, and succeeds
// in later ones.
func failOnce(t *testing.T) *grpc.ClientConn {
	t.Helper()
	l := testkit.Value(net.Listen("unix", filepath.Join(t.TempDir(), "s")))(t)
	d, server := &failingDriver{}, grpc.NewServer()
	csi.RegisterControllerServer(server, d)
	csi.RegisterGroupControllerServer(server, d)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	conn := testkit.Value(grpc.NewClient("unix://"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return conn
}

type failingDriver struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	calls int // calls are sequential
}

func (b *failingDriver) down() error {
	if b.calls++; b.calls == 1 {
		return status.Error(codes.Unavailable, "down")
	}
	return nil
}

func (b *failingDriver) CreateVolume(context.Context, *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "new"}}, b.down()
}

func (b *failingDriver) CreateSnapshot(_ context.Context, q *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: "new", SourceVolumeId: q.SourceVolumeId, ReadyToUse: true}}, b.down()
}

func (b *failingDriver) CreateVolumeGroupSnapshot(_ context.Context, q *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	g := &csi.VolumeGroupSnapshot{GroupSnapshotId: "new", ReadyToUse: true}
	for _, id := range q.SourceVolumeIds {
		g.Snapshots = append(g.Snapshots, &csi.Snapshot{SnapshotId: "of-" + id, SourceVolumeId: id, ReadyToUse: true})
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g}, b.down()
}
