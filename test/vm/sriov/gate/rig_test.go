// Package gate runs cleat sriov plugin and cleat sriov daemon in guests with a
// real SR-IOV card (igb, as QEMU has it), against a kubelet that writes down what
// it is offered and what becomes of the functions. The guests have an emulated
// IOMMU: Debian's kernels have no VFIO without one, so vfio-pci is met with
// groups only, never in its no-IOMMU mode.
package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	system        = "/var/lib/node" // outlives the machine's boots where it has a disk
	nodeState     = system + "/node-state.json"
	pluginConfig  = system + "/config.json"
	nodeSocket    = "/run/node.sock"
	controlSocket = "/run/cleat/control/control.sock"
	daemonStatus  = "/run/cleat/daemon/status.sock"
	pluginStatus  = "/run/cleat/plugin/status.sock"

	network, userspace = "example.com/net", "example.com/dpdk"

	devices = "/sys/bus/pci/devices"
)

// config is upstream's, with a resource for each driver.
const config = `{"resourceList":[
  {"resourceName":"net","resourcePrefix":"example.com","selectors":[{"vendors":["8086"],"drivers":["igbvf"]}]},
  {"resourceName":"dpdk","resourcePrefix":"example.com","selectors":[{"vendors":["8086"],"drivers":["vfio-pci"]}]}]}`

// programs are cleat and the guest's kubelet.
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

// without reports whether this machine cannot have the card, and says so.
func without(t *testing.T) bool {
	t.Helper()
	dir := testkit.Value(image.DefaultDir())(t)
	store, err := image.Open(dir, t.Logf)
	testkit.Must(t, err)
	_, err = store.Emulator(t.Context(), image.Backports)
	switch {
	case errors.Is(err, image.ErrNoBackports):
		fmt.Printf("REPORT: SR-IOV gate: no igb (%v): not tested on real functions\n", err)
		return true
	case err != nil:
		t.Fatal(err)
	}
	return false
}

// rig is a machine with a card, and what runs on it.
type rig struct {
	*kernel.Kernel
	pf     string // PCI address
	netdev string // of pf

	kubelet, plugin, daemon *vm.Process
	log                     []string // of daemons that ended, since the boot
	wish                    wish
	inPod                   []string // functions whose network device is in a pod
	checked                 int      // events that were looked at
}

// boot starts the machine with its kubelet. Neither plugin nor daemon runs yet.
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
		Lifetime:   18 * time.Minute, // one guest goes through all of a test
	})
	r.Kernel, r.log, r.inPod, r.checked = kernel.Of(t, g), nil, nil, 0
	r.plugin, r.daemon = nil, nil
	t.Cleanup(func() {
		if t.Failed() && r.Guest == g {
			r.tellAll()
		}
	})
	pfs := slices.DeleteFunc(r.Names("/sys/bus/pci/drivers/igb"), func(name string) bool { return !strings.HasPrefix(name, "0000:") })
	if len(pfs) != 1 {
		r.Fatalf("igb has the functions %v, want one", pfs)
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

// tellAll shows what a failed test leaves.
func (r *rig) tellAll() {
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

// process starts a program, which runs until it is stopped.
func (r *rig) process(argv ...string) *vm.Process {
	r.Helper()
	p := testkit.Value(r.Guest.Start(r.Context(), vm.Command{Argv: argv}))(r)
	return p
}

// startPlugin starts the plugin, and is done when it waits for a daemon and has
// looked at the functions.
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

// startDaemon starts a daemon on the node state.
func (r *rig) startDaemon(mode daemon.Mode, flags ...string) {
	r.Helper()
	r.daemon = r.process(append([]string{"cleat", "sriov", "daemon", "--mode", string(mode), "--node-state", nodeState, "--control-socket", controlSocket,
		"--state-dir", system + "/daemon", "--node", "guest-1", "--metrics-address", daemonStatus}, flags...)...)
}

// endDaemon ends it with a signal.
func (r *rig) endDaemon(s syscall.Signal) {
	r.Helper()
	testkit.Must(r, r.daemon.Signal(s))
	select {
	case <-r.daemon.Done():
	case <-time.After(30 * time.Second):
		r.Fatalf("the daemon still runs 30 s after signal %v", s)
	}
	if err := r.daemon.Err(); s == syscall.SIGTERM && err != nil {
		r.Errorf("the daemon did not stop cleanly: %v", err)
	}
	r.log, r.daemon = r.daemonLog(), nil
}

// daemonLog is what all daemons since the boot said.
func (r *rig) daemonLog() []string {
	return append(slices.Clip(r.log), strings.Split(strings.TrimSpace(logOf(r.daemon)), "\n")...)
}

// runs fails when a process has ended.
func (r *rig) runs(p *vm.Process) {
	r.Helper()
	select {
	case <-p.Done():
		r.Fatalf("it ended: %v", p.Err())
	default:
	}
}

// put replaces a file in one go.
func (r *rig) put(file, text string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	testkit.Must(r, r.Guest.WriteFile(ctx, file+".next", []byte(text), 0o644))
	r.Run("mv", file+".next", file)
	r.Run("sync")
}

// status is the daemon's. Before it answers, the phase is empty.
func (r *rig) status() daemon.Status {
	r.Helper()
	r.runs(r.daemon)
	var all struct{ Sriov daemon.Status }
	if err := r.ask(daemonStatus, http.MethodGet, "/status", nil, &all); err != nil {
		return daemon.Status{}
	}
	return all.Sriov
}

// phase waits for one, for the newest wish.
func (r *rig) phase(want daemon.Phase) (s daemon.Status) {
	r.Helper()
	r.Await(fmt.Sprintf("the daemon is %s with generation %d", want, r.wish.generation), func() bool {
		s = r.status()
		return s.Phase == want && s.Generation == r.wish.generation
	})
	return s
}

// patience is for a daemon that does dozens of steps in a guest whose host has
// more to do.
const patience = 2 * time.Minute

// Await asks until it is so.
func (r *rig) Await(what string, so func() bool) {
	r.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-r.Guest.Done():
			r.Fatalf("the guest went down before %s", what)
		case <-deadline:
			r.Fatalf("not in %v: %s", patience, what)
		}
	}
}

// agreed waits until the daemon serves the newest wish and the plugin has taken
// its word for it.
func (r *rig) agreed() {
	r.Helper()
	var s daemon.Status
	r.Await(fmt.Sprintf("the plugin offers generation %d", r.wish.generation), func() bool {
		s = r.status()
		return s.Phase == daemon.Serving && s.UID == r.wish.uid && s.Generation == r.wish.generation && s.Gate.Generation == r.wish.generation && len(s.Steps) == 0
	})
}

// ask calls a web server on a socket of the guest.
func (r *rig) ask(socket, method, resource string, form url.Values, answer any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // also when the test's own is over
	defer cancel()
	web := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return r.Guest.Dial(ctx, "unix", socket)
	}}}
	if len(form) > 0 {
		resource += "?" + form.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://guest"+resource, nil)
	if err != nil {
		return err
	}
	response, err := web.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", response.Status, text)
	}
	return json.Unmarshal(text, answer)
}
