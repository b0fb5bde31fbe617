// Package fence fences clients of NVMe/TCP targets of the kernel (Debian 12) in
// a guest; the clients are in another guest.
package fence

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	addons "github.com/csi-addons/spec/lib/go/fence"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/nvmetcp"
	"github.com/cleatproject/cleat/test/vm/pair"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	mib            = 1 << 20
	server, client = 0, 1
	socket         = "/run/cleat/fence/fence.sock"
	status         = "127.0.0.1:9100"

	// Parameters of the writer.
	blockSize = 4096
	areaSize  = mib
	workers   = 8
)

// disk is a disk of the target and its client.
type disk struct {
	name      string
	backing   string // host file
	device    string // path in the target's guest
	subsystem nvmetcp.Subsystem
	host      nvmetcp.Host
	from      netip.Addr // address of the client
	options   []string   // of the client's connection

	controller *nvmetcp.Controller
	writer     *vm.Process
}

// second is the client's second address.
var second = netip.MustParseAddr("198.51.100.3")

type rig struct {
	*pair.Pair
	server *vm.Process
	conn   *grpc.ClientConn
	fences addons.FenceControllerClient
}

// newRig boots a target with the disks, and a client.
func newRig(t *testing.T, disks ...*disk) *rig {
	t.Helper()
	cleat, storm := testkit.Build(t, testkit.Cleat), testkit.Build(t, "./test/vm/fence/storm")
	var files []vm.Disk
	for i, d := range disks {
		d.backing = filepath.Join(t.TempDir(), d.name)
		file := testkit.Value(vm.RawFile(d.backing, 2*workers*mib))(t)
		files = append(files, file)
		d.device = fmt.Sprintf("/dev/vd%c", 'a'+i)
	}
	r := &rig{Pair: pair.Boot(t,
		vm.Spec{
			Name: "target", Disks: files, Programs: []string{cleat}, Tools: []string{"nft", "dmsetup", "ip", "setpriv", "sleep"},
			Modules: append(nvmetcp.TargetModules(), "nf_tables", "tcp_diag", "dm-mod", "dm-delay"),
		},
		vm.Spec{Name: "client", Modules: nvmetcp.HostModules(), Programs: []string{storm}})}
	n := r.Node(client)
	n.Run("ip", "address", "add", netip.PrefixFrom(second, 24).String(), "dev", n.Interface)
	return r
}

func (r *rig) at() netip.AddrPort { return netip.AddrPortFrom(r.Node(server).Address, 4420) }

// target exports the disks.
func (r *rig) target(disks ...*disk) {
	r.Helper()
	var all []nvmetcp.Subsystem
	for i, d := range disks {
		d.host = nvmetcp.HostOf(fmt.Sprintf("5b6a1f52-0d3c-4c53-8f6e-0000000000a%d", i))
		d.subsystem = nvmetcp.Subsystem{
			NQN: "nqn.2024-01.example:" + d.name, Device: d.device, Hosts: []string{d.host.NQN},
			UUID: fmt.Sprintf("7c0f7c6e-53a5-4f0e-9a1b-00000000000%d", i+1),
		}
		all = append(all, d.subsystem)
	}
	nvmetcp.Serve(r.Node(server).Kernel, r.at(), all...)
}

// connect connects the client to a disk and starts its writer.
func (r *rig) connect(d *disk) {
	r.Helper()
	d.controller = testkit.Value(nvmetcp.Connect(r.Node(client).Kernel, nvmetcp.Connection{
		Target: r.at(), Subsystem: d.subsystem.NQN, Host: d.host,
		Options: append([]string{"host_traddr=" + d.from.String(), "keep_alive_tmo=5", "reconnect_delay=1", "ctrl_loss_tmo=-1"}, d.options...),
	}))(r)
	r.write(d, 1)
}

// write starts a writer whose block numbers start at first.
func (r *rig) write(d *disk, first int) {
	r.Helper()
	n := r.Node(client)
	device := "/dev/" + nvmetcp.AwaitDisk(n.Kernel, d.subsystem.UUID)
	d.writer = testkit.Value(n.Guest.Start(r.Context(), vm.Command{Argv: []string{"storm", device, fmt.Sprint(workers), fmt.Sprint(first)}}))(r)
	d.awaitWrites(r, 50)
}

