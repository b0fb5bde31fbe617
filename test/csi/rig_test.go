// Package csi_test tests cleat csi as a process over its socket, with a plain
// CSI client: as an orchestrator, as an adversary, and on a machine with
// faults.
package csi_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	mib    = 1 << 20
	nodeID = "node-1"
)

// atOnce keeps the race detector from sleeping a second at every exit.
const atOnce = "GORACE=atexit_sleep_ms=0"

// cleat is the program under test, built once: with the race detector, and with
// crash points, which are inert until a test arms one.
var cleat string

func TestMain(m *testing.M) {
	kernelcall.Main()
	os.Exit(testkit.RunMain(m, func(dir string) error {
		cleat = filepath.Join(dir, "cleat")
		return testkit.BuildTo(context.Background(), cleat, testkit.Cleat, "-race", "-tags", "crashpoints")
	}))
}

// rig is a driver with everything needed to restart it.
type rig struct {
	testing.TB
	process *driver.Process // nil when stopped
	dir     string          // contains all files of the test
	name    string
	pool    string
	program string // cleat, or a wrapper
	flags   []string
	runs    []*driver.Process // all that were started
}

// reflinkPool creates the pool in its own XFS image; without it the pool is a
// directory of the machine's file system, assumed to have no reflinks.
var reflinkPool = []string{"--pool-image", "2GiB", "--overprovision-ratio", "20"}

// newRig starts a driver on its own pool until the test ends. The driver must
// exit with code 0, without a race, and leave nothing.
func newRig(t testing.TB, flags ...string) *rig {
	t.Helper()
	r := makeRig(t, "csi", t.TempDir(), flags...)
	r.start()
	return r
}

// makeRig is newRig in a given directory, and without the start.
func makeRig(t testing.TB, name, dir string, flags ...string) *rig {
	t.Helper()
	r := &rig{TB: t, dir: dir, name: name, pool: filepath.Join(dir, "pool"), program: cleat}
	r.flags = append([]string{"--pool", r.pool, "--node-id", nodeID, "--log-level", "debug"}, flags...)
	t.Cleanup(r.end)
	return r
}

// newRigOn is newRig with the pool on its own file system, which exists as long
// as the test.
func newRigOn(t testing.TB, kind mkfs.Type, flags ...string) *rig {
	t.Helper()
	dir := t.TempDir()
	driver.MountImage(t, filepath.Join(dir, "pool"), kind, 2<<30)
	r := makeRig(t, "csi", dir, flags...)
	r.start()
	return r
}

func (r *rig) start(env ...string) {
	r.Helper()
	p := testkit.Value(driver.Launch(r.Context(), r.program, r.dir, r.name, append(env, atOnce), r.flags...))(r)
	r.process, r.runs = p, append(r.runs, p)
}

// stop stops the driver as a node drain does.
func (r *rig) stop() {
	r.Helper()
	if r.process == nil {
		return
	}
	if err := r.process.Stop(); err != nil {
		r.Errorf("cleat csi did not stop cleanly: %v\n%s", err, r.process.Log.String())
	}
	r.process = nil
}

// kill kills the driver as the kernel's OOM killer does.
func (r *rig) kill() {
	r.Helper()
	testkit.Must(r, r.process.Kill())
	r.process = nil
}

func (r *rig) end() {
	r.stop()
	for _, p := range r.runs {
		for _, word := range []string{"DATA RACE", `"msg":"panic"`, "goroutine "} {
			if log := p.Log.String(); strings.Contains(log, word) {
				r.Errorf("the driver's log holds %q:\n%s", word, log)
			}
		}
	}
	for _, line := range r.left() {
		r.Errorf("left over: %s", line)
	}
	driver.Sweep(r, r.dir)
}

// left lists mounts and devices of volumes; the pool's own file system stays
// mounted for the next start.
func (r *rig) left() []string {
	return slices.DeleteFunc(driver.Left(context.WithoutCancel(r.Context()), r.dir), func(line string) bool {
		return line == "mount "+r.pool || strings.HasSuffix(line, " on "+r.pool+".img") || strings.HasSuffix(line, " on "+r.pool+".image")
	})
}

func (r *rig) identity() csi.IdentityClient      { return csi.NewIdentityClient(r.process.Conn) }
func (r *rig) controller() csi.ControllerClient  { return csi.NewControllerClient(r.process.Conn) }
func (r *rig) node() csi.NodeClient              { return csi.NewNodeClient(r.process.Conn) }
func (r *rig) groups() csi.GroupControllerClient { return csi.NewGroupControllerClient(r.process.Conn) }
func (r *rig) metadata() csi.SnapshotMetadataClient {
	return csi.NewSnapshotMetadataClient(r.process.Conn)
}

// refused wants an error of the code whose message contains the words.
func (r *rig) refused(err error, code codes.Code, words ...string) {
	r.Helper()
	if status.Code(err) != code {
		r.Errorf("got %v, want code %v", err, code)
		return
	}
	for _, word := range words {
		if !strings.Contains(status.Convert(err).Message(), word) {
			r.Errorf("the message %q does not hold %q", status.Convert(err).Message(), word)
		}
	}
}

// sub runs f as a subtest with the same driver.
func (r *rig) sub(t *testing.T, name string, f func(r *rig)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		inner := *r
		inner.TB = t
		f(&inner)
		r.process, r.runs = inner.process, inner.runs // f can have restarted the driver
	})
}
