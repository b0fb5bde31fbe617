package ceph

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/cephnet"
	"github.com/cleatproject/cleat/test/vm/disk"
	"github.com/cleatproject/cleat/test/vm/kernel"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
)

const (
	mib       = 1 << 20
	lifetime  = 95 * time.Minute // of make soak
	sitePath  = "/run/site.json"
	blockSize = 4096 // of the writer
)

// rig is two nodes of a cluster.
type rig struct {
	*testing.T
	nodes      [2]*nodeservice.Node
	controller *driver.Process
	addons     string // endpoint of the controller
	slots      *vm.Slots
	disk       *disk.Disk
	site       cephtest.Site
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t}
	for _, m := range cluster.LegacyMonitors() {
		r.site.Monitors = append(r.site.Monitors, testkit.Value(netip.ParseAddrPort(m))(t))
	}
	r.site.User, r.site.Pool = "node", pool
	// This is all that a node needs without exclusive locks: it cannot fence.
	r.site.Key = testkit.Value(cluster.User(r.site.User, "mon", "allow r", "osd", fmt.Sprintf("profile rbd pool=%s, profile rbd pool=%s", pool, volumes)))(t)
	r.site.Server = cephtest.Serve(t, cephnet.HostAddress, change())
	r.startController()
	r.disk = testkit.Open(disk.Open(disk.Spec{Path: filepath.Join(t.TempDir(), "disk"), Size: 128 * mib, Survival: disk.SurviveNone}))(t)
	r.slots = vm.ReserveSlots(t, len(r.nodes))
	for n := range r.nodes {
		r.boot(n)
	}
	r.nodes[0].Run("mkfs.ext4", "-q", "/dev/vda")
	for n := range r.nodes {
		r.startNode(n)
	}
	return r
}

// boot boots a node. Node 0 has a disk for the state of its plugin.
func (r *rig) boot(n int) {
	s := spec(n)
	s.Slots = r.slots
	for _, p := range inGuests() {
		s.Programs = append(s.Programs, cephnet.Program(p))
	}
	if n == 0 {
		testkit.Must(r, r.disk.PowerOn())
		s.Disks = []vm.Disk{r.disk}
	}
	name, address, _ := strings.Cut(r.nodeID(n), "@")
	r.nodes[n] = nodeservice.New(kernel.Of(r.T, vm.Boot(r.T, s)), "--engine", "ceph", "--services", "node", "--node-id", name, "--node-address", address,
		"--ceph-config", "/etc/ceph.json", "--ceph-secret", "/etc/ceph-secret")
	cephnet.Connect(r.nodes[n].Kernel, n)
	r.describe(n, sitePath, r.site)
}

// In returns the rig for a subtest.
func (r *rig) In(t *testing.T) *rig {
	sub := *r
	sub.T = t
	for n, k := range r.nodes {
		sub.nodes[n] = k.In(t)
	}
	return &sub
}

func (r *rig) describe(n int, path string, s cephtest.Site) {
	testkit.Must(r, r.nodes[n].Guest.WriteFile(r.Context(), path, testkit.Value(json.Marshal(s))(r), 0o600))
}

// change changes images for the tests of node/rbd in guests.
func change() func(call, image string, size int64) (string, error) {
	var prefixes atomic.Int64
	return func(call, image string, size int64) (string, error) {
		switch name := pool + "/" + image; call {
		case "prefix":
			return fmt.Sprintf("s%d-", prefixes.Add(1)), nil
		case "create":
			return create(image, fmt.Sprintf("%dB", size))
		case "delete": // as the engine does while something needs the image
			return cluster.RBD("rename", name, fmt.Sprintf("%s-deleted-%d", name, prefixes.Add(1)))
		case "fence":
			return cluster.Command("osd", "blocklist", "add", image)
		case "grow":
			return cluster.RBD("resize", "--no-progress", "--size", fmt.Sprintf("%dB", size), name)
		}
		return "", fmt.Errorf("unknown call %s", call)
	}
}

// create creates an image and returns its id. Exclusive locks need a user that
// can fence others.
func create(name, size string) (string, error) {
	if _, err := cluster.RBD("create", "--size", size, "--image-feature", "layering", pool+"/"+name); err != nil {
		return "", err
	}
	out, err := cluster.RBD("info", "--format", "json", pool+"/"+name)
	if err != nil {
		return "", err
	}
	var info struct{ ID string }
	return info.ID, json.Unmarshal([]byte(out), &info)
}

// image creates an image for a test.
func (r *rig) image(name string) {
	testkit.Value(create(name, strconv.Itoa(64*mib)+"B"))(r)
}

// client runs the client program on a node, with flags before the image.
func (r *rig) client(n int, args ...string) (string, error) {
	return r.nodes[n].Try(append([]string{"rbdclient", "-site", sitePath}, args...)...)
}

func (r *rig) attach(n int, image string) (device string) {
	return testkit.Value(r.client(n, "attach", image))(r)
}

func (r *rig) detach(n int, image string) {
	testkit.Value(r.client(n, "detach", image))(r)
}

// writer starts the writer on a device.
func (r *rig) writer(n int, args ...string) *vm.Process {
	return testkit.Value(r.nodes[n].Guest.Start(r.Context(), vm.Command{Argv: append([]string{"writer"}, args...)}))(r)
}

// acknowledged counts the durable blocks that the writer has printed. A
// truncated last line does not count.
func acknowledged(w *vm.Process) int {
	log := w.Log()
	return strings.Count(log[:strings.LastIndexByte(log, '\n')+1], "\n")
}

// awaitWrites waits until a writer has written more blocks.
func (r *rig) awaitWrites(n int, w *vm.Process, more int) {
	begin := acknowledged(w)
	r.nodes[n].Await("the writer writes", func() bool {
		select {
		case <-w.Done():
			r.Fatalf("the writer ended: %v", w.Err())
		default:
		}
		return acknowledged(w) >= begin+more
	})
}

// takeovers is how often the takeover is tested.
func takeovers() int {
	if soak.Enabled {
		return 100
	}
	return 2 // each kernel is lost once, with each value of replace
}
