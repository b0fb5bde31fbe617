// Package sanity runs csi-sanity, the CSI project's own conformance suite,
// against cleat csi as a process over its socket.
package sanity

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/sanity/specs"
	"github.com/cleatproject/cleat/test/spdk/rig"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

// deployment is one way to run the driver under the suite.
type deployment struct {
	name       string
	accessType string   // mount or block
	flags      []string // of cleat csi
	split      bool     // controller and node as two processes on one pool
	spdk       bool     // engine spdk with a double of the target, also as two processes
	example    bool     // the program of examples/engine, with flags
	// notRun are the specs that the suite skips because the driver
	// intentionally does not announce their capability; see docs/calls.md.
	notRun []string
}

// withoutPublish are the specs that need ControllerPublishVolume, which a
// node-local deployment does not need or announce by default.
var withoutPublish = []string{
	"ControllerPublishVolume", "ControllerUnpublishVolume", "volume lifecycle should work", "volume lifecycle should be idempotent",
}

// withoutController are the specs that need a single controller: no sidecar
// that expands or modifies through the controller has a per-node mode.
var withoutController = append(slices.Clone(withoutPublish), "ModifyVolume [Controller Server]", "ExpandVolume [Controller Server]", "volume attribute class")

// pending is marked pending by the suite itself.
const pending = "pagination should detect volumes added between pages and accept tokens when the last volume from a page is deleted"

var deployments = []deployment{
	{name: "mount", accessType: "mount", flags: []string{"--controller-publish"}},
	{name: "block", accessType: "block", flags: []string{"--controller-publish"}},
	{name: "reflink-pool", accessType: "mount", flags: []string{"--controller-publish", "--pool-image", "2GiB"}},
	{name: "split", accessType: "mount", flags: []string{"--controller-publish"}, split: true},
	{name: "per-node", accessType: "block", flags: []string{"--per-node"}, notRun: withoutController},
	{name: "default", accessType: "mount", notRun: withoutPublish},
	{name: "spdk", accessType: "block", spdk: true, notRun: notOfSPDK},
	{name: "example", accessType: "mount", example: true, notRun: notOfExample},
}

// notOfExample are the specs of abilities that the example does not have.
var notOfExample = []string{
	"Snapshot", "source snapshot", "source volume", "GroupController Service", "VolumeHealth", "ModifyVolume", "volume attribute class",
}

// notOfSPDK are the specs that are not run with engine spdk. Those of the node
// service need a kernel with NVMe/TCP and a target with data: they run in the
// guests of test/vm/nvme with engine none, which has the same node service. Any
// name can be that of a DPU, as nothing registers DPUs, so no node is unknown.
// The driver has neither group snapshots nor the topology of snapshots.
var notOfSPDK = []string{
	"Node Service", unknownNode,
	"GroupController Service", "CreateSnapshot [Controller Server] should succeed when creating a snapshot with accessibility requirements",
}

const unknownNode = "ControllerPublishVolume should fail when the node does not exist"

func TestSanity(t *testing.T) {
	cleat := testkit.Build(t, testkit.Cleat)
	suite := testkit.Build(t, testkit.Suite)
	for _, d := range deployments {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			run(t, cleat, suite, d)
		})
	}
}

func run(t *testing.T, cleat, suite string, d deployment) {
	controller, node := start(t, cleat, d)
	dir := t.TempDir()
	report := filepath.Join(dir, "report.json")
	args := []string{
		"-endpoint=unix://" + node, "-controllerendpoint=unix://" + controller,
		"-mountdir=" + filepath.Join(dir, "mount"), "-stagingdir=" + filepath.Join(dir, "staging"),
		"-accesstype=" + d.accessType, "-ginkgo.json-report=" + report, "-ginkgo.no-color",
	}
	if d.spdk {
		args = append(args, "-mutable=qos_rw_iops=1000", "-ginkgo.skip=Node Service|"+unknownNode)
	}
	cmd := exec.CommandContext(t.Context(), suite, args...)
	out, err := cmd.CombinedOutput()
	results := read(t, d, report)
	if err != nil || len(results) == 0 {
		t.Errorf("csi-sanity: %v\n%s", err, out)
	}
	judge(t, d, results)
	driver.CheckNothingLeft(t, dir)
}

