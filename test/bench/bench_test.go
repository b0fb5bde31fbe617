// Package bench measures cleat csi as a process over its socket: the cost of a
// call with few and with many volumes, the cost of the data path over that of
// the file system below, and the driver's memory. Run it with make bench.
// syscalls.awk counts the system calls of each CSI call.
package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const mib = 1 << 20

// bench is a driver with its own reflink pool.
type bench struct {
	testing.TB
	*driver.Process
	dir  string
	pool string
}

func newBench(b *testing.B) *bench { return newBenchOn(b, "--pool-image", "4GiB") }

// newBenchOn is newBench with another kind of pool.
func newBenchOn(b *testing.B, flags ...string) *bench {
	dir := b.TempDir()
	pool := filepath.Join(dir, "pool")
	b.Cleanup(func() { driver.Sweep(b, dir) }) // a pool's image stays mounted
	p := driver.Start(b, testkit.Build(b, testkit.Cleat, "-trimpath", "-ldflags=-s -w"), dir, "bench",
		append(flags, "--pool", pool, "--overprovision-ratio", "1000", "--node-id", "bench", "--log-level", "warn")...)
	return &bench{TB: b, Process: p, dir: dir, pool: pool}
}

func (n *bench) controller() csi.ControllerClient { return csi.NewControllerClient(n.Conn) }
func (n *bench) node() csi.NodeClient             { return csi.NewNodeClient(n.Conn) }

func block() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

func filesystem(kind string) *csi.VolumeCapability {
	c := block()
	c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: kind}}
	return c
}

func (n *bench) create(name string, size int64, capability *csi.VolumeCapability, source *csi.VolumeContentSource) *csi.Volume {
	n.Helper()
	answer := testkit.Value(n.controller().CreateVolume(context.Background(), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csi.VolumeCapability{capability}, VolumeContentSource: source}))(n)
	return answer.GetVolume()
}

func (n *bench) remove(id string) {
	n.Helper()
	testkit.Value(n.controller().DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: id}))(n)
}

func (n *bench) snapshot(name, source string) *csi.Snapshot {
	n.Helper()
	answer := testkit.Value(n.controller().CreateSnapshot(context.Background(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: source}))(n)
	return answer.GetSnapshot()
}

func (n *bench) removeSnapshot(id string) {
	n.Helper()
	testkit.Value(n.controller().DeleteSnapshot(context.Background(), &csi.DeleteSnapshotRequest{SnapshotId: id}))(n)
}

func fromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func fromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

// attach stages and publishes a volume. It returns the target path and a
// function that unpublishes and unstages.
func (n *bench) attach(v *csi.Volume, capability *csi.VolumeCapability) (target string, detach func()) {
	n.Helper()
	ctx := context.Background()
	staging := filepath.Join(n.dir, "staging-"+v.GetVolumeId())
	target = filepath.Join(n.dir, "target-"+v.GetVolumeId())
	testkit.Must(n, os.Mkdir(staging, 0o750))
	testkit.Value(n.node().NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: v.GetVolumeId(),
		StagingTargetPath: staging, VolumeCapability: capability, VolumeContext: v.GetVolumeContext()}))(n)
	testkit.Value(n.node().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: v.GetVolumeId(), TargetPath: target,
		StagingTargetPath: staging, VolumeCapability: capability, VolumeContext: v.GetVolumeContext()}))(n)
	return target, func() {
		n.Helper()
		testkit.Value(n.node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), TargetPath: target}))(n)
		testkit.Value(n.node().NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: staging}))(n)
	}
}

// BenchmarkCalls measures calls with 10, 1,000 and 10,000 thin raw-block
// volumes; the cost must not grow with their number.
func BenchmarkCalls(b *testing.B) {
	n := newBench(b)
	b.Run("idle", func(b *testing.B) {
		for b.Loop() {
			testkit.Value(csi.NewIdentityClient(n.Conn).Probe(b.Context(), &csi.ProbeRequest{}))(b)
		}
		b.ReportMetric(testkit.Resident(b, n.PID()), "MiB-resident")
	})
	present := 0
	for _, want := range []int{10, 1000, 10000} {
		for ; present < want; present++ {
			n.create(fmt.Sprintf("present-%d", present), 64*mib, block(), nil)
		}
		b.Run(fmt.Sprintf("present=%d", want), func(b *testing.B) { n.calls(b) })
	}
}

