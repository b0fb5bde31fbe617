// Package sysfstest emulates a sysfs with SR-IOV functions, and the kernel's
// reaction to writes, in a temporary directory.
package sysfstest

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/internal/linux/netlinks"
)

// Tree is a sysfs with a /dev. Methods can be called concurrently; readers see
// each change step by step, in the kernel's order.
type Tree struct {
	Sysfs, Dev string

	t  Judge
	mu sync.Mutex

	functions      map[string]*Function
	virtual        map[string][]string
	autoprobe      map[string]bool
	override       map[string]string
	links          []netlinks.Link
	routes         []int
	next           map[string]int // next number of links, RDMA devices, ...
	table          map[string]*entry
	eswitch        map[string]string
	offload        map[string]string // hw-tc-offload by link
	steering       map[string]string // flow steering mode by PF
	vdpa           map[string]*vdpaDevice
	refuses        map[string]error
	devlinkDevices map[devlink.Handle]devlink.Device
	rdma           map[string]rdmaDevice

	strict bool

	faultMu sync.Mutex
	faults  []*Fault
	writes  []string
}

// Judge receives fatal errors and must not return; testing.TB implements it.
type Judge interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// New creates an empty tree in memory for a test.
func New(t testing.TB) *Tree {
	t.Helper()
	root, err := os.MkdirTemp("/dev/shm", "sysfs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	return At(root, t)
}

// At creates a tree below an empty directory that is not removed.
func At(root string, t Judge) *Tree {
	t.Helper()
	tree := &Tree{
		Sysfs: filepath.Join(root, "sys"), Dev: filepath.Join(root, "dev"), t: t,
		functions: map[string]*Function{}, virtual: map[string][]string{},
		autoprobe: map[string]bool{}, override: map[string]string{}, next: map[string]int{"link": 1},
		table: map[string]*entry{}, eswitch: map[string]string{}, offload: map[string]string{}, steering: map[string]string{}, vdpa: map[string]*vdpaDevice{}, refuses: map[string]error{},
		devlinkDevices: map[devlink.Handle]devlink.Device{}, rdma: map[string]rdmaDevice{},
	}
	for _, dir := range []string{"bus/pci/devices", "bus/pci/drivers", "class/net", "kernel/iommu_groups"} {
		tree.must(os.MkdirAll(tree.path(dir), 0o755))
	}
	tree.File("bus/pci/drivers_probe", "")
	tree.must(os.MkdirAll(filepath.Join(tree.Dev, "infiniband"), 0o755))
	return tree
}

func (t *Tree) must(err error) {
	t.t.Helper()
	if err != nil {
		t.t.Fatal(err)
	}
}

func (t *Tree) path(name string) string { return filepath.Join(t.Sysfs, name) }

// File writes a file with a final newline.
func (t *Tree) File(name, text string) {
	t.t.Helper()
	t.must(os.MkdirAll(filepath.Dir(t.path(name)), 0o755))
	t.must(os.WriteFile(t.path(name), []byte(text+"\n"), 0o644))
}

// Link creates a relative symbolic link; paths are relative to the root.
func (t *Tree) Link(name, target string) {
	t.t.Helper()
	t.must(t.link(name, target))
}

func (t *Tree) link(name, target string) error {
	if err := os.MkdirAll(filepath.Dir(t.path(name)), 0o755); err != nil {
		return err
	}
	to, err := filepath.Rel(path.Dir(name), target)
	if err != nil {
		return err
	}
	return os.Symlink(to, t.path(name))
}

// Remove removes a path of the tree.
func (t *Tree) Remove(name string) {
	t.t.Helper()
	t.must(os.RemoveAll(t.path(name)))
}

func (t *Tree) nextNumber(kind string) int {
	n := t.next[kind]
	t.next[kind]++
	return n
}

// Device returns a function's path: devices/pci0000:3b/0000:3b:02.1.
func Device(address string) string {
	return "devices/pci" + address[:len(address)-len(":02.1")] + "/" + address
}

// AddLink adds a network device below the device at; "" is a virtual device. It
// returns the index.
func (t *Tree) AddLink(at string, l netlinks.Link) int {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	index, err := t.addLink(at, l)
	t.must(err)
	return index
}

func defaultMAC(index int) string {
	return fmt.Sprintf("02:00:5e:00:%02x:%02x", index>>8&0xff, index&0xff)
}

func (t *Tree) addLink(at string, l netlinks.Link) (int, error) {
	if l.Index == 0 {
		l.Index = t.nextNumber("link")
	}
	if l.Encapsulation == "" {
		l.Encapsulation = "ether"
	}
	if l.MAC == "" {
		l.MAC = defaultMAC(l.Index)
	}
	if l.MTU == 0 {
		l.MTU = 1500
	}
	if at == "" {
		at = "devices/virtual"
	}
	place := at + "/net/" + l.Name
	if err := os.MkdirAll(t.path(place), 0o755); err != nil {
		return 0, err
	}
	t.links = append(t.links, l)
	return l.Index, t.link("class/net/"+l.Name, place)
}

// ChangeLink modifies a network device.
func (t *Tree) ChangeLink(name string, change func(*netlinks.Link)) {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.links, func(l netlinks.Link) bool { return l.Name == name })
	if i < 0 {
		t.t.Fatalf("there is no link %q", name)
	}
	change(&t.links[i])
}

