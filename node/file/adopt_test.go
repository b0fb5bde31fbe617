package file

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
)

// A device can be in the midst of its detach since it was listed: a process that was
// killed releases its locks before it. The kernel opens no such device, as none
// without a driver.
func TestAdoptOfADeviceThatIsDetached(t *testing.T) {
	path := filepath.Join(t.TempDir(), "loop0")
	testkit.Must(t, unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(240, 1<<19)))) // of no driver
	_, _, adopted, err := adopt(t.Context(), loop.Device{Path: path}, node.Use{})
	if adopted || err != nil {
		t.Errorf("adopted %t, %v; want neither", adopted, err)
	}
}
