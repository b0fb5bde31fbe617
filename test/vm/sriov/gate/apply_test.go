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

// TestGate leads one machine through the life of its functions. A function that
// a pod got stays in its resource, as the plugin counts it as held for two
// minutes, whatever becomes of it.
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
	fmt.Printf("REPORT: SR-IOV gate: igb under kernel %s with an emulated IOMMU: %d steps, none while anything was offered, in %.0f s\n",
		r.Guest.Release(), len(r.steps()), time.Since(begun).Seconds())
}

// makes: nothing is offered before a daemon has made the functions, and then
// exactly these.
func (r *rig) makes() {
	r.Helper()
	r.startPlugin()
	r.silent("no daemon runs")
	r.tell(wish{uid: "a", generation: 1, network: 2, vfio: 2, mtu: 1800})
	r.startDaemon(daemon.Apply)
	r.serves()
	for step, n := range map[string]int{"make 4": 1, "set the administrative MAC": 4, "to vfio-pci": 2, "to 1800": 2, "turn trust on": 2, "turn spoof checking off": 2} {
		if got := r.did(step); got != n {
			r.Errorf("%d steps with %q, want %d: %v", got, step, n, r.steps())
		}
	}
	r.pods()
}

// pods get what the kubelet passes on to containers.
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
			r.Errorf("the pod with %s gets the device nodes %v, want %s", id, given.Devices, node)
		}
	}
	if got := given.Envs["PCIDEVICE_EXAMPLE_COM_DPDK"]; got != id || len(given.Devices) != 2 {
		r.Errorf("the pod gets %v and %v, want %s", given.Envs, given.Devices, id)
	}
	r.release("dpdk")
	id = r.virtual(0)
	given = r.pod("net", network, id)
	if got := given.Envs["PCIDEVICE_EXAMPLE_COM_NET"]; got != id || len(given.Devices) != 0 {
		r.Errorf("the pod gets %v and %v, want %s and no device node", given.Envs, given.Devices, id)
	}
	r.release("net")
}

// pod starts a pod with a device.
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

// changesWithoutPods: another number of functions, another split.
func (r *rig) changesWithoutPods() {
	r.Helper()
	r.tell(wish{uid: "a", generation: 2, network: 1, vfio: 2, mtu: 1700})
	r.serves()
	if got := r.did("remove the virtual functions"); got != 1 {
		r.Errorf("the functions were removed %d times, want once: %v", got, r.steps())
	}
	// A wish that changes nothing changes nothing of what is offered.
	lists := len(offers(r.all()))
	r.tell(wish{uid: "a", generation: 3, network: 1, vfio: 2, mtu: 1700})
	r.serves()
	if got := len(offers(r.all())); got != lists {
		r.Errorf("a generation with the same spec had the devices taken back: %v", r.all())
	}
}

// respectsPods: what a pod has is not touched. Other functions change beside it;
// where that cannot be, nothing is offered until the pod is gone.
func (r *rig) respectsPods() {
	r.Helper()
	held := r.virtual(0)
	r.pod("holder", network, held)
	r.intoPod(held)
	steps := len(r.steps())
	r.tell(wish{uid: "a", generation: 4, network: 2, vfio: 1, mtu: 1700})
	r.serves()
	for _, s := range r.steps()[steps:] {
		if strings.Contains(s.name, held) {
			r.Errorf("a pod has %s: %s", held, s.name)
		}
	}

	before := r.now()
	steps = len(r.steps())
	r.tell(wish{uid: "a", generation: 5, network: 2, vfio: 2, mtu: 1700})
	s := r.phase(daemon.Blocked)
	if len(s.Held) != 1 || s.Held[0].ID != held || s.Held[0].Pod != "holder" || !strings.Contains(s.Reason, "default/holder") {
		r.Errorf("blocked by %+v: %s", s.Held, s.Reason)
	}
	r.withdrawn("a pod is in the way")
	if now := r.now(); len(r.steps()) != steps || !same(before, now) {
		r.Errorf("functions changed though a pod has one: %+v, before %+v", now, before)
	}
	r.outOfPod()
	r.release("holder")
	r.serves()

	// Told to, a daemon goes over the pod's head.
	r.pod("stubborn", network, r.virtual(1))
	r.tell(wish{uid: "a", generation: 6, network: 2, vfio: 1, mtu: 1700})
	r.phase(daemon.Blocked)
	r.endDaemon(syscall.SIGTERM)
	r.startDaemon(daemon.Apply, "--force")
	r.serves()
	r.release("stubborn")
	r.endDaemon(syscall.SIGTERM)
	r.withdrawn("the daemon ended")
	r.check()
}