func start(t *testing.T, cleat string, d deployment) (controller, node string) {
	t.Helper()
	if d.spdk {
		return startSPDK(t, cleat)
	}
	if d.example {
		dir := testkit.Dir(t)
		testkit.Must(t, os.Mkdir(filepath.Join(dir, "share"), 0o700))
		p := driver.Start(t, testkit.Build(t, testkit.Example), dir, "csi", "--share", filepath.Join(dir, "share"), "--max-volumes", "8", "--node-id", "sanity-node", "--node-address", "192.0.2.1")
		t.Cleanup(func() { checkEmpty(t, filepath.Join(dir, "share")) })
		return p.Socket, p.Socket
	}
	dir := t.TempDir()
	// A pool image stays mounted when its driver ends, for the volumes in use.
	t.Cleanup(func() { driver.Sweep(t, dir) })
	common := append([]string{"--pool", filepath.Join(dir, "pool"), "--max-volumes", "8", "--node-id", "sanity-node"}, d.flags...)
	if !d.split {
		p := driver.Start(t, cleat, dir, "csi", common...)
		return p.Socket, p.Socket
	}
	c := driver.Start(t, cleat, dir, "controller", append(common, "--services", "controller")...)
	n := driver.Start(t, cleat, dir, "node", append(common, "--services", "node")...)
	return c.Socket, n.Socket
}

// startSPDK starts the services of engine spdk. The target must be empty after
// the suite.
func startSPDK(t *testing.T, cleat string) (controller, node string) {
	t.Helper()
	dir := testkit.Dir(t)
	target := rig.NewTarget(t, spdktest.NewNetwork(nil), 4096)
	t.Cleanup(func() { target.CheckEmpty(t) })
	common := []string{"--engine", "spdk", "--cluster-id", "sanity", "--node-id", "sanity-node", "--max-volumes", "8"}
	c := driver.Start(t, cleat, dir, "controller", append(common, "--services", "controller", "--spdk-config", target.Config)...)
	n := driver.Start(t, cleat, dir, "node", append(common, "--services", "node", "--node-address", "192.0.2.1")...)
	return c.Socket, n.Socket
}

func checkEmpty(t *testing.T, dir string) {
	t.Helper()
	if left := testkit.Value(os.ReadDir(dir))(t); len(left) > 0 {
		t.Errorf("left in %s: %v", dir, left)
	}
}

// reportsVariable names a directory that gets the report of each deployment
// (make scoreboard).
const reportsVariable = "CLEAT_SANITY_REPORTS"

func read(t *testing.T, d deployment, path string) []specs.Spec {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Errorf("csi-sanity left no report: %v", err)
		return nil
	}
	if dir := os.Getenv(reportsVariable); dir != "" {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, d.name+".json"), data, 0o644))
	}
	return testkit.Value(specs.Parse(data))(t)
}

// judge checks that every spec passed, except the deployment's notRun, which
// must be skipped.
func judge(t *testing.T, d deployment, results []specs.Spec) {
	t.Helper()
	count := map[string]int{}
	left := map[string]bool{}
	for _, s := range results {
		count[s.State]++
		switch s.State {
		case specs.Passed:
		case specs.Skipped, specs.Pending:
			left[s.Name()] = true
			if s.State == specs.Pending && strings.Contains(s.Name(), pending) {
				continue
			}
			if !slices.ContainsFunc(d.notRun, func(part string) bool { return strings.Contains(s.Name(), part) }) {
				t.Errorf("skipped without being listed: %s: %s", s.Name(), s.Failure.Message)
			}
		default:
			t.Errorf("%s: %s: %s", s.State, s.Name(), s.Failure.Message)
		}
	}
	for _, part := range d.notRun {
		if !anyContains(left, part) {
			t.Errorf("notRun names %q, which ran", part)
		}
	}
	fmt.Printf("REPORT: csi-sanity %-12s %v of %d specs passed, %d not run\n", d.name, count[specs.Passed], len(results), count[specs.Skipped]+count[specs.Pending])
}

func anyContains(set map[string]bool, part string) bool {
	for name := range set {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}
