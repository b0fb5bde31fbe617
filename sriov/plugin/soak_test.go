package plugin_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/sriov/grants"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/podresources"
	variants "github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	soakRests   = 4
	rdmaAddress = "0000:5e:00.0"
	soakConfig  = `{"resourceList": [
		{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"drivers": ["iavf"], "pfNames": ["ens1"]}]},
		{"resourceName": "user", "resourcePrefix": "example.com", "selectors": [{"drivers": ["vfio-pci"], "devices": ["1889"]}]},
		{"resourceName": "rdma", "resourcePrefix": "example.com", "selectors": [{"vendors": ["15b3"], "isRdma": true}]}]}`
)

var soakChanges = map[bool]int{true: 5000, false: 500}[variants.Enabled]

type soak struct {
	*rig
	random *rand.Rand
	pfs    map[string]string // network device by PF
	rdma   map[string]string
	names  int

	mu             sync.Mutex
	held           []podresources.Holder
	given, refused int
}

func newSoak(t *testing.T, seed uint64) *soak {
	s := &soak{rig: newRig(t, 0), random: rand.New(rand.NewPCG(seed, 0)), rdma: map[string]string{},
		pfs: map[string]string{pfAddress: "ens1", "0000:4b:00.0": "ens2", rdmaAddress: "ens3"}}
	s.tree.Add(sysfstest.Function{Address: "0000:4b:00.0", Vendor: "8086", Device: "1593", Driver: "ice", IOMMUGroup: "5", Netdev: "ens2", TotalVFs: 8, VFDevice: "1889", VFDriver: "iavf"})
	s.tree.Add(sysfstest.Function{Address: rdmaAddress, Vendor: "15b3", Device: "101d", Driver: "mlx5_core", Netdev: "ens3", TotalVFs: 8, VFDevice: "101e", VFDriver: "mlx5_core"})
	s.config.Discovery.Devlink = sysfstest.Devlink{Tree: s.tree}
	s.config.Interval = time.Hour
	s.node("vfio/vfio")
	s.configure(soakConfig)
	for pf := range s.pfs {
		s.make(pf, 4)
	}
	for _, vf := range s.tree.Virtual("0000:4b:00.0")[:2] {
		s.bind(vf, "iavf", "vfio-pci")
	}
	for _, vf := range s.tree.Virtual(rdmaAddress) {
		s.lend(vf)
	}
	return s
}

func (s *soak) node(name string) {
	path := filepath.Join(s.tree.Dev, name)
	testkit.Must(s.t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600))
}

func (s *soak) write(name, value string) {
	s.t.Helper()
	testkit.Must(s.t, s.tree.Write(name, value))
}

func (s *soak) make(pf string, n int) {
	s.t.Helper()
	attribute := sysfstest.Device(pf) + "/sriov_numvfs"
	for _, vf := range s.tree.Virtual(pf) {
		delete(s.rdma, vf)
	}
	s.write(attribute, "0")
	s.write(attribute, strconv.Itoa(n))
	for _, vf := range s.tree.Virtual(pf) {
		if group, err := os.Readlink(filepath.Join(s.tree.Sysfs, sysfstest.Device(vf), "iommu_group")); err == nil {
			s.node("vfio/" + filepath.Base(group))
		}
	}
}

func (s *soak) bind(vf, from, to string) {
	s.t.Helper()
	s.write("bus/pci/drivers/"+from+"/unbind", vf)
	s.write(sysfstest.Device(vf)+"/driver_override", to)
	s.write("bus/pci/drivers_probe", vf)
}

// Sometimes devlink still reports the function as RDMA capable.
func (s *soak) lend(vf string) {
	s.t.Helper()
	if name := s.rdma[vf]; name != "" {
		s.tree.RemoveRDMA(name)
		delete(s.rdma, vf)
	} else {
		s.names++
		s.rdma[vf] = fmt.Sprintf("mlx5_%d", s.names)
		n := s.tree.AddRDMA(sysfstest.Device(vf), s.rdma[vf], "")
		for _, role := range []string{"uverbs", "umad", "issm"} {
			s.node(fmt.Sprintf("infiniband/%s%d", role, n))
		}
	}
	s.tree.SetDevlink("pci", vf, devlink.Device{RDMA: s.random.IntN(2) == 0})
}

