package pair

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/disk"
	"github.com/cleatproject/cleat/test/vm/nvmetcp"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	server, client = 0, 1
	subsystem      = "nqn.2024-01.example:volume"
	volume         = "0b4c2a2e-7a0e-4d0e-8f5a-000000000001"
)

// TestPair boots a storage server and its client for all tests.
func TestPair(t *testing.T) {
	d := testkit.Open(disk.Open(disk.Spec{Path: filepath.Join(t.TempDir(), "disk"), Size: 256 * mib, Survival: disk.SurviveNone}))(t)
	p := Boot(t,
		vm.Spec{Name: "server", Disks: []vm.Disk{d}, Modules: nvmetcp.TargetModules()},
		vm.Spec{Name: "client", Modules: nvmetcp.HostModules(), Programs: []string{testkit.Build(t, "./test/vm/pair/writer"), testkit.Build(t, testkit.Cleat)}})
	p.testHostIsUnreachable(t)
	p.testServerLosesPower(t, d)
}

// testServerLosesPower powers the server off twice while a client writes to a
// volume that cleat csi has attached. The write in flight waits for the
// server's reboot, and all acknowledged writes are on the disk then.
func (p *Pair) testServerLosesPower(t *testing.T, d *disk.Disk) {
	at := netip.AddrPortFrom(p.Node(server).Address, 4420)
	host := access.HostNQN("client")
	served := nvmetcp.Subsystem{NQN: subsystem, Device: "/dev/vda", UUID: volume, Hosts: []string{host}}
	nvmetcp.Serve(p.Node(server).Kernel, at, served)

	n := p.Node(client)
	p.startPlugin(t)
	const device = "/mnt/volume"
	n.Run("cleat", "volume", "attach", "v", device, "--block",
		"--context", "targetType=tcp", "--context", "targetAddr="+at.Addr().String(), "--context", "nqn="+subsystem, "--context", "uuid="+volume,
		"--context", "fastIOFailTmo=0") // the reboot of a guest can take longer than the default
	for round, loss := range []struct {
		at      disk.Event
		survive disk.Survival
	}{
		// A disk with a volatile cache, at a write: all flushes were executed.
		{disk.Write, disk.SurviveNone},
		// At a flush the client's kernel reports success although the connection
		// broke: the disk needs power-loss protection, as docs/nvme.md says.
		{disk.Flush, disk.SurviveAll},
	} {
		d.Survive(loss.survive)
		// In the midst of the blocks, each of which is a write and a flush.
		testkit.Must(t, d.LosePowerAt(disk.Trigger{Event: loss.at, N: 200, Moment: disk.OnArrival}))
		w := testkit.Value(n.Guest.Start(t.Context(), vm.Command{Argv: []string{"writer", "-count", "400", "-seed", strconv.Itoa(round), device}}))(t)
		n.Await("the disk loses power", func() bool {
			failIfExited(t, w)
			select {
			case <-d.Gone():
				return true
			default:
				return false
			}
		})
		testkit.Must(t, p.Node(server).Guest.LosePower())
		lost := time.Now()
		testkit.Must(t, d.PowerOn())
		nvmetcp.Serve(p.Boot(server).Kernel, at, served)
		select {
		case <-w.Done():
		case <-t.Context().Done():
			t.Fatal("the client's write did not end")
		}
		testkit.Must(t, w.Err())
		count := acknowledged(w)
		n.Run("writer", "-check", strconv.Itoa(count), "-seed", strconv.Itoa(round), device)
		fmt.Printf("REPORT: pair: the NVMe/TCP server lost power at a %v; the client wrote on %.0f s later, without an error; all %d acknowledged writes are on the disk\n",
			loss.at, time.Since(lost).Seconds(), count)
	}
	n.Await("the health has the lost flush", func() bool {
		return strings.Contains(n.Run("cleat", "volume", "health", "v"), "FlushUncertain")
	})
	n.Run("cleat", "volume", "detach", "v")
	if left := append(nvmetcp.Disks(n.Kernel), n.Names("/sys/class/nvme")...); len(left) > 0 {
		t.Errorf("after the detach: %v", left)
	}
	t.Logf("%v", d.Stats())
}

// startPlugin serves static volumes in the client, as on a node without
// Kubernetes.
func (p *Pair) startPlugin(t *testing.T) {
	n := p.Node(client)
	testkit.Value(n.Guest.Start(t.Context(), vm.Command{Argv: []string{"cleat", "csi", "--engine", "none", "--node-id", "client"}}))(t)
	n.Await("the plugin serves", func() bool {
		_, err := n.Try("cleat", "volume", "driver")
		return err == nil
	})
}

// failIfExited fails the test if the writer has exited.
func failIfExited(t *testing.T, w *vm.Process) {
	t.Helper()
	select {
	case <-w.Done():
		t.Fatalf("the writer exited before the power loss: %v", w.Err())
	default:
	}
}

// acknowledged counts the durable blocks that the writer has printed, in order.
// A truncated last line does not count.
func acknowledged(w *vm.Process) int {
	lines := strings.SplitAfter(w.Log(), "\n")
	count := 0
	for _, line := range lines {
		if line == strconv.Itoa(count)+"\n" {
			count++
		}
	}
	return count
}
