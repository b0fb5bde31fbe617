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

	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
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
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	testkit.Must(t, unix.Mkfifo(fifo, 0o600))
	w := work{FIFO: fifo}
	w.inPod(t, func() error { return testkit.Err(running(w.Object)) })
}

// A check of a file system is not ended with the pod.
func TestCheckLeavesItsCgroupNamespace(t *testing.T) {
	dir := t.TempDir()
	begun, fifo, image := filepath.Join(dir, "begun"), filepath.Join(dir, "fifo"), mkfstest.File(t, dir, "image", fsSize)
	testkit.Must(t, unix.Mkfifo(fifo, 0o600))
	mkfstest.Make(t, image, mkfs.Ext4)
	testkit.Must(t, os.Truncate(image, 2*fsSize))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "e2fsck"), fmt.Appendf(nil, "#!/bin/sh\n>%s; exec cat %s", begun, fifo), 0o700))
	w := work{Image: image, Tools: dir}
	w.inPod(t, func() error { return testkit.Err(os.Stat(begun)) })
}

// inPod does the work in a pod. Once begun is nil, it must leave the pod's cgroup.
func (w *work) inPod(t *testing.T, begun func() error) {
	t.Helper()
	delegate(t)
	pod := testkit.Value(os.MkdirTemp(cgroup2(t).Target, "cleat-test-pod"))(t)
	t.Cleanup(func() { testkit.EventuallyNil(t, "the end of the pod", func() error { return unix.Rmdir(pod) }) })
	w.createLocks(t)
	machine := w.command(t, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", host, pod, testkit.Value(os.Executable())(t))
	testkit.Must(t, machine.Start())
	t.Cleanup(func() {
		testkit.Must(t, machine.Process.Kill())
		_ = machine.Wait() // killed
	})
	testkit.EventuallyNil(t, "the driver is alone in the pod's cgroup", func() error {
		inPod := testkit.Value(os.ReadFile(filepath.Join(pod, "cgroup.procs")))(t)
		if err := begun(); err != nil || strings.Count(string(inPod), "\n") != 1 {
			return fmt.Errorf("the pod has the processes %q, begun: %v", inPod, err)
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