// intoPod moves the network device of a function into a pod, as its network does.
func (r *rig) intoPod(address string) {
	r.Helper()
	r.Run("mkdir", "-p", "/var/run")
	r.Run("ip", "netns", "add", "pod")
	r.Run("ip", "link", "set", r.Names(devices + "/" + address + "/net")[0], "netns", "pod")
	r.inPod = []string{address}
}

// outOfPod gives it back.
func (r *rig) outOfPod() {
	r.Helper()
	r.Run("ip", "netns", "delete", "pod")
	r.inPod = nil
}

// losesItsDaemon: a daemon that is killed takes the devices with it, and the
// next one offers them again without a step.
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
		r.Errorf("after a restart: %v", r.steps()[steps:])
	}
}

// losesItsPlugin: nor does a plugin that was killed offer anything before the
// daemon has looked again.
func (r *rig) losesItsPlugin() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	steps := len(r.steps())
	testkit.Must(r, r.plugin.Kill(ctx))
	r.withdrawn("the plugin was killed")
	r.Await("the daemon knows", func() bool { return r.status().Gate.State != control.StateHeld })
	r.runPlugin()
	r.serves()
	if got := len(r.steps()); got != steps {
		r.Errorf("after another plugin: %v", r.steps()[steps:])
	}
}

// tamperedWith: somebody takes a function from its driver. It is not offered any
// more, then nothing is, and then everything again.
func (r *rig) tamperedWith() {
	r.Helper()
	id, before := r.virtual(1), len(r.all())
	r.Write(path.Join(devices, id, "driver/unbind"), id)
	r.Await(id+" is not offered", func() bool {
		return slices.ContainsFunc(r.all()[before:], func(e Event) bool { return e.Resource == network && !slices.Contains(e.Healthy, id) })
	})
	r.Await("everything is taken back", func() bool {
		all := r.all()
		for i := before; i < len(all); i++ {
			if len(offered(all[:i+1])) == 0 {
				r.checked = i // what changed before that was our own doing
				return true
			}
		}
		return false
	})
	r.serves()
}

// abandons: a wish that does not name the card any more takes its functions.
func (r *rig) abandons() {
	r.Helper()
	r.tell(wish{uid: "a", generation: 7, nothing: true})
	r.serves()
	if now := r.now(); now.Number != 0 {
		r.Errorf("nobody wants functions: %+v", now)
	}
}

// external: functions that a script makes are held back until the daemon has
// finished them.
func (r *rig) external() {
	r.Helper()
	r.tell(wish{uid: "a", generation: 8, network: 2, vfio: 1, mtu: 1500, external: true})
	if s := r.phase(daemon.Failed); len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "managed externally") {
		r.Errorf("without functions: %+v", s)
	}
	r.silent("the functions are not there")
	macs, made := r.did("set the administrative MAC"), r.did("make 3 ")
	r.script(3, false)
	r.serves()
	if got := r.did("set the administrative MAC") - macs; got != 3 {
		r.Errorf("%d addresses were set, want 3: %v", got, r.steps())
	}
	if got := r.did("make 3 ") - made; got != 0 {
		r.Errorf("the daemon made functions that others manage: %v", r.steps())
	}
	r.endDaemon(syscall.SIGTERM)
	r.withdrawn("the daemon ended")
	r.check()
	r.script(0, true)
}
