//go:build soak

package smoke

import (
	"errors"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
)

// The backports kernel boots with Debian's own QEMU and finds virtual
// functions.
func TestBackportsKernelBoots(t *testing.T) {
	disk := rawDisk(t, 64*mib)
	g, err := vm.Launch(t.Context(), vm.Spec{Kernel: image.Backports, Modules: []string{"nvme"}, Devices: vm.NVMe(1, disk)}, t.Logf)
	if errors.Is(err, image.ErrNoSource) {
		t.Logf("REPORT: %v: only Debian's own kernel is available", err)
		return
	}
	testkit.Must(t, err)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	if got := run(t, g, "cat", "/sys/class/nvme/nvme0/device/sriov_totalvfs"); got != "4" {
		t.Errorf("got %s virtual functions, want 4", got)
	}
	eventually(t, g, "131072", "sh", "-c", "cat /sys/block/nvme0n1/size")
}
