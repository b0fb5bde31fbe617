//go:build soak

package smoke

import (
	"errors"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
)

// The kernel of the backports boots with Debian's own QEMU, and finds virtual
// functions.
func TestKernelOfTheBackports(t *testing.T) {
	disk := rawDisk(t, 64*mib)
	g, err := vm.Launch(t.Context(), vm.Spec{Kernel: image.Backports, Modules: []string{"nvme"}, Devices: vm.NVMe(1, disk)}, t.Logf)
	if errors.Is(err, image.ErrNoBackports) {
		t.Logf("REPORT: %v: guests have Debian's own kernel only", err)
		return
	}
	testkit.Must(t, err)
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
