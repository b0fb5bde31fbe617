package plugin_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/sriov/plugin/plugintest"
	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestOffersWhatTheConfigurationSelects(t *testing.T) {
	t.Parallel()
	r := newOffering(t, 4)
	vfs := r.tree.Virtual(pfAddress)
	slices.Sort(vfs)
	if got := r.kubelet.Healthy(resource); !slices.Equal(got, vfs) {
		t.Errorf("offered %v, want %v", got, vfs)
	}
	lists := r.kubelet.Lists(resource)
	if got := lists[len(lists)-1].NUMA[vfs[0]]; got != 1 {
		t.Errorf("NUMA node %d, want 1", got)
	}
	given := testkit.Value(r.kubelet.Allocate(testkit.Context(r.t), resource, vfs[1], vfs[0]))(t)
	if got, want := given.Envs["PCIDEVICE_EXAMPLE_COM_VF"], vfs[1]+","+vfs[0]; got != want {
		t.Errorf("the container gets %q, want %q", got, want)
	}
	info, err := os.ReadFile(filepath.Join(r.config.Files.DeviceInfo, "example.com-vf-"+vfs[0]+"-device.json"))
	if err != nil || !strings.Contains(string(info), vfs[0]) {
		t.Errorf("Multus gets %q, %v", info, err)
	}
	if preferred, err := r.kubelet.Prefer(testkit.Context(r.t), resource, vfs, vfs[3:], 2); err != nil || len(preferred) != 2 || !slices.Contains(preferred, vfs[3]) {
		t.Errorf("preferred %v, %v; want two with %s", preferred, err, vfs[3])
	}
}

func TestNewFunctionsAreOffered(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	r.start()
	r.changes <- struct{}{}
	r.setVFs(3)
	r.changes <- struct{}{}
	r.awaitOffered(3)
	r.setVFs(0)
	r.changes <- struct{}{}
	r.awaitOffered(0)
	r.setVFs(2)
	r.changes <- struct{}{}
	r.awaitOffered(2)
	r.registered(1)
}

func TestNothingIsOfferedBeforeEnable(t *testing.T) {
	t.Parallel()
	r := newControlled(t, 4)
	ctx := testkit.Context(r.t)
	testkit.Value(r.plugin.Disable(ctx, ""))(t)
	if names := r.kubelet.Resources(); len(names) != 0 {
		t.Fatalf("the kubelet knows %v before the first Enable", names)
	}
	s := r.enable(r.t.Name(), gate.Claim{Generation: 5, UID: "u"})
	r.awaitOffered(4)
	for {
		got := testkit.Value(s.Next(ctx))(t)
		if got.State == gate.Serving && got.Devices == 4 && got.Generation == 5 {
			break
		}
	}
	s.Close()
	r.awaitOffered(0)
	r.registered(1)
	r.enable("again", gate.Claim{Generation: 6, UID: "u"})
	r.awaitOffered(4)
	r.registered(1)
}

func TestDisableReturnsAfterWithdrawal(t *testing.T) {
	t.Parallel()
	r := newControlled(t, 4)
	s := r.enable(r.t.Name(), gate.Claim{Generation: 1})
	r.awaitOffered(4)
	vfs := r.tree.Virtual(pfAddress)
	r.pods.hold(podresources.Holder{Resource: resource, ID: vfs[2], Namespace: "ns", Pod: "p", Container: "c"})
	d := testkit.Value(r.plugin.Disable(testkit.Context(r.t), t.Name()))(t)
	if n := r.kubelet.Allocatable(resource); n != 0 {
		t.Errorf("%d devices are offered after Disable", n)
	}
	if !d.Acknowledged || !d.Confirmed {
		t.Errorf("Disable answered %+v, want OK by the kubelet's word", d)
	}
	if held := d.InUse; len(held) != 1 || held[0].Resource != resource || held[0].Pod != "p" || held[0].ID != vfs[2] {
		t.Errorf("in use %+v, want %s by pod p", held, vfs[2])
	}
	if _, err := r.kubelet.Allocate(testkit.Context(r.t), resource, vfs[0]); err == nil {
		t.Error("a device was given out after Disable")
	}
	ended := error(nil)
	for ended == nil {
		_, ended = s.Next(testkit.Context(r.t))
	}
	if over, ok := errors.AsType[*gate.End](ended); !ok || over.Code != codes.OK {
		t.Errorf("the stream ended with %v, want OK", ended)
	}
}

// The kubelet's list keeps its devices until the call ends.
func TestAllocateUnderWayDuringWithdrawal(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.Controlled = true
	blocked := make(chan struct{})
	entered := make(chan struct{})
	r.config.Memory = &slowMemory{entered: entered, blocked: blocked}
	r.start()
	s := r.enable(r.t.Name(), gate.Claim{Generation: 1})
	r.awaitOffered(2)
	vfs := r.tree.Virtual(pfAddress)
	result := make(chan error, 1)
	go func() {
		_, err := r.kubelet.Allocate(r.t.Context(), resource, vfs[0])
		result <- err
	}()
	<-entered
	s.Close()
	r.awaitOffered(0) // while the call runs
	lists := r.kubelet.Lists(resource)
	if last := lists[len(lists)-1]; len(last.All) != 2 {
		t.Errorf("the list has %v while a call runs, want both", last.All)
	}
	ended := time.Now()
	close(blocked)
	if err := <-result; status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the call ended with %v, want FAILED_PRECONDITION", err)
	}
	r.await("the list is empty", func() bool {
		lists := r.kubelet.Lists(resource)
		return len(lists[len(lists)-1].All) == 0
	})
	if elapsed := time.Since(ended); elapsed < gate.QuietPeriod {
		t.Errorf("the list was empty %s after the last call, want at least %s", elapsed, gate.QuietPeriod)
	}
}

