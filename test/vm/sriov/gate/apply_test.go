package gate

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/daemon"
	"github.com/cleatproject/cleat/test/testkit"
)

// TestGate runs plugin and daemon in one guest through the life of the
// functions. The plugin counts a function that a pod got as held for two
// minutes, so it stays in its resource.
func TestGate(t *testing.T) {
	t.Parallel()
	if without(t) {
		return
	}
	r := boot(t, "sriov-gate")
	begun := time.Now()
	r.makes()
	r.changesWithoutPods()
	r.respectsPods()
	r.losesItsDaemon()
	r.losesItsPlugin()
	r.tamperedWith()
	r.abandons()
	r.external()
	r.follows()
	fmt.Printf("REPORT: SR-IOV gate: igb under kernel %s with an emulated IOMMU: %d steps, none while its functions were offered, in %.0f s\n",
		r.Guest.Release(), len(r.steps()), time.Since(begun).Seconds())
}

// makes verifies that no device is offered before the daemon has created the
// functions, and then exactly those.
func (r *rig) makes() {
	r.Helper()
	r.startPlugin()
	r.offersNothing("no daemon runs")
	r.setDesired(desiredState{uid: "a", generation: 1, network: 2, vfio: 2, mtu: 1800})
	r.startDaemon(daemon.Apply)
	r.serves()
	for step, n := range map[string]int{"create 4 ": 1, "set the administrative MAC": 4, "to vfio-pci": 2, "to 1800": 2, "turn trust on": 2, "turn spoof checking off": 2} {
		if got := r.countSteps(step); got != n {
			r.Errorf("got %d steps with %q, want %d: %v", got, step, n, r.steps())
		}
	}
	r.pods()
}

// pods verifies what Allocate returns to the kubelet.
func (r *rig) pods() {
	r.Helper()
	id := r.virtual(2)
	given := r.pod("dpdk", userspace, id)
	group := r.Run("sh", "-c", `basename $(readlink "$0")`, devices+"/"+id+"/iommu_group")
	for _, node := range []string{"/dev/vfio/vfio", "/dev/vfio/" + group} {
		r.Run("test", "-c", node)
		if !slices.ContainsFunc(given.Devices, func(d *v1beta1.DeviceSpec) bool {
			return d.HostPath == node && d.ContainerPath == node && d.Permissions == "rw"
		}) {
			r.Errorf("device nodes of the pod with %s: got %v, want %s", id, given.Devices, node)
		}
	}
	if got := given.Envs["PCIDEVICE_EXAMPLE_COM_DPDK"]; got != id || len(given.Devices) != 2 {
		r.Errorf("got environment %v and device nodes %v, want %s", given.Envs, given.Devices, id)
	}
	r.release("dpdk")
	id = r.virtual(0)
	given = r.pod("net", network, id)
	if got := given.Envs["PCIDEVICE_EXAMPLE_COM_NET"]; got != id || len(given.Devices) != 0 {
		r.Errorf("got environment %v and device nodes %v, want %s and no device node", given.Envs, given.Devices, id)
	}
	r.release("net")
}

// pod starts a pod with devices.
func (r *rig) pod(name, resource string, ids ...string) *v1beta1.ContainerAllocateResponse {
	r.Helper()
	var given v1beta1.ContainerAllocateResponse
	testkit.Must(r, r.ask(nodeSocket, http.MethodPost, "/pods", url.Values{"name": {name}, "resource": {resource}, "id": ids}, &given))
	return &given
}

func (r *rig) release(name string) {
	r.Helper()
	testkit.Must(r, r.ask(nodeSocket, http.MethodDelete, "/pods", url.Values{"name": {name}}, &struct{}{}))
}

// changesWithoutPods changes the number of functions and their split between
// drivers.
func (r *rig) changesWithoutPods() {
	r.Helper()
	r.setDesired(desiredState{uid: "a", generation: 2, network: 1, vfio: 2, mtu: 1700})
	r.serves()
	if got := r.countSteps("remove the virtual functions"); got != 1 {
		r.Errorf("got %d removals of the functions, want 1: %v", got, r.steps())
	}
	// A new generation with the same spec must not withdraw devices.
	lists := len(offers(r.all()))
	r.setDesired(desiredState{uid: "a", generation: 3, network: 1, vfio: 2, mtu: 1700})
	r.serves()
	if got := len(offers(r.all())); got != lists {
		r.Errorf("a generation with the same spec withdrew devices: %v", r.all())
	}
}