func (n *bench) calls(b *testing.B) {
	serial := 0
	name := func() string { serial++; return fmt.Sprintf("%s-%d", b.Name(), serial) }
	b.Run("create", func(b *testing.B) {
		for b.Loop() {
			v := n.create(name(), 64*mib, block(), nil)
			b.StopTimer()
			n.remove(v.GetVolumeId())
			b.StartTimer()
		}
	})
	b.Run("delete", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			v := n.create(name(), 64*mib, block(), nil)
			b.StartTimer()
			n.remove(v.GetVolumeId())
		}
	})
	source := n.create(name(), 64*mib, block(), nil).GetVolumeId()
	b.Run("snapshot", func(b *testing.B) {
		for b.Loop() {
			s := n.snapshot(name(), source)
			b.StopTimer()
			n.removeSnapshot(s.GetSnapshotId())
			b.StartTimer()
		}
	})
	b.Run("clone", func(b *testing.B) {
		for b.Loop() {
			v := n.create(name(), 64*mib, block(), fromVolume(source))
			b.StopTimer()
			n.remove(v.GetVolumeId())
			b.StartTimer()
		}
	})
	n.remove(source)
	b.Run("list-100", func(b *testing.B) {
		for b.Loop() {
			testkit.Value(n.controller().ListVolumes(b.Context(), &csi.ListVolumesRequest{MaxEntries: 100}))(b)
		}
		b.ReportMetric(testkit.Resident(b, n.PID()), "MiB-resident")
	})
}

// BenchmarkSnapshot measures snapshot and restore of a volume that holds 256 MiB:
// raw block, and mounted file systems that are idle.
func BenchmarkSnapshot(b *testing.B) {
	n := newBench(b)
	for _, kind := range []string{"block", "ext4", "xfs"} {
		capability, size := block(), int64(512*mib)
		if kind != "block" {
			capability = filesystem(kind)
		}
		v := n.create("data-"+kind, size, capability, nil)
		target, detach := n.attach(v, capability)
		file := target
		if kind != "block" {
			file = filepath.Join(target, "data")
		}
		fill(b, file, 256*mib)
		b.Run(kind+"/snapshot", func(b *testing.B) { n.snapshots(b, v.GetVolumeId(), target, kind != "block") })
		serial := 0
		s := n.snapshot(kind, v.GetVolumeId())
		b.Run(kind+"/restore", func(b *testing.B) {
			for b.Loop() {
				serial++
				r := n.create(fmt.Sprintf("%s-%d", kind, serial), size, capability, fromSnapshot(s.GetSnapshotId()))
				b.StopTimer()
				n.remove(r.GetVolumeId())
				b.StartTimer()
			}
		})
		detach()
	}
}

// rest is how long a file system is left idle before each freeze. A second
// freeze soon after the first is faster: its lock (percpu_rw_semaphore) does
// not wait for another RCU grace period.
const rest = 100 * time.Millisecond

// snapshots measures snapshots of a volume and, alternately, the two ioctls
// that freeze and thaw its mounted file system, the lower bound of a snapshot.
// It prints medians.
func (n *bench) snapshots(b *testing.B, id, target string, mounted bool) {
	var took, bare []time.Duration
	for b.Loop() {
		b.StopTimer()
		if mounted {
			time.Sleep(rest)
			bare = append(bare, freezeAndThaw(b, target))
			time.Sleep(rest)
		}
		b.StartTimer()
		began := time.Now()
		s := n.snapshot(fmt.Sprintf("%s-%d", id, len(took)), id)
		took = append(took, time.Since(began))
		b.StopTimer()
		n.removeSnapshot(s.GetSnapshotId())
		b.StartTimer()
	}
	b.ReportMetric(testkit.Median(took), "ms-p50")
	if mounted {
		b.ReportMetric(testkit.Median(bare), "ms-p50-bare-freeze")
		b.ReportMetric(testkit.Median(took)-testkit.Median(bare), "ms-more-than-bare")
	}
}

