// Package gate runs cleat sriov plugin and cleat sriov daemon in guests with a
// real SR-IOV card (QEMU's igb) and a simulated kubelet that records offers and
// changes of the functions. The guests have an emulated IOMMU, because Debian's
// kernels have no VFIO without one; the no-IOMMU mode of vfio-pci is not
// tested.
package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cleatproject/cleat/sriov/daemon"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/kernel"
)

const (
	system        = "/var/lib/node" // survives reboots if the guest has a disk
	nodeState     = system + "/node-state.json"
	pluginConfig  = system + "/config.json"
	nodeSocket    = "/run/node.sock"
	controlSocket = "/run/cleat/control/control.sock"
	daemonStatus  = "/run/cleat/daemon/status.sock"
	pluginStatus  = "/run/cleat/plugin/status.sock"

	network, userspace = "example.com/net", "example.com/dpdk"

	devices = "/sys/bus/pci/devices"
)

// config is an upstream configuration with a resource for each driver.
const config = `{"resourceList":[
  {"resourceName":"net","resourcePrefix":"example.com","selectors":[{"vendors":["8086"],"drivers":["igbvf"]}]},
  {"resourceName":"dpdk","resourcePrefix":"example.com","selectors":[{"vendors":["8086"],"drivers":["vfio-pci"]}]}]}`

// programs are the paths of cleat and of the simulated kubelet.
var programs []string

func TestMain(m *testing.M) {
	os.Exit(testkit.RunMain(m, func(dir string) error {
		programs = []string{filepath.Join(dir, "cleat"), filepath.Join(dir, "node")}
		return errors.Join(
			testkit.BuildTo(context.Background(), programs[0], testkit.Cleat),
			testkit.BuildTo(context.Background(), programs[1], "./test/vm/sriov/node"),
		)
	}))
}

// without reports whether the QEMU with igb is missing.
func without(t *testing.T) bool {
	t.Helper()
	dir := testkit.Value(image.DefaultDir())(t)
	store, err := image.Open(dir, t.Logf)
	testkit.Must(t, err)
	_, err = store.Emulator(t.Context(), image.Backports)
	switch {
	case errors.Is(err, image.ErrNoSource):
		fmt.Printf("REPORT: SR-IOV gate: no igb (%v): not tested on real functions\n", err)
		return true
	case err != nil:
		t.Fatal(err)
	}
	return false
}

// rig is a guest with a card, plugin and daemon.
type rig struct {
	*kernel.Kernel
	pf     string // PCI address
	netdev string // of pf

	kubelet, plugin, daemon *vm.Process
	log                     []string // of daemons that have exited since the boot
	desired, previous       desiredState
	inPod                   []string // functions whose network device is in a pod
	checked                 int      // events that were checked
}

// boot boots the guest with its kubelet, without plugin and daemon.
func boot(t *testing.T, name string, disks ...vm.Disk) *rig {
	t.Helper()
	r := &rig{}
	r.start(t, name, disks...)
	return r
}

func (r *rig) start(t testing.TB, name string, disks ...vm.Disk) {
	t.Helper()
	g := vm.Boot(t, vm.Spec{
		Name: name, Kernel: image.Backports, Emulator: image.Backports, Disks: disks, Programs: programs,
		Modules: []string{"igb", "igbvf", "ext4"}, Extra: []string{"vfio-pci"}, Tools: append(image.Filesystems(), "ip"),
		Devices:    append([]string{"-device", "intel-iommu,intremap=off"}, vm.IGB(1)...),
		KernelArgs: []string{"intel_iommu=on"},
	})
	r.Kernel, r.log, r.inPod, r.checked = kernel.Of(t, g), nil, nil, 0
	r.plugin, r.daemon = nil, nil
	t.Cleanup(func() {
		if t.Failed() && r.Guest == g {
			r.logState()
		}
	})
	pfs := slices.DeleteFunc(r.Names("/sys/bus/pci/drivers/igb"), func(name string) bool { return !strings.HasPrefix(name, "0000:") })
	if len(pfs) != 1 {
		r.Fatalf("PCI functions of igb: got %v, want one", pfs)
	}
	r.pf = pfs[0]
	r.netdev = r.Names(path.Join(devices, r.pf, "net"))[0]
	r.Run("mkdir", "-p", system, path.Dir(controlSocket), path.Dir(daemonStatus), path.Dir(pluginStatus))
	r.kubelet = r.process("node", "-pf", r.pf, "-socket", nodeSocket)
	r.Await("the kubelet answers", func() bool {
		_, err := r.events(0)
		return err == nil
	})
}

// logState logs the state of all processes after a failure.
func (r *rig) logState() {
	r.Logf("kubelet: %s\nplugin: %s\ndaemon: %s", logOf(r.kubelet), logOf(r.plugin), strings.Join(r.daemonLog(), "\n"))
	for _, socket := range []string{pluginStatus, daemonStatus} {
		var text json.RawMessage
		err := r.ask(socket, http.MethodGet, "/status", nil, &text)
		r.Logf("%s: %s, %v", socket, text, err)
	}
	all, err := r.events(0)
	for _, e := range all {
		text, _ := json.Marshal(e)
		r.Logf("kubelet: %s", text)
	}
	r.Logf("kubelet: %v", err)
}

