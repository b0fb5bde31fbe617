package csi_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
)

// TestKilledWhileUnmountHangs: a node driver is killed while the kernel unmounts
// a volume whose storage does not answer. The next one starts, with the same
// state, socket and port, serves another volume, and refuses this one until the
// kernel has finished.
func TestKilledWhileUnmountHangs(t *testing.T) {
	testkit.EnterNetNS(t) // no other program takes the port
	dir := t.TempDir()
	pool := filepath.Join(dir, "pool")
	driver.MountImage(t, pool, mkfs.Ext4, 1<<30)
	c := makeRig(t, "controller", dir, "--services", "controller")
	c.start()
	n := makeRig(t, "node", dir, "--services", "node", "--metrics-address", "127.0.0.1:9100")
	n.start()
	hung := c.create("hung", mounted("ext4")).onNode(n).attach()
	other := c.create("other", mounted("ext4")).onNode(n).attach()
	c.stop()
	testkit.Must(t, hung.unpublish(), other.unpublish())
	testkit.Must(t, os.WriteFile(filepath.Join(hung.staging, "x"), noise(1, 4096), 0o600)) // not synced
	thaw := frozen(t, pool)
	unstaged := make(chan error, 1)
	go func() { unstaged <- hung.unstage() }()
	// A call that ends soon waits for a disk, too: the kernel has begun with this one
	// when the mount is gone.
	mounts := fmt.Sprintf("/proc/%d/mountinfo", n.process.PID())
	testkit.Eventually(n, "a thread waits in the kernel for the storage", func() bool {
		return !strings.Contains(string(testkit.Value(os.ReadFile(mounts))(t)), " "+hung.staging+" ") && waitsInKernel(n.process.PID())
	})

	testkit.Must(t, n.process.Signal(unix.SIGKILL))
	select {
	case <-n.process.Done():
	case <-time.After(time.Minute):
		thaw()
		t.Fatal("the killed driver does not end: a thread of it waits in the kernel")
	}
	n.kill()
	if err := <-unstaged; err == nil {
		t.Fatal("the unmount did not wait for the storage")
	}
	n.start()
	n.refused(hung.unstage(), codes.Unavailable, "volume "+hung.id, "umount in process", "state D")
	n.refused(hung.stage(), codes.Unavailable, "volume "+hung.id, "umount in process", "state D")
	testkit.Must(t, other.publish(), other.unpublish())

	thaw()
	testkit.Eventually(n, "the volume is unstaged", func() bool { return hung.unstage() == nil })
	hung.attach().detach()
	testkit.Must(t, other.unstage())
}

const fifreeze = 0xc0045877 // FIFREEZE, _IOWR('X', 119, int)

// frozen freezes a file system until thaw is called, or the test ends.
func frozen(t *testing.T, dir string) (thaw func()) {
	t.Helper()
	thaw = func() { testkit.Must(t, freeze.ThawPath(dir)) }
	t.Cleanup(thaw)
	f := testkit.Value(os.Open(dir))(t)
	defer f.Close()
	testkit.Must(t, unix.IoctlSetInt(int(f.Fd()), fifreeze, 0))
	return thaw
}

// waitsInKernel reports whether a thread of a process, or a child of it, is in
// state D.
func waitsInKernel(pid int) bool {
	inState := regexp.MustCompile(fmt.Sprintf(`\) D (%d )?`, pid))
	own, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for i, path := range append(own, all...) {
		stat, _ := os.ReadFile(path)
		found := inState.FindSubmatch(stat)
		if found != nil && (i < len(own) || len(found[1]) > 0) {
			return true
		}
	}
	return false
}
