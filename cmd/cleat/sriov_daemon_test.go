package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/sriov/daemon"
	"github.com/cleatproject/cleat/sriov/host"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
)

const twoKinds = `{"resourceList": [
  {"resourceName": "net", "resourcePrefix": "example.com", "selectors": [{"pfNames": ["ens1"], "drivers": ["iavf"]}]},
  {"resourceName": "dpdk", "resourcePrefix": "example.com", "selectors": [{"rootDevices": ["0000:3b:00.0"], "drivers": ["vfio-pci"]}]}
]}`

// sriovNode is a fake machine with a controlled plugin and a daemon.
type sriovNode struct {
	*fakeNode
	writes atomic.Int32
	args   []string // of the daemon
}

func newSriovNode(t *testing.T, flags ...string) *sriovNode {
	t.Helper()
	n := &sriovNode{fakeNode: newFakeNode(t, twoKinds)}
	// With PodResources a withdrawal ends after the kubelet has processed it, not after Send.
	(&sriovPods{kubelet: n.kubelet}).serveBelow(t, filepath.Join(n.dir, "kubelet"))
	n.args = append([]string{
		"--sysfs-root", n.tree.Sysfs, "--control-socket", filepath.Join(n.dir, "control", "control.sock"), "--plugin-config", filepath.Join(n.dir, "config.json"),
		"--pod-resources-socket", "", "--state-dir", filepath.Join(n.dir, "daemon"), "--metrics-address", n.metrics(), "--node", "n1",
	}, flags...)
	return n
}

func (n *sriovNode) metrics() string { return filepath.Join(n.dir, "daemon.sock") }

// machine refuses a change while the kubelet can allocate a function.
func (n *sriovNode) machine(t *testing.T) *host.Config {
	return &host.Config{
		Links: sysfstest.Links{Tree: n.tree}, Network: sysfstest.Network{Tree: n.tree, Mode: "shared"},
		Write: func(name, value string) error {
			n.writes.Add(1)
			for _, resource := range n.kubelet.Resources() {
				if c := n.kubelet.Allocatable(resource); c > 0 {
					t.Errorf("%s is written to %s while the kubelet offers %d of %s", value, name, c, resource)
				}
			}
			return n.tree.Write(name, value)
		},
		LoadModule: func(_ context.Context, name string) error {
			if name != "vfio-pci" {
				return errors.New("modprobe: module not found")
			}
			return n.tree.LoadDriver("pci", name)
		},
	}
}

// daemon runs a daemon until end is called.
func (n *sriovNode) daemon(t *testing.T) (end func() error) {
	t.Helper()
	c := newSriovDaemonCommand(n.machine(t))
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetArgs(n.args)
	log := &testkit.Log{}
	c.SetErr(log)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.ExecuteContext(ctx) }()
	var result error
	done := false
	end = func() error {
		if !done {
			done = true
			cancel()
			result = <-ended
		}
		if t.Failed() {
			t.Logf("the daemon:\n%s", log)
		}
		return result
	}
	t.Cleanup(func() { _ = end() })
	return end
}

func (n *sriovNode) status(t *testing.T) (s daemon.Status) {
	var document struct{ SRIOV *daemon.Status }
	document.SRIOV = &s
	if err := server.Ask(t.Context(), n.metrics(), "/status", &document); err != nil {
		t.Log(err)
	}
	return s
}

func sriovSpec(generation, vfs int) string {
	return fmt.Sprintf(`apiVersion: sriovnetwork.openshift.io/v1
kind: SriovNetworkNodeState
metadata: {name: n1, generation: %d}
spec:
  interfaces:
  - pciAddress: "0000:3b:00.0"
    numVfs: %d
    vfGroups:
    - {resourceName: net, vfRange: 0-%d}
    - {resourceName: dpdk, deviceType: vfio-pci, vfRange: %d-%d}
`, generation, vfs, vfs-2, vfs-1, vfs-1)
}

func putFile(t *testing.T, path, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path+".tmp", []byte(text), 0o600))
	testkit.Must(t, os.Rename(path+".tmp", path))
}