// Route sets the links of the default routes.
func (t *Tree) Route(indices ...int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.routes = slices.Clone(indices)
}

// AddRDMA adds an RDMA device below the device at, and returns its number.
func (t *Tree) AddRDMA(at, name, pkey string) int {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nextNumber("rdma")
	t.rdma[name] = rdmaDevice{at, n}
	t.Link("class/infiniband/"+name, at+"/infiniband/"+name)
	if pkey != "" {
		t.File(at+"/infiniband/"+name+"/ports/1/pkeys/0", pkey)
	} else {
		t.must(os.MkdirAll(t.path(at+"/infiniband/"+name), 0o755))
	}
	for _, of := range charDevices {
		device := fmt.Sprintf("%s/%s/%s%d", at, of.class, of.name, n)
		t.File(device+"/ibdev", name)
		t.Link(fmt.Sprintf("class/%s/%s%d", of.class, of.name, n), device)
	}
	return n
}

// AddVDPA adds a vDPA device with a driver (virtio_vdpa, vhost_vdpa, ""), and
// returns its number.
func (t *Tree) AddVDPA(address, driver string) int {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nextNumber("vdpa")
	name := fmt.Sprintf("vdpa%d", n)
	place := Device(address) + "/" + name
	t.must(os.MkdirAll(t.path(place), 0o755))
	t.Link("bus/vdpa/devices/"+name, place)
	if driver != "" {
		t.must(os.MkdirAll(t.path("bus/vdpa/drivers/"+driver), 0o755))
		t.Link(place+"/driver", "bus/vdpa/drivers/"+driver)
	}
	if driver == "vhost_vdpa" {
		t.must(os.MkdirAll(t.path(fmt.Sprintf("%s/vhost-vdpa-%d", place, n)), 0o755))
	}
	return n
}

// AddUIO adds a UIO device and returns its name.
func (t *Tree) AddUIO(address string) string {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	name := fmt.Sprintf("uio%d", t.nextNumber("uio"))
	place := Device(address) + "/uio/" + name
	t.must(os.MkdirAll(t.path(place), 0o755))
	t.Link("class/uio/"+name, place)
	return name
}

// AddScalable adds a scalable function and returns its auxiliary device's name.
func (t *Tree) AddScalable(pf string, number int) string {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	name := fmt.Sprintf("mlx5_core.sf.%d", t.nextNumber("sf")+2)
	place := Device(pf) + "/" + name
	t.File(place+"/sfnum", strconv.Itoa(number))
	t.must(os.MkdirAll(t.path("bus/auxiliary/drivers/mlx5_core.sf"), 0o755))
	t.Link(place+"/driver", "bus/auxiliary/drivers/mlx5_core.sf")
	t.Link("bus/auxiliary/devices/"+name, place)
	return name
}

// Virtual returns the addresses of VFs by index.
func (t *Tree) Virtual(pf string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.virtual[pf])
}

// Addresses returns the addresses of all functions, in no order.
func (t *Tree) Addresses() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.functions))
}
