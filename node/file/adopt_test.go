package file

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
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

// A file that cannot be opened for a reason that says nothing of it can be the
// device's.
func TestIsBackingNotKnown(t *testing.T) {
	for _, reason := range []error{unix.EACCES, unix.ENOMEM, unix.ESTALE, unix.EIO, unix.EMFILE, errNoPool, errs.Busy} {
		if is, err := isBacking(loop.Device{Path: "/dev/loop0"}, func() (*os.File, error) { return nil, reason }); err == nil {
			t.Errorf("%v: %t, want an error", reason, is)
		}
	}
	if is, err := isBacking(loop.Device{}, func() (*os.File, error) { return nil, unix.ENOENT }); is || err != nil {
		t.Errorf("no such file: %t, %v", is, err)
	}
}