// The configuration might not have the new name.
func (s *soak) rename(pf string) {
	s.t.Helper()
	if s.random.IntN(2) == 0 {
		name := s.pfs[pf]
		to := map[bool]string{true: name + "x", false: name[:len("ens1")]}[len(name) == len("ens1")]
		s.tree.RenameLink(name, to)
		s.pfs[pf] = to
		return
	}
	vfs := s.tree.Virtual(pf)
	if len(vfs) == 0 {
		return
	}
	entries, err := os.ReadDir(filepath.Join(s.tree.Sysfs, sysfstest.Device(vfs[s.random.IntN(len(vfs))]), "net"))
	if err != nil || len(entries) == 0 {
		return
	}
	s.names++
	s.tree.RenameLink(entries[0].Name(), fmt.Sprintf("net%d", s.names))
}

func (s *soak) change() {
	s.t.Helper()
	pf := []string{pfAddress, "0000:4b:00.0", rdmaAddress}[s.random.IntN(3)]
	vfs := s.tree.Virtual(pf)
	switch what := s.random.IntN(10); {
	case what == 0 || len(vfs) == 0:
		s.make(pf, s.random.IntN(6))
	case what < 4:
		s.rename(pf)
	case pf == rdmaAddress:
		s.lend(vfs[s.random.IntN(len(vfs))])
	default:
		vf := vfs[s.random.IntN(len(vfs))]
		driver := testkit.Value(os.Readlink(filepath.Join(s.tree.Sysfs, sysfstest.Device(vf), "driver")))(s.t)
		from := filepath.Base(driver)
		s.bind(vf, from, map[string]string{"iavf": "vfio-pci", "vfio-pci": ""}[from])
	}
	turn(s.changes)
}

func (s *soak) allocate(resource string, turns <-chan struct{}, seed uint64) {
	random := rand.New(rand.NewPCG(seed, uint64(len(resource))))
	variable := "PCIDEVICE_EXAMPLE_COM_" + strings.ToUpper(strings.TrimPrefix(resource, "example.com/"))
	for range turns {
		free := slices.DeleteFunc(s.kubelet.Healthy(resource), s.isHeld)
		if len(free) == 0 {
			continue
		}
		id := free[random.IntN(len(free))]
		ctx, cancel := context.WithTimeout(s.t.Context(), testkit.Timeout)
		given, err := s.kubelet.Allocate(ctx, resource, id)
		cancel()
		switch code := status.Code(err); {
		case err == nil && given.Envs[variable] != id:
			s.t.Errorf("%s of %s was allocated, and the container gets %v", id, resource, given.Envs)
		case err == nil:
			s.hold(podresources.Holder{Resource: resource, ID: id, Namespace: "ns", Pod: "p", Container: "c"})
		case code == codes.Unknown: // device lost by the kubelet
		case code != codes.FailedPrecondition:
			s.t.Errorf("Allocate of %s of %s: %v", id, resource, err)
		default:
			s.mu.Lock()
			s.refused++
			s.mu.Unlock()
		}
	}
}

func turn(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *soak) isHeld(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.held, func(h podresources.Holder) bool { return h.ID == id })
}

func (s *soak) hold(h podresources.Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given++
	s.held = append(s.held, h)
	if len(s.held) > 5 {
		s.held = slices.Delete(s.held, 0, 1)
	}
	s.pods.hold(slices.Clone(s.held)...)
}

