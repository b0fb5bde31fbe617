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
	sriovPF       = "0000:3b:00.0" // as the double has it
	sriovNetdev   = "ens1f0"
	sriovLease    = 2 * time.Second
	// sriovLate is long after the lease, and before gRPC itself finds that a daemon
	// which hangs is gone.
	sriovLate = 4 * sriovLease
	// Numbers of functions: at the start, as the first node state wants them, as the
	// second does, and of a pod.
	sriovAtBoot, sriovFirst, sriovSecond, sriovOfPod = 4, 8, 6, 2
)

// sriov is the state of the chapter.
type sriov struct {
	*demo
	plugin, daemon, node *process
}

func newSRIOV(ctx context.Context, d *demo) chapter {
	s := &sriov{demo: d}
	c := chapter{
		name: "sriov", against: "a machine of files and a double of the kubelet",
		heading: "SR-IOV functions of cleat sriov, against a machine of files and a double of the kubelet: plugin and daemon are the real ones, no function and no pod is.",
		steps: []step{
			{name: "sriov-start", title: "start the SR-IOV plugin", run: s.start,
				claim: "functions that exist are not offered before the daemon answers for them"},
			{name: "sriov-enable", title: "start the SR-IOV daemon", run: s.enable,
				claim: "functions are offered when they are as the node state wants them, and not while they are created"},
			{name: "sriov-pod", title: "give a pod two functions", run: s.pod,
				claim: "a container finds its functions in PCIDEVICE_* and gets their device nodes"},
			{name: "sriov-kill", title: "kill -9 the SR-IOV daemon", run: s.kill,
				claim: "when the daemon is killed all functions are withdrawn, and offered again when it is back"},
			{name: "sriov-hang", title: "stop the daemon's clock", run: s.hang,
				claim: "when the daemon hangs, with its connection open, all functions are withdrawn after its lease"},
			{name: "sriov-kubelet", title: "restart the kubelet's double", run: s.kubelet,
				claim: "after a restart of the kubelet the functions are offered again"},
			{name: "sriov-change", title: "want other functions", run: s.change,
				claim: "functions are changed only when none is offered any more and no pod has one"},
			{name: "sriov-stop", title: "stop plugin and daemon", run: s.stop,
				claim: "a plugin that ends leaves the kubelet a capacity of 0, and no socket"},
		},
	}
	double := d.program("cleat-node-double")
	if unix.Access(double, unix.X_OK) != nil {
		c.leftOut = "there is no double of a node at " + double + " (make demo builds it)"
	} else if said, err := exec.CommandContext(ctx, double, "-probe").CombinedOutput(); err != nil {
		c.leftOut = fmt.Sprintf("this machine lets no node be doubled: %s (%v)", cli.Plain(strings.TrimSpace(string(said))), err)
	}
	return c
}

func (s *sriov) at(name string) string { return s.path("sriov", name) }

// wantFunctions writes a node state, whole at once as an orchestrator does.
func (s *sriov) wantFunctions(generation, number int) {
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
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL // it may be stopped
	s.daemon = s.startIn(netnsOf(s.node), "SR-IOV daemon", cmd)
}

// start starts double and plugin, and wants nothing to be offered.
func (s *sriov) start(ctx context.Context) string {
	check(os.MkdirAll(s.at(""), 0o700))
	config := fmt.Sprintf(`{"resourceList": [{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"drivers": ["vfio-pci"], "pfNames": [%q]}]}]}`, sriovNetdev)
	check(os.WriteFile(s.at("config.json"), []byte(config), 0o600))
	s.node = s.demo.start("double of a node", s.command("cleat-node-double", "-dir", s.at("node"), "-socket", s.at("node.sock")))
	eventually(ctx, func() error { _, err := s.ask(ctx, nodeOrder{Do: "look"}); return err })
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
			err = fmt.Errorf("the plugin should wait for a daemon, and is %+v", now)
		}
		return err
	})
	s.refused(ctx)
	a := must(s.ask(ctx, nodeOrder{Do: "look"}))
	want(len(a.Functions) == sriovAtBoot && a.Registrations == 0, "the machine should begin with %d functions, and none registered: %+v", sriovAtBoot, a)
	return fmt.Sprintf("it waits for a daemon; the machine has %d functions, none is registered with the kubelet", len(a.Functions))
}

func (s *sriov) enable(ctx context.Context) string {
	s.wantFunctions(1, sriovFirst)
	began := time.Now()
	s.startDaemon()
	a := s.awaitOffered(ctx, sriovFirst)
	checkChanges(a, 0, 0, sriovFirst)
	return fmt.Sprintf("it created %d functions of %d, MTU 9000, while none was offered; %d offered %s after its start", sriovFirst, sriovAtBoot, a.Offered, between(began, a.At))
}

