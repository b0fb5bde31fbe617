package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
)

const (
	sriovResource = "example.com/vf"
	sriovPF       = "0000:3b:00.0" // as in the double
	sriovNetdev   = "ens1f0"
	sriovLease    = 2 * time.Second
	// sriovLate is long after the lease, and before gRPC keepalive detects a
	// daemon that hangs.
	sriovLate = 4 * sriovLease
	// Numbers of functions: at the start, in the first and in the second node
	// state, and of a pod.
	sriovAtBoot, sriovFirst, sriovSecond, sriovOfPod = 4, 8, 6, 2
)

// sriov is the state of the SR-IOV chapter.
type sriov struct {
	*demo
	plugin, daemon, node *process
}

func newSRIOV(ctx context.Context, d *demo) chapter {
	s := &sriov{demo: d}
	c := chapter{
		name: "sriov", against: "a file tree and a double of the kubelet",
		heading: "SR-IOV functions of cleat sriov, against a file tree and a double of the kubelet: plugin and daemon are real, functions and pods are not.",
		steps: []step{
			{name: "sriov-start", title: "start the SR-IOV plugin", run: s.start,
				claim: "existing functions are not offered before the daemon confirms them"},
			{name: "sriov-enable", title: "start the SR-IOV daemon", run: s.enable,
				claim: "functions are offered once they match the node state, and not while they are created"},
			{name: "sriov-pod", title: "give a pod two functions", run: s.pod,
				claim: "a container gets its functions in PCIDEVICE_* and their device nodes"},
			{name: "sriov-kill", title: "kill -9 the SR-IOV daemon", run: s.kill,
				claim: "when the daemon is killed all functions are withdrawn; they are offered again after its restart"},
			{name: "sriov-hang", title: "suspend the SR-IOV daemon", run: s.suspend,
				claim: "when the daemon hangs with an open connection, all functions are withdrawn after the lease expires"},
			{name: "sriov-kubelet", title: "restart the kubelet's double", run: s.restartKubelet,
				claim: "after a restart of the kubelet the functions are offered again"},
			{name: "sriov-change", title: "change the number of VFs", run: s.changeFunctions,
				claim: "functions are changed only after all are withdrawn and no pod has one"},
			{name: "sriov-stop", title: "stop plugin and daemon", run: s.stop,
				claim: "a plugin that stops leaves a capacity of 0 in the kubelet, and no socket"},
		},
	}
	double := d.program("cleat-node-double")
	if unix.Access(double, unix.X_OK) != nil {
		c.leftOut = "no double of a node at " + double + " (make demo builds it)"
	} else if out, err := exec.CommandContext(ctx, double, "-probe").CombinedOutput(); err != nil {
		c.leftOut = fmt.Sprintf("the double of a node cannot run here: %s (%v)", cli.Plain(strings.TrimSpace(string(out))), err)
	}
	return c
}

func (s *sriov) at(name string) string { return s.path("sriov", name) }

