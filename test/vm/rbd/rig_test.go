package rbd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/disk"
	"github.com/cleatproject/cleat/test/vm/kernel"
)

const (
	mib       = 1 << 20
	lifetime  = 95 * time.Minute // of make soak
	sitePath  = "/run/site.json"
	blockSize = 4096 // of the writer
)

// site describes the cluster for programs in guests: client, and the tests of
// node/rbd.
type site struct {
	Monitors []netip.AddrPort
	User     string
	Key      string
	Pool     string
	Server   string
}

// rig is two nodes of a cluster.
type rig struct {
	*testing.T
	nodes      [2]*kernel.Kernel
	plugins    [2]*plugin
	controller *driver.Process
	addons     string // endpoint of the controller
	slots      *vm.Slots
	disk       *disk.Disk
	site       site
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t}
	for _, m := range cluster.LegacyMonitors() {
		r.site.Monitors = append(r.site.Monitors, testkit.Value(netip.ParseAddrPort(m))(t))
	}
	r.site.User, r.site.Pool = "node", pool
	// This is all that a node needs without exclusive locks: it cannot fence.
	r.site.Key = testkit.Value(cluster.User(r.site.User, "mon", "allow r", "osd", fmt.Sprintf("profile rbd pool=%s, profile rbd pool=%s", pool, volumes)))(t)
	r.serve()
	r.startController()
	r.disk = testkit.Open(disk.Open(disk.Spec{Path: filepath.Join(t.TempDir(), "disk"), Size: 128 * mib, Survival: disk.SurviveNone}))(t)
	r.slots = vm.ReserveSlots(t, len(r.nodes))
	for n := range r.nodes {
		r.plugins[n] = &plugin{}
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
	s.Slots, s.Programs = r.slots, []string{program("client"), program("writer"), program("cleat"), program("suite")}
	if n == 0 {
		testkit.Must(r, r.disk.PowerOn())
		s.Disks = []vm.Disk{r.disk}
	}
	r.nodes[n] = kernel.Of(r.T, vm.Boot(r.T, s))
	r.connect(n)
}

// in returns the rig for a subtest.
func (r *rig) in(t *testing.T) *rig {
	sub := *r
	sub.T = t
	for n, k := range r.nodes {
		sub.nodes[n] = &kernel.Kernel{TB: t, Guest: k.Guest}
	}
	return &sub
}

// connect gives a guest its address and the description of the cluster.
func (r *rig) connect(n int) {
	k := r.nodes[n]
	testkit.Must(r, ip("link", "set", tap(n).Interface, "master", bridge, "up"))
	for _, name := range k.Names("/sys/class/net") {
		if k.Read(path.Join("/sys/class/net", name, "address")) == tap(n).MAC() {
			k.Run("ip", "address", "add", netip.PrefixFrom(guestAddress(n), 24).String(), "dev", name)
			k.Run("ip", "link", "set", name, "up")
		}
	}
	k.Run("ping", "-c", "1", "-W", "10", hostAddress.String())
	r.describe(n, sitePath, r.site)
}

func (r *rig) describe(n int, path string, s site) {
	testkit.Must(r, r.nodes[n].Guest.WriteFile(r.Context(), path, testkit.Value(json.Marshal(s))(r), 0o600))
}

// disconnect takes a guest off the network, or returns it. The guest does not notice.
func (r *rig) disconnect(n int, off bool) {
	state := "up"
	if off {
		state = "down"
	}
	testkit.Must(r, ip("link", "set", tap(n).Interface, state))
}

// serve changes images for the tests of node/rbd in guests: one call per
// connection, "CALL IMAGE SIZE".
func (r *rig) serve() {
	listener := testkit.Value(net.Listen("tcp", netip.AddrPortFrom(hostAddress, 0).String()))(r)
	r.site.Server = listener.Addr().String()
	var prefixes atomic.Int64
	testkit.Go(r, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return nil
			}
			line, err := bufio.NewReader(conn).ReadString('\n')
			var answer struct{ ID, Error string }
			if err == nil {
				answer.ID, err = change(strings.Fields(line), &prefixes)
			}
			if err != nil {
				answer.Error = err.Error()
			}
			_ = json.NewEncoder(conn).Encode(answer)
			_ = conn.Close()
		}
	})
}

func change(words []string, prefixes *atomic.Int64) (string, error) {
	if len(words) != 3 {
		return "", errors.New("the call is not CALL IMAGE SIZE")
	}
	switch name := pool + "/" + words[1]; words[0] {
	case "prefix":
		return fmt.Sprintf("s%d-", prefixes.Add(1)), nil
	case "create":
		return create(words[1], words[2]+"B")
	case "delete": // as the engine does while something needs the image
		return cluster.RBD("rename", name, fmt.Sprintf("%s-deleted-%d", name, prefixes.Add(1)))
	case "grow":
		return cluster.RBD("resize", "--no-progress", "--size", words[2]+"B", name)
	}
	return "", fmt.Errorf("unknown call %s", words[0])
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
	return r.nodes[n].Try(append([]string{"client", "-site", sitePath}, args...)...)
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
	return 3
}