func (s *sriov) pod(ctx context.Context) string {
	const name = "PCIDEVICE_EXAMPLE_COM_VF"
	a := must(s.ask(ctx, nodeOrder{Do: "start", Pod: "guest", Count: sriovOfPod}))
	want(a.Refused == "" && len(a.Devices) == sriovOfPod, "a pod that wants %d functions gets %q: %s", sriovOfPod, a.Devices, a.Refused)
	got := strings.Split(a.Env[name], ",")
	slices.Sort(got)
	slices.Sort(a.Devices)
	want(slices.Equal(got, a.Devices) && json.Valid([]byte(a.Env[name+"_INFO"])) && len(a.Env) == 2, "a pod with %q has the environment %v", a.Devices, a.Env)
	want(len(a.Nodes) == 1+sriovOfPod && a.Nodes[0] == "/dev/vfio/vfio", "a pod with two functions of vfio-pci should get /dev/vfio/vfio and a group for each, not %q", a.Nodes)
	return fmt.Sprintf("%s=%s, and %s", name, a.Env[name], strings.Join(a.Nodes, " "))
}

func (s *sriov) kill(ctx context.Context) string {
	before := must(s.ask(ctx, nodeOrder{Do: "look"}))
	killed := time.Now()
	s.daemon.kill()
	gone := s.awaitOffered(ctx, 0)
	s.refused(ctx)
	again := time.Now()
	s.startDaemon()
	back := s.awaitOffered(ctx, sriovFirst)
	checkChanges(back, len(before.Changes))
	return fmt.Sprintf("all withdrawn within %s, Allocate refused; offered again %s after its start, and no function was changed", between(killed, gone.At), between(again, back.At))
}

// hang stops the daemon, whose connection stays open.
func (s *sriov) hang(ctx context.Context) string {
	check(s.daemon.cmd.Process.Signal(unix.SIGSTOP))
	stopped := time.Now()
	gone := s.awaitOffered(ctx, 0)
	want(gone.At.Sub(stopped) < sriovLate, "the daemon hung with a lease of %s, and its functions were withdrawn after %s only", sriovLease, between(stopped, gone.At))
	s.refused(ctx)
	again := time.Now()
	check(s.daemon.cmd.Process.Signal(unix.SIGCONT))
	back := s.awaitOffered(ctx, sriovFirst)
	return fmt.Sprintf("SIGSTOP; all withdrawn after %s, with a lease of %s, Allocate refused; SIGCONT: offered again after %s", between(stopped, gone.At), sriovLease, between(again, back.At))
}

// kubelet restarts the kubelet, which forgets all plugins and removes their sockets.
func (s *sriov) kubelet(ctx context.Context) string {
	before := must(s.ask(ctx, nodeOrder{Do: "look"}))
	began := time.Now()
	must(s.ask(ctx, nodeOrder{Do: "restart"}))
	back := must(s.ask(ctx, nodeOrder{Do: "await", Offered: sriovFirst, Past: before.Registrations}))
	checkChanges(back, len(before.Changes))
	return fmt.Sprintf("it forgot the plugin and its socket; registered and %d offered again after %s", back.Offered, between(began, back.At))
}

// change wants another number of functions while a pod has two.
func (s *sriov) change(ctx context.Context) string {
	before := must(s.ask(ctx, nodeOrder{Do: "look"}))
	began := time.Now()
	s.wantFunctions(2, sriovSecond)
	gone := s.awaitOffered(ctx, 0)
	eventually(ctx, func() error {
		phase, err := s.daemonPhase(ctx)
		if err == nil && phase != "blocked" {
			err = fmt.Errorf("a pod has two functions; the daemon should wait for it, and is %q", phase)
		}
		return err
	})
	ended := must(s.ask(ctx, nodeOrder{Do: "end", Pod: "guest"}))
	checkChanges(ended, len(before.Changes))
	back := s.awaitOffered(ctx, sriovSecond)
	checkChanges(back, len(before.Changes), 0, sriovSecond)
	return fmt.Sprintf("all withdrawn within %s; nothing was changed until the pod was gone; %d offered %s after that", between(began, gone.At), back.Offered, between(ended.At, back.At))
}

// stop ends the plugin first: the kubelet learns it from nobody else.
func (s *sriov) stop(ctx context.Context) string {
	s.plugin.stop()
	none := 0 // the kubelet may read the last list after the plugin has ended
	must(s.ask(ctx, nodeOrder{Do: "await", Capacity: &none}))
	s.daemon.stop()
	s.node.stop()
	noSockets(s.at(""))
	return "SIGTERM; allocatable and capacity 0; both ended with exit code 0, no socket is left"
}
