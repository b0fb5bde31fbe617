package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/testkit"
)

// BenchmarkCycle compares NodeStageVolume, NodePublishVolume,
// NodeUnpublishVolume and NodeUnstageVolume of a block volume, one after the
// other, with those of the CSI project's sample driver, alternately. Both serve
// a UNIX socket and store their files on the same file system. It prints
// medians.
func BenchmarkCycle(b *testing.B) {
	n := newBenchOn(b)
	cycles := map[string]*cycle{"": newCycle(n, n.Conn)}
	if conn := startSample(b, n.dir); conn != nil {
		cycles["-sample"] = newCycle(n, conn)
	}
	for b.Loop() {
		for _, c := range cycles {
			c.run()
		}
	}
	b.ReportMetric(0, "ns/op") // of both together it means nothing
	all := map[string]float64{}
	for whose, c := range cycles {
		for i, call := range c.calls() {
			b.ReportMetric(testkit.Median(c.took[i]), "ms-"+call.name+whose)
		}
		all[whose] = testkit.Median(c.took[len(c.took)-1])
		b.ReportMetric(all[whose], "ms-cycle"+whose)
	}
	if len(all) > 1 {
		b.ReportMetric(all[""]/all["-sample"], "ratio")
	}
}

// cycle is a block volume that is attached and detached again and again.
type cycle struct {
	testing.TB
	node            csi.NodeClient
	volume          *csi.Volume
	staging, target string
	took            [5][]time.Duration // of each call, and of all
}

func newCycle(n *bench, conn *grpc.ClientConn) *cycle {
	n.Helper()
	answer := testkit.Value(csi.NewControllerClient(conn).CreateVolume(context.Background(), &csi.CreateVolumeRequest{
		Name: "cycle", CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib}, VolumeCapabilities: []*csi.VolumeCapability{block()}}))(n)
	c := &cycle{TB: n, node: csi.NewNodeClient(conn), volume: answer.GetVolume()}
	c.staging = filepath.Join(n.dir, "staging-"+c.volume.GetVolumeId())
	c.target = filepath.Join(n.dir, "target-"+c.volume.GetVolumeId())
	n.Cleanup(func() {
		testkit.Value(csi.NewControllerClient(conn).DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: c.volume.GetVolumeId()}))(n)
	})
	return c
}

type call struct {
	name string
	do   func(context.Context) error
}

func (c *cycle) calls() []call {
	id, of := c.volume.GetVolumeId(), c.volume.GetVolumeContext()
	return []call{
		{"stage", func(ctx context.Context) error {
			return testkit.Err(c.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
				VolumeId: id, StagingTargetPath: c.staging, VolumeCapability: block(), VolumeContext: of}))
		}},
		{"publish", func(ctx context.Context) error {
			return testkit.Err(c.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
				VolumeId: id, StagingTargetPath: c.staging, TargetPath: c.target, VolumeCapability: block(), VolumeContext: of}))
		}},
		{"unpublish", func(ctx context.Context) error {
			return testkit.Err(c.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: c.target}))
		}},
		{"unstage", func(ctx context.Context) error {
			return testkit.Err(c.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: c.staging}))
		}},
	}
}

func (c *cycle) run() {
	c.Helper()
	testkit.Must(c, os.MkdirAll(c.staging, 0o750)) // as the kubelet does
	began := time.Now()
	at := began
	for i, call := range c.calls() {
		testkit.Must(c, call.do(context.Background()))
		now := time.Now()
		c.took[i], at = append(c.took[i], now.Sub(at)), now
	}
	c.took[4] = append(c.took[4], at.Sub(began))
}

// sampleModule is the CSI project's sample driver.
const sampleModule = "github.com/kubernetes-csi/csi-driver-host-path@v1.18.0"

// startSample runs the sample driver with its files below dir.
// CLEAT_SAMPLE_DRIVER names its program (hostpathplugin); otherwise it is built
// from its Go module. It returns nil if that fails.
func startSample(b *testing.B, dir string) *grpc.ClientConn {
	b.Helper()
	program := os.Getenv("CLEAT_SAMPLE_DRIVER")
	if program == "" {
		program = filepath.Join(dir, "hostpathplugin")
		if err := buildSample(b.Context(), program); err != nil {
			b.Logf("nothing to compare with: %v; name the program hostpathplugin in CLEAT_SAMPLE_DRIVER", err)
			return nil
		}
	}
	socket, state := filepath.Join(dir, "sample.sock"), filepath.Join(dir, "sample")
	testkit.Must(b, os.Mkdir(state, 0o750))
	p := testkit.Start(b, exec.Command(program, "-endpoint", "unix://"+socket, "-nodeid", "bench", "-statedir", state))
	conn := testkit.Dial(b, socket)
	testkit.Must(b, p.Until(func() error {
		return testkit.Err(csi.NewIdentityClient(conn).Probe(b.Context(), &csi.ProbeRequest{}))
	}))
	return conn
}

// buildSample builds the driver in the directory of its unpacked module: go
// install refuses the replacements in its go.mod.
func buildSample(ctx context.Context, program string) error {
	var stdout, stderr bytes.Buffer
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", sampleModule)
	download.Dir, download.Stdout, download.Stderr = os.TempDir(), &stdout, &stderr
	err := download.Run()
	var module struct{ Dir, Error string }
	if bad := json.Unmarshal(stdout.Bytes(), &module); bad != nil || module.Error != "" || err != nil {
		return fmt.Errorf("%s: %v %s %s", download, err, module.Error, stderr.Bytes())
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./cmd/hostpathplugin")
	build.Dir, build.Env = module.Dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", build, err, out)
	}
	return nil
}