// writeNodeState replaces the node state atomically, like an orchestrator.
func (s *sriov) writeNodeState(generation, number int) {
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
    - {resourceName: vf, deviceType: vfio-pci, policyName: demo, vfRange: "0-%d"}
`, generation, sriovPF, sriovNetdev, number, number-1)
	check(os.WriteFile(s.at("draft"), []byte(text), 0o600))
	check(os.Rename(s.at("draft"), s.at("node-state.yaml")))
}

func (s *sriov) startDaemon() {
	cmd := s.command("cleat", "sriov", "daemon", "--mode", "apply", "--control-socket", s.at("control/plugin.sock"), "--node-state", s.at("node-state.yaml"),
		"--plugin-config", s.at("config.json"), "--pod-resources-socket", s.at("node/kubelet/pod-resources/kubelet.sock"),
		"--sysfs-root", s.at("node/sys"), "--state-dir", s.at("daemon"), "--lease", sriovLease.String(), "--metrics-address", s.at("daemon.sock"), "--log-format", "text")
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL // a stopped process ignores SIGTERM
	s.daemon = s.startIn(netnsOf(s.node), "SR-IOV daemon", cmd)
}

// start starts double and plugin, and checks that nothing is offered.
func (s *sriov) start(ctx context.Context) string {
	check(os.MkdirAll(s.at(""), 0o700))
	config := fmt.Sprintf(`{"resourceList": [{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"drivers": ["vfio-pci"], "pfNames": [%q]}]}]}`, sriovNetdev)
	check(os.WriteFile(s.at("config.json"), []byte(config), 0o600))
	s.node = s.demo.start("double of a node", s.command("cleat-node-double", "-dir", s.at("node"), "-socket", s.at("node.sock")))
	eventually(ctx, func() error { _, err := s.call(ctx, nodeRequest{Do: "look"}); return err })
	s.plugin = s.startIn(netnsOf(s.node), "SR-IOV plugin", s.command("cleat", "sriov", "plugin", "--controlled-mode",
		"--control-socket", s.at("control/plugin.sock"), "--config-file", s.at("config.json"), "--sysfs-root", s.at("node/sys"), "--dev-root", s.at("node/dev"),
		"--kubelet-dir", s.at("node/kubelet"), "--registration", "register", "--state-dir", s.at("plugin"),
		"--device-info-dir", s.at("devinfo"), "--cdi-dir", s.at("cdi"), "--log-format", "text"))
	eventually(ctx, func() error {
		c, err := control.Dial(ctx, s.at("control/plugin.sock"))
		if err != nil {
			return err
		}
		defer c.Close()
		now, err := c.Status(ctx)
		if err == nil && now.State != gate.Initializing {
			err = fmt.Errorf("the plugin should wait for a daemon, but its status is %+v", now)
		}
		return err
	})
	s.checkRefused(ctx)
	a := must(s.call(ctx, nodeRequest{Do: "look"}))
	want(len(a.Functions) == sriovAtBoot && a.Registrations == 0, "want %d functions and no registration at the start, got %+v", sriovAtBoot, a)
	return fmt.Sprintf("the plugin waits for a daemon; the machine has %d functions, none is registered with the kubelet", len(a.Functions))
}

func (s *sriov) enable(ctx context.Context) string {
	s.writeNodeState(1, sriovFirst)
	began := time.Now()
	s.startDaemon()
	a := s.awaitOffered(ctx, sriovFirst)
	checkChanges(a, 0, 0, sriovFirst)
	return fmt.Sprintf("changed %[2]d functions to %[1]d, MTU 9000, while none was offered; %[3]d offered %[4]s after the daemon's start", sriovFirst, sriovAtBoot, a.Offered, between(began, a.At))
}

func (s *sriov) pod(ctx context.Context) string {
	const name = "PCIDEVICE_EXAMPLE_COM_VF"
	a := must(s.call(ctx, nodeRequest{Do: "start", Pod: "guest", Count: sriovOfPod}))
	want(a.Refused == "" && len(a.Devices) == sriovOfPod, "a pod that requests %d functions gets %q: %s", sriovOfPod, a.Devices, a.Refused)
	got := strings.Split(a.Env[name], ",")
	slices.Sort(got)
	slices.Sort(a.Devices)
	want(slices.Equal(got, a.Devices) && json.Valid([]byte(a.Env[name+"_INFO"])) && len(a.Env) == 2, "the environment of a pod with %q is %v", a.Devices, a.Env)
	want(len(a.Nodes) == 1+sriovOfPod && a.Nodes[0] == "/dev/vfio/vfio", "a pod with two functions of vfio-pci got the device nodes %q, want /dev/vfio/vfio and a group each", a.Nodes)
	return fmt.Sprintf("%s=%s, and %s", name, a.Env[name], strings.Join(a.Nodes, " "))
}

func (s *sriov) kill(ctx context.Context) string {
	before := must(s.call(ctx, nodeRequest{Do: "look"}))
	killed := time.Now()
	s.daemon.kill()
	gone := s.awaitOffered(ctx, 0)
	s.checkRefused(ctx)
	again := time.Now()
	s.startDaemon()
	back := s.awaitOffered(ctx, sriovFirst)
	checkChanges(back, len(before.Changes))
	return fmt.Sprintf("all withdrawn within %s, Allocate refused; offered again %s after the restart, no function was changed", between(killed, gone.At), between(again, back.At))
}

// suspend stops the daemon by SIGSTOP; its connection stays open.
func (s *sriov) suspend(ctx context.Context) string {
	check(s.daemon.cmd.Process.Signal(unix.SIGSTOP))
	stopped := time.Now()
	gone := s.awaitOffered(ctx, 0)
	want(gone.At.Sub(stopped) < sriovLate, "the daemon hung with a lease of %s, but its functions were withdrawn only after %s", sriovLease, between(stopped, gone.At))
	s.checkRefused(ctx)
	again := time.Now()
	check(s.daemon.cmd.Process.Signal(unix.SIGCONT))
	back := s.awaitOffered(ctx, sriovFirst)
	return fmt.Sprintf("SIGSTOP; all withdrawn after %s, with a lease of %s, Allocate refused; SIGCONT: offered again after %s", between(stopped, gone.At), sriovLease, between(again, back.At))
}

// restartKubelet restarts the kubelet, which forgets all plugins and removes
// their sockets.
func (s *sriov) restartKubelet(ctx context.Context) string {
	before := must(s.call(ctx, nodeRequest{Do: "look"}))
	began := time.Now()
	must(s.call(ctx, nodeRequest{Do: "restart"}))
	back := must(s.call(ctx, nodeRequest{Do: "await", Offered: sriovFirst, Past: before.Registrations}))
	checkChanges(back, len(before.Changes))
	return fmt.Sprintf("the kubelet lost the plugin's registration and socket; %d offered again after %s", back.Offered, between(began, back.At))
}

// changeFunctions requests another number of functions while a pod has two.
func (s *sriov) changeFunctions(ctx context.Context) string {
	before := must(s.call(ctx, nodeRequest{Do: "look"}))
	began := time.Now()
	s.writeNodeState(2, sriovSecond)
	gone := s.awaitOffered(ctx, 0)
	eventually(ctx, func() error {
		phase, err := s.daemonPhase(ctx)
		if err == nil && phase != "blocked" {
			err = fmt.Errorf("a pod has two functions: the daemon's phase is %q, want blocked", phase)
		}
		return err
	})
	ended := must(s.call(ctx, nodeRequest{Do: "end", Pod: "guest"}))
	checkChanges(ended, len(before.Changes))
	back := s.awaitOffered(ctx, sriovSecond)
	checkChanges(back, len(before.Changes), 0, sriovSecond)
	return fmt.Sprintf("all withdrawn within %s; nothing was changed until the pod ended; %d offered %s after that", between(began, gone.At), back.Offered, between(ended.At, back.At))
}

// stop stops the plugin first: only the plugin can withdraw its devices from
// the kubelet.
func (s *sriov) stop(ctx context.Context) string {
	s.plugin.stop()
	none := 0 // the kubelet can read the last list after the plugin has ended
	must(s.call(ctx, nodeRequest{Do: "await", Capacity: &none}))
	s.daemon.stop()
	s.node.stop()
	checkNoSockets(s.at(""))
	return "SIGTERM; allocatable and capacity 0; both ended with exit code 0, no socket is left"
}
