package smoke

import (
	"errors"
	"os"
	"testing"

	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
)

// Two guests reach each other over a cable.
func TestCable(t *testing.T) {
	dir, err := os.MkdirTemp("", "cable-") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	cable, seats := vm.NewCable(dir), vm.Reserve(t, 2)
	var guests [2]*vm.Guest
	for end := range guests {
		guests[end] = vm.Boot(t, vm.Spec{Name: "end" + string(rune('0'+end)), Devices: cable.End(end), Memory: 512, Seats: seats})
		run(t, guests[end], "sh", "-c", "ip address add 192.168.7.$1/24 dev eth1 && ip link set eth1 up", "sh", string(rune('1'+end)))
	}
	run(t, guests[0], "ping", "-c", "3", "-W", "10", "192.168.7.2")
	if got := run(t, guests[1], "cat", "/sys/class/net/eth1/address"); got != cable.MAC(1) {
		t.Errorf("the address of end 1 is %s, want %s", got, cable.MAC(1))
	}
}

// The kernel of the backports boots with Debian's own QEMU, and finds virtual
// functions.
func TestKernelOfTheBackports(t *testing.T) {
	disk := rawDisk(t, 64*mib)
	g, err := vm.Launch(t.Context(), vm.Spec{Kernel: image.Backports, Modules: []string{"nvme"}, Devices: vm.NVMe(1, disk)}, t.Logf)
	if errors.Is(err, image.ErrNoBackports) {
		t.Logf("REPORT: %v: guests have Debian's own kernel only", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	if got := run(t, g, "cat", "/sys/class/nvme/nvme0/device/sriov_totalvfs"); got != "4" {
		t.Errorf("%s virtual functions, want 4", got)
	}
	eventually(t, g, "131072", "sh", "-c", "cat /sys/block/nvme0n1/size")
}