func TestAllocateVerifiesDevices(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	links := r.counted()
	r.start()
	r.awaitOffered(2)
	vfs := r.tree.Virtual(pfAddress)
	links.lock.Lock() // the plugin does not detect the change
	r.changes <- struct{}{}
	testkit.Eventually(r.t, "a scan waits, so that none is past the links", func() bool { return links.waiting.Load() > 0 })
	err := r.tree.Write("bus/pci/drivers/iavf/unbind", vfs[0])
	if err == nil {
		_, err = r.kubelet.Allocate(testkit.Context(r.t), resource, vfs[0])
	}
	links.lock.Unlock()
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "driver is missing, was iavf") {
		t.Errorf("Allocate answered %v, want that the driver has changed", err)
	}
	r.awaitOffered(1)
}

func TestKubeletRestart(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"offered", "withdrawn", "never offered"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3)
			r.config.Controlled = true
			r.start()
			var s *plugintest.Stream
			if mode != "never offered" {
				s = r.enable(r.t.Name(), gate.Claim{Generation: 1})
				r.awaitOffered(3)
			}
			if mode == "withdrawn" {
				s.Close()
				r.awaitOffered(0)
			}
			testkit.Must(t, r.kubelet.Restart())
			want := 0
			if mode == "offered" {
				want = 3
			}
			if mode != "never offered" {
				r.await("the resource is registered again", func() bool { return r.kubelet.Registrations(resource) >= 2 })
			}
			r.awaitOffered(want)
			r.enable("again", gate.Claim{Generation: 2})
			r.awaitOffered(3)
		})
	}
}

func TestLostStreamIsRegisteredForAgain(t *testing.T) {
	t.Parallel()
	r := newOffering(t, 2)
	r.kubelet.Drop(resource)
	r.await("the loss shows", func() bool { return r.kubelet.Allocatable(resource) == 0 || r.kubelet.Registrations(resource) > 1 })
	r.awaitOffered(2)
	r.registered(2)
}

func TestConfigurationChanges(t *testing.T) {
	t.Parallel()
	r := newOffering(t, 4)
	r.configure(`{"resourceList": [
		{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"pfNames": ["ens1#0-1"]}]},
		{"resourceName": "more", "resourcePrefix": "example.com", "selectors": [{"pfNames": ["ens1#2-3"]}]}]}`)
	r.awaitOffered(2)
	r.await("the new resource", func() bool { return r.kubelet.Allocatable("example.com/more") == 2 })
	r.registered(1)
	r.configure(`{"resourceList": [{"resourceName": "more", "resourcePrefix": "example.com", "selectors": [{"pfNames": ["ens1"]}]}]}`)
	r.awaitOffered(0)
	r.await("all in the other", func() bool { return r.kubelet.Allocatable("example.com/more") == 4 })
	testkit.Eventually(r.t, "the socket goes", func() bool {
		_, err := os.Stat(filepath.Join(r.config.EndpointDir, plugin.SocketName(resource)))
		return errors.Is(err, os.ErrNotExist)
	})
	r.configure(`{"resourceList": [{"resourceNam": "x"}]}`)
	r.wrong("resourceNam")
	if n := r.kubelet.Allocatable("example.com/more"); n != 4 {
		t.Errorf("%d devices are offered by a configuration that is wrong, want the 4 of the one before", n)
	}
	r.configure(oneResource)
	r.awaitOffered(4)
	r.wrong("")
}

func TestStopWithdrawsAllDevices(t *testing.T) {
	t.Parallel()
	r := newOffering(t, 3)
	r.stop()
	r.await("the kubelet is left with an empty list, so that its capacity is 0 too", func() bool {
		lists := r.kubelet.Lists(resource) // the last list might be read later
		return len(lists[len(lists)-1].All) == 0
	})
	left := testkit.Value(os.ReadDir(r.config.EndpointDir))(t)
	for _, e := range left {
		if e.Name() != plugin.KubeletSocket {
			t.Errorf("%s is left over", e.Name())
		}
	}
	r.start()
	r.awaitOffered(3)
}

func TestHeldDevicesAreKept(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	r.config.Memory = newMemory(t)
	r.configure(`{"resourceList": [{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"pfNames": ["ens1"], "isRdma": true}]}]}`)
	vfs := r.tree.Virtual(pfAddress)
	rdma := map[string]int{}
	for _, vf := range vfs {
		rdma[vf] = r.tree.AddRDMA(sysfstest.Device(vf), "mlx_"+vf[len(vf)-1:], "")
	}
	r.start()
	r.awaitOffered(3)
	testkit.Value(r.kubelet.Allocate(testkit.Context(r.t), resource, vfs[0]))(t)
	r.pods.hold(podresources.Holder{Resource: resource, ID: vfs[0], Pod: "p"})
	r.tree.Remove(sysfstest.Device(vfs[0]) + "/infiniband")
	r.changes <- struct{}{}
	r.changes <- struct{}{}
	r.awaitOffered(3)
	r.stop()
	r.start()
	r.awaitOffered(3)
}

func TestWarningsNameTheirResource(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	r.configure(`{"resourceList": [
		{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"drivers": ["iavf"]}]},
		{"resourceName": "dpdk", "resourcePrefix": "example.com", "selectors": [{"drivers": ["vfio-pci"]}]}]}`)
	r.start()
	testkit.Eventually(r.t, "the machine is looked at", func() bool { return !r.plugin.Document().Scanned.IsZero() })
	for _, want := range []string{"example.com/vf: no device is in it", "example.com/dpdk: no device is in it"} {
		if got := r.plugin.Document().Warnings; !slices.Contains(got, want) {
			t.Errorf("the warnings are %q, want %q", got, want)
		}
	}
}
