package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// SRIOV says with which double of a node the chapter on SR-IOV functions is
// walked. It is left out without one.
type SRIOV struct {
	// Double is the program of the double.
	Double string
	// LeftOut says why there is none.
	LeftOut string
}

// sriovAgainst is what the chapter runs against, for whoever reads its results.
const sriovAgainst = "a machine of files and a double of the kubelet"

func (s SRIOV) walked() bool { return s.Double != "" }

// leftOut says that the chapter is left out, and why, or is empty.
func (s SRIOV) leftOut() string {
	if s.walked() || s.LeftOut == "" {
		return ""
	}
	return "The chapter on SR-IOV functions is left out: " + s.LeftOut + "."
}

// chapter is what is walked.
func (s SRIOV) chapter() []step {
	if !s.walked() {
		return nil
	}
	all := []step{
		{name: "sriov-check", title: "check a config.json", run: sriovCheck,
			claim: "a misspelt selector is found with its line and the right word, before it matches every device"},
		{name: "sriov-start", title: "start the SR-IOV plugin", run: sriovStart,
			claim: "functions that are there are not offered before the daemon answers for them"},
		{name: "sriov-enable", title: "start the SR-IOV daemon", run: sriovEnable,
			claim: "functions are offered when they are as the node state wants them, and not while they are made"},
		{name: "sriov-pod", title: "give a pod two functions", run: sriovPod,
			claim: "a container learns which functions it has by PCIDEVICE_* and gets their device nodes"},
		{name: "sriov-kill", title: "kill -9 the SR-IOV daemon", run: sriovKill,
			claim: "when the daemon is killed all is taken back, and it is offered again when the daemon is back"},
		{name: "sriov-hang", title: "stop the daemon's clock", run: sriovHang,
			claim: "when the daemon hangs, with its connection open, all is taken back after its lease"},
		{name: "sriov-kubelet", title: "restart the kubelet's double", run: sriovKubelet,
			claim: "after a restart of the kubelet the functions are offered again"},
		{name: "sriov-change", title: "want other functions", run: sriovChange,
			claim: "functions are changed only after nothing is offered any more and no pod has one of them"},
		{name: "sriov-stop", title: "stop plugin and daemon", run: sriovStop,
			claim: "a plugin that ends leaves the kubelet a capacity of 0, and no socket"},
	}
	all[0].chapter = "SR-IOV functions, against " + sriovAgainst + ": plugin and daemon are the real ones, no function and no pod is."
	for i := range all {
		all[i].against = sriovAgainst
	}
	return all
}

// sriovState is what the steps of the chapter know of each other.
type sriovState struct {
	plugin, daemon, double *process
}

const (
	sriovResource = "example.com/vf"
	sriovPF       = "0000:3b:00.0" // as the double has it
	sriovNetdev   = "ens1f0"
	sriovGuest    = "guest" // a pod
	// sriovLease is how long a daemon that is not heard of is believed.
	sriovLease = 2 * time.Second
	// sriovLate is long after it, and before gRPC itself finds that a daemon which
	// hangs is gone.
	sriovLate = 4 * sriovLease
)

// Numbers of functions: at the start, as the first node state wants them, and
// the second one.
const (
	sriovAtBoot = 4
	sriovFirst  = 8
	sriovSecond = 6
	sriovOfPod  = 2
)

func (w *walk) sriovPath(name ...string) string {
	return filepath.Join(append([]string{w.dir, "sriov"}, name...)...)
}
func (w *walk) nodeSocket() string    { return w.sriovPath("node.sock") }
func (w *walk) controlSocket() string { return w.sriovPath("control", "plugin.sock") }
func (w *walk) daemonStatus() string  { return w.sriovPath("daemon.sock") }

// devicePluginSocket is where the plugin serves the kubelet.
func (w *walk) devicePluginSocket() string {
	return w.sriovPath("node", "kubelet", "device-plugins", "example.com_vf.sock")
}
func (w *walk) nodeState() string   { return w.sriovPath("node-state.yaml") }
func (w *walk) sriovConfig() string { return w.sriovPath("config.json") }

func (w *walk) sriovPluginFlags() []string {
	return []string{
		"sriov", "plugin", "--controlled-mode", "--control-socket", w.controlSocket(), "--config-file", w.sriovConfig(),
		"--sysfs-root", w.sriovPath("node", "sys"), "--dev-root", w.sriovPath("node", "dev"),
		"--kubelet-dir", w.sriovPath("node", "kubelet"), "--registration", "register", "--state-dir", w.sriovPath("plugin"),
		"--device-info-dir", w.sriovPath("devinfo"), "--cdi-dir", w.sriovPath("cdi"), "--log-format", "text",
	}
}

func (w *walk) sriovDaemonFlags() []string {
	return []string{
		"sriov", "daemon", "--mode", "apply", "--control-socket", w.controlSocket(), "--node-state", w.nodeState(),
		"--plugin-config", w.sriovConfig(), "--pod-resources-socket", w.sriovPath("node", "kubelet", "pod-resources", "kubelet.sock"),
		"--sysfs-root", w.sriovPath("node", "sys"), "--state-dir", w.sriovPath("daemon"), "--lease", sriovLease.String(),
		"--metrics-address", w.daemonStatus(), "--log-format", "text",
	}
}

// sriovConfigText selects by that key, which may be misspelt.
func sriovConfigText(key string) string {
	return `{"resourceList": [{
  "resourceName": "vf", "resourcePrefix": "example.com",
  "selectors": [{
    "drivers": ["vfio-pci"],
    "` + key + `": ["` + sriovNetdev + `"]
  }]
}]}
`
}

// wantFunctions writes a node state, whole at once as an orchestrator would.
func (w *walk) wantFunctions(generation, number int) error {
	text := fmt.Sprintf(`apiVersion: sriovnetwork.openshift.io/v1
kind: SriovNetworkNodeState
metadata: {name: demo, generation: %d}
spec:
  interfaces:
  - pciAddress: %q
    name: %s
    numVfs: %d
    mtu: 9000
    vfGroups:
    - {resourceName: vf, deviceType: vfio-pci, policyName: demo, vfRange: "0-%[5]d"}
`, generation, sriovPF, sriovNetdev, number, number-1)
	draft := w.nodeState() + ".draft"
	if err := os.WriteFile(draft, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(draft, w.nodeState())
}

// startNode starts the double of a node.
func (w *walk) startNode() (err error) {
	cmd := command(w.config.SRIOV.Double, "cleat-node-double", "-dir", w.sriovPath("node"), "-socket", w.nodeSocket())
	w.sriov.double, err = w.startCommand("double of a node", cmd, false)
	return err
}

func (w *walk) startSRIOVPlugin() (err error) {
	cmd := command(w.config.Program, "cleat", w.sriovPluginFlags()...)
	w.sriov.plugin, err = w.startIn(w.sriov.double, "SR-IOV plugin", cmd)
	return err
}

// startSRIOVDaemon starts the daemon, which ends with the demo also while it is
// stopped.
func (w *walk) startSRIOVDaemon() (err error) {
	cmd := command(w.config.Program, "cleat", w.sriovDaemonFlags()...)
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	w.sriov.daemon, err = w.startIn(w.sriov.double, "SR-IOV daemon", cmd)
	return err
}

// listed writes numbers as people do: 0, 8.
func listed(numbers []int) string {
	var words []string
	for _, n := range numbers {
		words = append(words, strconv.Itoa(n))
	}
	return strings.Join(words, ", ")
}
