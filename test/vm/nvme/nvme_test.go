// Package nvme tests node/nvme in guests, with the kernel's own initiator and
// target.
package nvme

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/nvmetcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNVMe tests each kernel: 6.1 ignores DH-HMAC-CHAP, and 6.12 removes a
// controller that the target refuses.
func TestNVMe(t *testing.T) {
	for _, source := range []image.Source{image.Stable, image.Backports} {
		t.Run(string(source), func(t *testing.T) {
			t.Parallel()
			g := vm.Boot(t, vm.Spec{
				Name: "nvme-" + string(source), Kernel: source,
				Modules: append(append(nvmetcp.TargetModules(), nvmetcp.HostModules()...), "ext4", "xfs", "btrfs"), Tools: image.Filesystems(),
			})
			vm.GoTest(t, g, "./node/nvme")
		})
	}
}
