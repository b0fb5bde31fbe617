package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/test/testkit"
)

// hungUnmount: while the kernel waits for the storage of one volume in an
// unmount, the container of the node driver is killed, and then its pod deleted.
// Both times the next one serves, as the call is in a process outside of the
// pod; the volume waits for its storage.
func (w *workload) hungUnmount() {
	driver := driverProcesses()[1]
	first := testkit.Value(driver.pid())(w)
	w.claim("hung", claim{class: "single-ext4", size: "32Mi"})
	w.run("hung", pod{mounts: map[string]string{"/data": "hung"}})
	w.exec("hung", "echo unsynced >/data/a")
	thaw := func() { testkit.Must(w, freeze.ThawPath(poolOf(driver.name))) }
	w.Cleanup(thaw)
	testkit.Must(w, freezeFileSystem(poolOf(driver.name)))
	w.kubectl("delete", "pod", "hung", "--wait=false")
	w.until("an unmount that waits in the kernel", func(context.Context) error { return oneUnmountWaits() })

	began := time.Now()
	testkit.Must(w, unix.Kill(first, unix.SIGKILL))
	w.until("driver of the next container", func(ctx context.Context) error { return driver.ready(ctx, first) })
	w.Logf("after SIGKILL the next container is ready in %.1f s", time.Since(began).Seconds())
	testkit.Must(w, oneUnmountWaits())

	second := testkit.Value(driver.pid())(w)
	began = time.Now()
	selector := "app.kubernetes.io/instance=single,app.kubernetes.io/component=csi-node"
	w.inSystem("delete", "pod", "--selector="+selector, "--wait", "--timeout=150s")
	w.until("driver of the next pod", func(ctx context.Context) error { return driver.ready(ctx, second) })
	w.Logf("the next pod is ready %.1f s after the deletion", time.Since(began).Seconds())
	testkit.Must(w, oneUnmountWaits())

	thaw()
	w.until("the end of the unmount", func(context.Context) error {
		if oneUnmountWaits() == nil {
			return errors.New("it still waits")
		}
		return nil
	})
	w.allReady(nil)
	w.advances()
}

func freezeFileSystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	const fifreeze = 0xc0045877 // FIFREEZE, _IOWR('X', 119, int)
	return unix.IoctlSetInt(int(f.Fd()), fifreeze, 0)
}

// oneUnmountWaits returns nil if one process of a driver's call umount2(2) is in
// state D.
func oneUnmountWaits() error {
	pids, err := processes(func(args []string) bool {
		return len(args) > 1 && args[0] == "cleat-kernel-call" && args[1] == "--operation=umount"
	})
	if err != nil {
		return err
	}
	waiting := slices.DeleteFunc(pids, func(pid int) bool {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		inCall, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid)) // it also waits while it leaves the pod's cgroup
		return !bytes.Contains(stat, []byte(") D ")) || !bytes.HasPrefix(inCall, fmt.Appendf(nil, "%d ", unix.SYS_UMOUNT2))
	})
	if len(waiting) != 1 {
		return fmt.Errorf("processes %v wait in an unmount, want one", waiting)
	}
	return nil
}
