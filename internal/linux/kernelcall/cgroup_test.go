package kernelcall_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
)

// host runs as the first process of a PID namespace, without the mounts of other
// tests, which its copy would keep busy: a driver ($2) in the cgroup of a pod ($1)
// with a cgroup namespace.
const host = `while read -r _ _ _ _ target _; do
	case "$target" in "${TMPDIR:-/tmp}"/*) umount -l "$(printf %b "$target")" 2>/dev/null;; esac
done </proc/self/mountinfo
sh -c 'echo 0 >"$0/cgroup.procs" && exec unshare --cgroup "$1"' "$0" "$1"
exit $?`

// A pod has a cgroup namespace of its own, and systemd mounts cgroup2 with
// nsdelegate: processes cannot be moved across the border of such a namespace.
func TestCallLeavesItsCgroupNamespace(t *testing.T) {
	delegate(t)
	root := cgroup2(t).Target
	pod := testkit.Value(os.MkdirTemp(root, "cleat-test-pod"))(t)
	t.Cleanup(func() { testkit.EventuallyNil(t, "the end of the pod", func() error { return unix.Rmdir(pod) }) })
	dir := t.TempDir()
	w := work{DriverLock: filepath.Join(dir, "driver"), Object: filepath.Join(dir, "object"), FIFO: filepath.Join(dir, "fifo")}
	testkit.Must(t, os.WriteFile(w.DriverLock, nil, 0o600), os.WriteFile(w.Object, nil, 0o600), unix.Mkfifo(w.FIFO, 0o600))
	self := testkit.Value(os.Executable())(t)
	machine := w.command(t, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", host, pod, self)
	testkit.Must(t, machine.Start())
	t.Cleanup(func() {
		testkit.Must(t, machine.Process.Kill())
		_ = machine.Wait() // killed
	})
	testkit.EventuallyNil(t, "only the driver is in the pod's cgroup", func() error {
		pid, err := running(w.Object)
		if err != nil {
			return err
		}
		call := testkit.Value(os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)))(t)
		inPod := testkit.Value(os.ReadFile(filepath.Join(pod, "cgroup.procs")))(t)
		if !slices.Contains(strings.Split(string(call), "\n"), "0::/") || strings.Count(string(inPod), "\n") != 1 {
			return fmt.Errorf("the call is in the cgroups %q, processes %q in that of the pod", call, inPod)
		}
		return nil
	})
}

func cgroup2(t *testing.T) mount.Entry {
	t.Helper()
	table := testkit.Value(mount.Table(context.Background()))(t)
	i := slices.IndexFunc(table, func(e mount.Entry) bool { return e.FSType == "cgroup2" })
	if i < 0 {
		t.Fatal("cgroup2 is not mounted")
	}
	return table[i]
}

// delegate sets nsdelegate until the test ends. The latest mount of cgroup2 sets
// the options of all.
func delegate(t *testing.T) {
	t.Helper()
	before := slices.DeleteFunc(cgroup2(t).SuperOptions, func(option string) bool { return option == "rw" })
	dir := t.TempDir()
	mountWith := func(options ...string) {
		testkit.Must(t, unix.Mount("cgroup2", dir, "cgroup2", 0, strings.Join(options, ",")), unix.Unmount(dir, 0))
	}
	mountWith(append(slices.Clip(before), "nsdelegate")...)
	t.Cleanup(func() { mountWith(before...) })
}