func (s *soak) storm(seed uint64) {
	var turns []chan struct{}
	var allocators sync.WaitGroup
	for name := range s.want() {
		c := make(chan struct{}, 2)
		turns = append(turns, c)
		allocators.Go(func() { s.allocate(name, c, seed) })
	}
	for range soakChanges / soakRests {
		s.change()
		for _, c := range turns {
			turn(c)
		}
	}
	for _, c := range turns {
		close(c)
	}
	allocators.Wait()
}

type offered struct{ All, Healthy []string }

func (s *soak) want() map[string]offered {
	s.t.Helper()
	c, _, err := inventory.ParseConfig([]byte(soakConfig), inventory.ParseOptions{})
	testkit.Must(s.t, err)
	found, err := inventory.Discover(testkit.Context(s.t), s.config.Discovery)
	if err != nil || len(found.Problems) > 0 {
		s.t.Fatalf("%v, %+v", err, found.Problems)
	}
	holders := testkit.Value(s.pods.Held(testkit.Context(s.t)))(s.t)
	held, _ := grants.Merge(nil, holders, true, found, time.Now())
	want := map[string]offered{}
	for _, p := range inventory.Assign(c, found, inventory.AssignOptions{Held: held}).Pools {
		var o offered
		for _, m := range p.Members {
			o.All = append(o.All, m.ID)
			if m.Wrong == "" {
				o.Healthy = append(o.Healthy, m.ID)
			}
		}
		slices.Sort(o.All)
		slices.Sort(o.Healthy)
		want[p.Resource.FullName()] = o
	}
	return want
}

func (s *soak) is() map[string]offered {
	is := map[string]offered{}
	for _, name := range s.kubelet.Resources() {
		if lists := s.kubelet.Lists(name); len(lists) > 0 {
			last := lists[len(lists)-1]
			is[name] = offered{last.All, last.Healthy}
		}
	}
	return is
}

func (s *soak) rest() (goroutines, files int) {
	s.t.Helper()
	want := s.want()
	turn(s.changes)
	ctx := testkit.Context(s.t)
	if err := s.kubelet.Await(ctx, func() bool { return cmp.Equal(want, s.is()) }); err != nil {
		s.t.Fatalf("at rest the kubelet's lists are not what there is (-want +got):\n%s\nthe plugin says %+v", cmp.Diff(want, s.is()), s.plugin.Document())
	}
	if err := s.plugin.Check(ctx); err != nil {
		s.t.Errorf("the plugin says %v", err)
	}
	open := testkit.Value(os.ReadDir("/proc/self/fd"))(s.t)
	return runtime.NumGoroutine(), len(open)
}

// After random changes the kubelet has the result of a fresh scan. No list
// loses a device that is being allocated, and nothing leaks.
func TestSoak(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("the seed is %d", seed)
	s := newSoak(t, seed)
	s.start()
	s.rest() // never had a device
	baseGoroutines, baseFiles := 0, 0
	for round := range soakRests {
		s.storm(seed + uint64(round))
		goroutines, files := s.rest()
		if round == 0 {
			baseGoroutines, baseFiles = goroutines, files
			continue
		}
		const slack = 8 // timers and ending calls
		if goroutines > baseGoroutines+slack || files > baseFiles+slack {
			t.Errorf("after %d changes there are %d goroutines and %d files, after the first %d there were %d and %d",
				(round+1)*soakChanges/soakRests, goroutines, files, soakChanges/soakRests, baseGoroutines, baseFiles)
		}
	}
	for _, name := range s.kubelet.Resources() {
		if n := s.kubelet.Registrations(name); n != 1 {
			t.Errorf("%s was registered %d times, want once", name, n)
		}
	}
	if s.given == 0 {
		t.Error("nothing was given out")
	}
	t.Logf("%d devices were given out, %d times that was refused; the kubelet got %d, %d and %d lists", s.given, s.refused,
		len(s.kubelet.Lists("example.com/vf")), len(s.kubelet.Lists("example.com/user")), len(s.kubelet.Lists("example.com/rdma")))
	s.stop()
}