// serve starts the fence server and waits until it is ready.
func (r *rig) serve(flags ...string) {
	r.Helper()
	guest := r.Node(server).Guest
	r.server = testkit.Value(guest.Start(r.Context(), vm.Command{Argv: append([]string{
		"cleat", "fence", "serve", "--endpoint", "unix://" + socket, "--state-dir", "/var/lib/fence", "--ports", "nvme-tcp",
		"--metrics-address", status, "--log-format", "text",
	}, flags...)}))(r)
	r.conn = testkit.Value(guest.Connect(socket))(r)
	conn := r.conn
	r.Cleanup(func() { _ = conn.Close() })
	r.fences = addons.NewFenceControllerClient(conn)
	r.Node(server).Await("the fence server is ready", func() bool {
		select {
		case <-r.server.Done():
			r.Fatalf("the fence server exited: %v\n%s", r.server.Err(), r.server.Log())
		default:
		}
		_, err := r.status("/readyz")
		return err == nil
	})
}

// status reads a page of the fence server's status address.
func (r *rig) status(path string) (string, error) {
	guest := r.Node(server).Guest
	code, text, err := testkit.Page(r.Context(), func(ctx context.Context) (net.Conn, error) { return guest.Dial(ctx, "tcp", status) }, http.MethodGet, path)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s answers %d: %s", path, code, text)
	}
	return text, err
}

func (r *rig) fence(address netip.Addr) error {
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	_, err := r.fences.FenceClusterNetwork(ctx, &addons.FenceClusterNetworkRequest{Cidrs: cidrs(address)})
	return err
}

func (r *rig) unfence(address netip.Addr) error {
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	_, err := r.fences.UnfenceClusterNetwork(ctx, &addons.UnfenceClusterNetworkRequest{Cidrs: cidrs(address)})
	return err
}

func cidrs(address netip.Addr) []*addons.CIDR {
	return []*addons.CIDR{{Cidr: netip.PrefixFrom(address, address.BitLen()).String()}}
}

// acknowledged returns the last acknowledged number of each worker, and the
// number of acknowledged writes.
func (d *disk) acknowledged() (last [workers]uint64, count int) {
	for line := range strings.SplitSeq(d.writer.Log(), "\n") {
		var worker int
		var n uint64
		if _, err := fmt.Sscanf(line, "%d %d", &worker, &n); err == nil && worker < workers {
			last[worker] = n
			count++
		}
	}
	return last, count
}

// awaitWrites waits for additional acknowledged writes.
func (d *disk) awaitWrites(r *rig, writes int) {
	r.Helper()
	_, before := d.acknowledged()
	r.Node(client).Await(fmt.Sprintf("%d more writes to %s", writes, d.name), func() bool {
		select {
		case <-d.writer.Done():
			r.Fatalf("the writer to %s exited: %v", d.name, d.writer.Err())
		default:
		}
		_, now := d.acknowledged()
		return now >= before+writes
	})
}

// snapshot reads the target's disk image.
func (d *disk) snapshot(r *rig) []byte {
	r.Helper()
	image := testkit.Value(os.ReadFile(d.backing))(r)
	return image
}

// changes counts blocks that differ.
func changes(before, after []byte) (n int) {
	for at := 0; at < len(before); at += blockSize {
		if string(before[at:at+blockSize]) != string(after[at:at+blockSize]) {
			n++
		}
	}
	return n
}

// holds verifies that all acknowledged writes are on the disk.
func (d *disk) holds(r *rig, image []byte) {
	r.Helper()
	last, _ := d.acknowledged()
	for worker, n := range last {
		at := worker*areaSize + int(n*blockSize%areaSize)
		block := image[at : at+blockSize]
		if got := binary.LittleEndian.Uint64(block[8:]); got != n || binary.LittleEndian.Uint64(block) != uint64(worker) || binary.LittleEndian.Uint64(block[blockSize-8:]) != n {
			r.Errorf("%s: block %d of worker %d was acknowledged, but the disk has block %d", d.name, n, worker, got)
		}
	}
}