// Configures functions of two kinds and changes their number, with restarts of daemon
// and plugin: no function is changed while it is offered.
func TestSriovDaemonApplies(t *testing.T) {
	n := newSriovNode(t)
	state := filepath.Join(n.dir, "state.yaml")
	n.args = append(n.args, "--mode", "apply", "--node-state", state, "--unacknowledged-wait", "1s")
	putFile(t, state, sriovSpec(1, 4))
	_, endPlugin := n.run(t, "--controlled-mode")
	end := n.daemon(t)
	n.offers(t, "example.com/net", 3)
	n.offers(t, "example.com/dpdk", 1)
	if n.writes.Load() == 0 {
		t.Error("nothing was written")
	}
	putFile(t, state, sriovSpec(2, 6))
	n.offers(t, "example.com/net", 5)
	n.offers(t, "example.com/dpdk", 1)
	testkit.Eventually(t, "its status says so", func() bool {
		s := n.status(t)
		return s.Phase == daemon.Serving && s.Generation == 2 && s.Gate.Generation == 2 && s.Gate.Devices == 6
	})
	var ready struct{ Ready bool }
	if err := server.Ask(t.Context(), n.metrics(), "/readyz", &ready); err != nil {
		t.Error(err)
	}

	// Devices are withdrawn without the daemon, and offered without writes after its restart.
	if err := end(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	n.offers(t, "example.com/net", 0)
	before := n.writes.Load()
	end = n.daemon(t)
	n.offers(t, "example.com/net", 5)
	if more := n.writes.Load() - before; more != 0 {
		t.Errorf("%d writes to a node in the desired state", more)
	}

	// A restarted plugin offers its devices again.
	if err := endPlugin(); err != nil {
		t.Errorf("the plugin ended with %v", err)
	}
	n.offers(t, "example.com/net", 0)
	n.run(t, "--controlled-mode")
	n.offers(t, "example.com/net", 5)
	if err := end(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}

// The test acts as the operator's daemon.
func TestSriovDaemonFollows(t *testing.T) {
	n := newSriovNode(t)
	api := kubeapi.New(t, kubeapi.NodeStates())
	n.args = append(n.args, "--kubeconfig", api.Kubeconfig(t)) // --mode follow is the default
	n.run(t, "--controlled-mode")
	end := n.daemon(t)
	spec := map[string]any{"interfaces": []any{map[string]any{"pciAddress": "0000:3b:00.0", "numVfs": 4}}}
	api.SetSpec("n1", spec)
	testkit.Eventually(t, "it waits for the operator", func() bool { return n.status(t).Phase == daemon.Pending })
	n.offers(t, "example.com/net", 0)
	testkit.Must(t, (sysfstest.Network{Tree: n.tree}).SetUp(t.Context(), "ens1"))
	api.SetStatus("n1", map[string]any{"syncStatus": "Succeeded"})
	n.offers(t, "example.com/net", 4)
	began := time.Now()
	api.SetSpec("n1", map[string]any{"interfaces": []any{map[string]any{"pciAddress": "0000:3b:00.0", "numVfs": 2}}})
	n.offers(t, "example.com/net", 0)
	t.Logf("withdrawn %s after the change", time.Since(began))
	testkit.Eventually(t, "it waits again", func() bool { return n.status(t).Phase == daemon.Pending })
	for _, number := range []string{"0", "2"} {
		testkit.Must(t, n.tree.Write(sysfstest.Device("0000:3b:00.0")+"/sriov_numvfs", number))
	}
	n.offers(t, "example.com/net", 2) // the status was Succeeded all the time
	if err := end(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	if c := n.writes.Load(); c != 0 {
		t.Errorf("it wrote %d times", c)
	}
}

func (n *sriovNode) preview(t *testing.T, flags ...string) (string, error) {
	t.Helper()
	c := newSriovDaemonCommand(n.machine(t))
	c.SilenceUsage, c.SilenceErrors = true, true
	var out, log strings.Builder
	c.SetOut(&out)
	c.SetErr(&log)
	c.SetArgs(append(slices.Clone(n.args), flags...))
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func TestSriovDaemonDryRun(t *testing.T) {
	n := newSriovNode(t)
	state := filepath.Join(n.dir, "state.yaml")
	n.args = append(n.args, "--mode", "apply", "--node-state", state, "--dry-run")
	if _, err := n.preview(t); !errors.Is(err, daemon.ErrNoState) {
		t.Errorf("without a file: %v", err)
	}
	putFile(t, state, sriovSpec(7, 3))
	out, err := n.preview(t)
	for _, word := range []string{"generation 7", "2. remove the virtual functions of 0000:3b:00.0", "3. create 3 virtual functions", "functions disrupted by the steps:", "0000:3b:", "more steps can follow"} {
		if err != nil || !strings.Contains(out, word) {
			t.Errorf("%v, want %q in\n%s", err, word, out)
		}
	}
	out, err = n.preview(t, "-o", "json")
	var p daemon.Preview
	if jsonErr := json.Unmarshal([]byte(out), &p); err != nil || jsonErr != nil || len(p.Steps) != 3 || len(p.Touches) < 4 {
		t.Errorf("%v, %v: %s", err, jsonErr, out)
	}
	putFile(t, state, strings.ReplaceAll(sriovSpec(8, 3), "3b:00.0", "af:00.0"))
	if out, err = n.preview(t); err != nil || !strings.Contains(out, "0000:af:00.0: no network function with SR-IOV support at this address") || !strings.Contains(out, "not configured by this daemon") {
		t.Errorf("%v\n%s", err, out)
	}
	putFile(t, state, sriovSpec(9, 99))
	if out, err = n.preview(t); err == nil || !strings.Contains(err.Error(), "1 problem") || !strings.Contains(out, "0000:3b:00.0: numVfs is 99") {
		t.Errorf("%v\n%s", err, out)
	}
	putFile(t, filepath.Join(n.dir, "guids"), "{}")
	if out, err = n.preview(t, "--guid-file", filepath.Join(n.dir, "guids")); !strings.Contains(out, "GUID file") {
		t.Errorf("a faulty file of GUIDs: %v\n%s", err, out)
	}
	if n.writes.Load() != 0 {
		t.Error("it wrote")
	}
}

func TestSriovDaemonRefuses(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	for _, c := range []struct{ flags, says string }{
		{"--mode both", "both"},
		{"--node-state a --kubeconfig b", "mutually exclusive"},
		{"--lease 10ms", "--lease 10ms"},
		{"--hold -1s", "--hold"},
		{"--resync 0s", "--resync"},
		{"--settle -1s", "--settle"},
		{"--accept bridges", "bridge, driver"},
		{"--unacknowledged-wait 0s", "--unacknowledged-wait"},
		{"--pod-resources-socket kubelet.sock", "absolute"},
		{"--control-socket c.sock --node-state a", "--control-socket"},
		{"--log-level loud", "loud"},
		{"", "--node-state"},
		{"--node ../x --kubeconfig b", "../x"},
		{"--kubeconfig /nowhere/config", "/nowhere/config"},
	} {
		cmd := newSriovDaemonCommand(nil)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetErr(&testkit.Log{})
		cmd.SetArgs(append(strings.Fields(c.flags), "--state-dir", dir))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := cmd.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q in it", c.flags, err, c.says)
		}
		cancel()
	}
}