// respectsPods verifies that functions held by pods are not changed. Other
// functions can change, unless that needs a held one: then no device is offered
// until the pod ends.
func (r *rig) respectsPods() {
	r.Helper()
	held := r.virtual(0)
	r.pod("holder", network, held)
	r.intoPod(held)
	steps := len(r.steps())
	r.setDesired(desiredState{uid: "a", generation: 4, network: 2, vfio: 1, mtu: 1700})
	r.serves()
	for _, s := range r.steps()[steps:] {
		if strings.Contains(s.name, held) {
			r.Errorf("step on function %s, which a pod holds: %s", held, s.name)
		}
	}

	before := r.now()
	steps = len(r.steps())
	r.setDesired(desiredState{uid: "a", generation: 5, network: 2, vfio: 2, mtu: 1700})
	s := r.phase(daemon.Blocked)
	if len(s.Held) != 1 || s.Held[0].ID != held || s.Held[0].Pod != "holder" || !strings.Contains(s.Reason, "default/holder") {
		r.Errorf("got blocked by %+v: %s", s.Held, s.Reason)
	}
	r.withdrawn("a pod is in the way")
	if now := r.now(); len(r.steps()) != steps || !same(before, now) {
		r.Errorf("functions changed while a pod holds one: %+v, before %+v", now, before)
	}
	r.outOfPod()
	r.release("holder")
	r.serves()

	// With --force the daemon changes held functions.
	r.pod("stubborn", network, r.virtual(1))
	r.setDesired(desiredState{uid: "a", generation: 6, network: 2, vfio: 1, mtu: 1700})
	r.phase(daemon.Blocked)
	r.endDaemon(syscall.SIGTERM)
	r.startDaemon(daemon.Apply, "--force")
	r.serves()
	r.release("stubborn")
	r.endDaemon(syscall.SIGTERM)
	r.withdrawn("the daemon ended")
}

// intoPod moves a function's network device to another network namespace, as a
// CNI plugin does.
func (r *rig) intoPod(address string) {
	r.Helper()
	r.Run("mkdir", "-p", "/var/run")
	r.Run("ip", "netns", "add", "pod")
	r.Run("ip", "link", "set", r.Names(devices + "/" + address + "/net")[0], "netns", "pod")
	r.inPod = []string{address}
}

// outOfPod deletes the network namespace, which returns the device.
func (r *rig) outOfPod() {
	r.Helper()
	r.check() // while the device is expected to be missing
	r.Run("ip", "netns", "delete", "pod")
	r.inPod = nil
}

// losesItsDaemon verifies that devices are withdrawn when the daemon is killed,
// and that the next daemon offers them without a step.
func (r *rig) losesItsDaemon() {
	r.Helper()
	r.startDaemon(daemon.Apply)
	r.serves()
	steps := len(r.steps())
	r.endDaemon(syscall.SIGKILL)
	r.withdrawn("the daemon was killed")
	r.startDaemon(daemon.Apply)
	r.serves()
	if got := len(r.steps()); got != steps {
		r.Errorf("steps after a restart: %v", r.steps()[steps:])
	}
}

// losesItsPlugin verifies that a restarted plugin offers no device before the
// daemon has verified the functions.
func (r *rig) losesItsPlugin() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	steps := len(r.steps())
	testkit.Must(r, r.plugin.Kill(ctx))
	r.withdrawn("the plugin was killed")
	r.Await("the daemon detects the loss", func() bool { return r.status().Gate.State != control.StateHeld })
	r.runPlugin()
	r.serves()
	if got := len(r.steps()); got != steps {
		r.Errorf("steps after the plugin's restart: %v", r.steps()[steps:])
	}
}

// tamperedWith unbinds a function's driver without the daemon: this function is
// withdrawn and repaired, and the others stay offered.
func (r *rig) tamperedWith() {
	r.Helper()
	id, before := r.virtual(1), len(r.all())
	r.Write(path.Join(devices, id, "driver/unbind"), id)
	r.Await(id+" is not offered", func() bool {
		return slices.ContainsFunc(r.all()[before:], func(e Event) bool { return e.Resource == network && !slices.Contains(e.Healthy, id) })
	})
	r.checked = len(r.all()) // earlier changes were made by this test
	r.serves()
	for i := before; i < len(r.all()); i++ {
		if now := offered(r.all()[:i+1]); len(now[userspace]) != r.desired.vfio {
			r.Errorf("the pool of other functions was withdrawn, too: %v", now)
			break
		}
	}
}

// abandons verifies that functions of a card that is no longer in the spec are
// removed.
func (r *rig) abandons() {
	r.Helper()
	r.setDesired(desiredState{uid: "a", generation: 7, nothing: true})
	r.serves()
	if now := r.now(); now.Number != 0 {
		r.Errorf("functions of a removed card: %+v", now)
	}
}

// external verifies that functions created by a script are offered only after
// the daemon has configured them.
func (r *rig) external() {
	r.Helper()
	r.setDesired(desiredState{uid: "a", generation: 8, network: 2, vfio: 1, mtu: 1500, external: true})
	if s := r.phase(daemon.Failed); len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "externally managed") {
		r.Errorf("status without functions: %+v", s)
	}
	r.offersNothing("the functions do not exist")
	macs, made := r.countSteps("set the administrative MAC"), r.countSteps("create 3 ")
	r.script(3, false)
	r.serves()
	if got := r.countSteps("set the administrative MAC") - macs; got != 3 {
		r.Errorf("got %d administrative MACs set, want 3: %v", got, r.steps())
	}
	if got := r.countSteps("create 3 ") - made; got != 0 {
		r.Errorf("the daemon created externally managed functions: %v", r.steps())
	}
	r.endDaemon(syscall.SIGTERM)
	r.withdrawn("the daemon ended")
	r.script(0, true)
}