// freezeAndThaw calls FIFREEZE and FITHAW on a mount point.
func freezeAndThaw(b *testing.B, mountpoint string) time.Duration {
	b.Helper()
	root := testkit.Value(os.Open(mountpoint))(b)
	defer root.Close()
	began := time.Now()
	testkit.Must(b, unix.IoctlSetInt(int(root.Fd()), 0xC0045877, 0), unix.IoctlSetInt(int(root.Fd()), 0xC0045878, 0))
	return time.Since(began)
}

// BenchmarkChangedBlocks compares listing the changes between two snapshots
// with reading both.
func BenchmarkChangedBlocks(b *testing.B) {
	n := newBench(b)
	v := n.create("data", 1024*mib, block(), nil)
	target, detach := n.attach(v, block())
	defer detach()
	fill(b, target, 1024*mib)
	base := n.snapshot("base", v.GetVolumeId()).GetSnapshotId()
	scatter(b, target, 1024*mib, 500)
	changed := n.snapshot("target", v.GetVolumeId()).GetSnapshotId()
	var list, read time.Duration
	b.Run("list", func(b *testing.B) {
		ranges := 0
		for b.Loop() {
			ranges = n.delta(base, changed)
		}
		list = b.Elapsed() / time.Duration(b.N)
		b.ReportMetric(float64(ranges), "ranges")
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			compare(b, filepath.Join(n.pool, "snapshots", base), filepath.Join(n.pool, "snapshots", changed))
		}
		read = b.Elapsed() / time.Duration(b.N)
	})
	fmt.Printf("changed blocks: listing takes 1/%.0f of reading both snapshots\n", float64(read)/float64(max(list, 1)))
}

func (n *bench) delta(base, target string) (ranges int) {
	stream := testkit.Value(csi.NewSnapshotMetadataClient(n.Conn).GetMetadataDelta(context.Background(),
		&csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target}))(n)
	for {
		answer, err := stream.Recv()
		if err != nil {
			if ranges == 0 {
				n.Fatal(err)
			}
			return ranges
		}
		ranges += len(answer.GetBlockMetadata())
	}
}

// BenchmarkDataPath compares fio on an attached volume with fio on a file of
// the pool's own file system, alternately, and prints the ratio: in a pool that
// is a directory of the machine's file system, and in a pool image, which is on
// a loop device itself.
func BenchmarkDataPath(b *testing.B) {
	b.Run("directory", func(b *testing.B) { newBenchOn(b).dataPath(b) })
	b.Run("image", func(b *testing.B) { newBench(b).dataPath(b) })
}

func (n *bench) dataPath(b *testing.B) {
	v := n.create("data", 512*mib, block(), nil)
	target, detach := n.attach(v, block())
	defer detach()
	own := filepath.Join(n.pool, "fio")
	defer os.Remove(own)
	fill(b, target, 512*mib)
	fill(b, own, 512*mib)
	for _, job := range []struct{ name, rw, bs string }{
		{"4k-random-read", "randread", "4k"}, {"4k-random-write", "randwrite", "4k"},
		{"1M-read", "read", "1M"}, {"1M-write", "write", "1M"},
	} {
		b.Run(job.name, func(b *testing.B) {
			var volume, pool float64
			for b.Loop() {
				volume += fio(b, target, job.rw, job.bs)
				pool += fio(b, own, job.rw, job.bs)
			}
			b.ReportMetric(volume/float64(b.N), "MiB/s-volume")
			b.ReportMetric(pool/float64(b.N), "MiB/s-pool")
			b.ReportMetric(volume/pool, "ratio")
		})
	}
}