func logOf(p *vm.Process) string {
	if p == nil {
		return ""
	}
	return p.Log()
}

// process starts a program in the background.
func (r *rig) process(argv ...string) *vm.Process {
	r.Helper()
	p := testkit.Value(r.Guest.Start(r.Context(), vm.Command{Argv: argv}))(r)
	return p
}

// startPlugin starts the plugin and waits until it has scanned the functions
// and waits for a daemon.
func (r *rig) startPlugin() {
	r.Helper()
	r.put(pluginConfig, config)
	r.runPlugin()
	r.Await("the plugin waits for a daemon", func() bool {
		r.runs(r.plugin)
		var all struct{ Sriov plugin.Document }
		err := r.ask(pluginStatus, http.MethodGet, "/status", nil, &all)
		return err == nil && all.Sriov.Control == gate.Waiting && !all.Sriov.Scanned.IsZero()
	})
}

func (r *rig) runPlugin() {
	r.Helper()
	r.plugin = r.process("cleat", "sriov", "plugin", "--controlled-mode", "--config-file", pluginConfig, "--control-socket", controlSocket,
		"--state-dir", system+"/plugin", "--registration", "register", "--metrics-address", pluginStatus)
}

// startDaemon starts a daemon with the node state.
func (r *rig) startDaemon(mode daemon.Mode, flags ...string) {
	r.Helper()
	r.daemon = r.process(append([]string{"cleat", "sriov", "daemon", "--mode", string(mode), "--node-state", nodeState, "--control-socket", controlSocket,
		"--state-dir", system + "/daemon", "--node", "guest-1", "--metrics-address", daemonStatus}, flags...)...)
}

func (r *rig) endDaemon(s syscall.Signal) {
	r.Helper()
	testkit.Must(r, r.daemon.Signal(s))
	select {
	case <-r.daemon.Done():
	case <-time.After(30 * time.Second):
		r.Fatalf("the daemon did not exit within 30 s of signal %v", s)
	}
	if err := r.daemon.Err(); s == syscall.SIGTERM && err != nil {
		r.Errorf("the daemon failed at shutdown: %v", err)
	}
	r.log, r.daemon = r.daemonLog(), nil
}

// daemonLog returns the log lines of all daemons since the boot.
func (r *rig) daemonLog() []string {
	return append(slices.Clip(r.log), strings.Split(strings.TrimSpace(logOf(r.daemon)), "\n")...)
}

// runs fails the test if a process has exited.
func (r *rig) runs(p *vm.Process) {
	r.Helper()
	select {
	case <-p.Done():
		r.Fatalf("the process exited: %v", p.Err())
	default:
	}
}

// put replaces a file atomically.
func (r *rig) put(file, text string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	testkit.Must(r, r.Guest.WriteFile(ctx, file+".next", []byte(text), 0o644))
	r.Run("mv", file+".next", file)
	r.Run("sync")
}

// status returns the daemon's status; the phase is empty until it serves one.
func (r *rig) status() daemon.Status {
	r.Helper()
	r.runs(r.daemon)
	var all struct{ Sriov daemon.Status }
	if err := r.ask(daemonStatus, http.MethodGet, "/status", nil, &all); err != nil {
		return daemon.Status{}
	}
	return all.Sriov
}

// phase waits for a phase at the current generation.
func (r *rig) phase(want daemon.Phase) (s daemon.Status) {
	r.Helper()
	r.Await(fmt.Sprintf("the daemon is %s with generation %d", want, r.desired.generation), func() bool {
		s = r.status()
		return s.Phase == want && s.Generation == r.desired.generation
	})
	return s
}

// agreed waits until the daemon serves the current generation and the plugin
// offers it.
func (r *rig) agreed() {
	r.Helper()
	var s daemon.Status
	r.Await(fmt.Sprintf("the plugin offers generation %d", r.desired.generation), func() bool {
		s = r.status()
		return s.Phase == daemon.Serving && s.UID == r.desired.uid && s.Generation == r.desired.generation && s.Gate.Generation == r.desired.generation && len(s.Steps) == 0
	})
}

// ask sends a request to an HTTP server on a Unix socket of the guest.
func (r *rig) ask(socket, method, resource string, form url.Values, answer any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // works in cleanups too
	defer cancel()
	if len(form) > 0 {
		resource += "?" + form.Encode()
	}
	code, text, err := testkit.Page(ctx, func(ctx context.Context) (net.Conn, error) { return r.Guest.Dial(ctx, "unix", socket) }, method, resource)
	switch {
	case err != nil:
		return err
	case code != http.StatusOK:
		return fmt.Errorf("%s answers %d: %s", resource, code, text)
	}
	return json.Unmarshal([]byte(text), answer)
}
