package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

// Reboot simulates a crash and boot of the node: kubelet, runtime and all
// processes of pods are killed, their mounts are removed, /run is emptied, the
// boot id changes; then runtime and kubelet start. The control plane continues.
// The page cache survives, so unsynced writes are not lost.
func (c *Cluster) Reboot(ctx context.Context) error {
	c.kubelet.Kill()
	c.runtime.Kill()
	if err := c.killPods(); err != nil {
		return err
	}
	if err := c.site.removePodCgroups(); err != nil {
		return err
	}
	if err := c.unmountAll(ctx); err != nil {
		return err
	}
	if err := detachDriverLoops(ctx, c.Dir); err != nil {
		return err
	}
	if err := c.clearVolatile(ctx); err != nil {
		return err
	}
	if err := c.newBootID(); err != nil {
		return err
	}
	if err := c.startRuntime(ctx); err != nil {
		return err
	}
	return c.StartKubelet(ctx)
}

// killPods kills the processes of all pods and their shims, and runc, which starts
// them. It repeats until none is left, since a dying process can have forked.
func (c *Cluster) killPods() error {
	deadline := time.Now().Add(waitTimeout)
	for {
		left, err := c.podProcesses()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes of pods %v outlive SIGKILL by %s", left, waitTimeout)
		}
		for _, pid := range left {
			unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond) // no notification exists for the end of processes that are not children
	}
}

func (c *Cluster) podProcesses() ([]int, error) {
	roots, _, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var all []int
	for _, root := range roots {
		found, err := pids(filepath.Join(root, c.site.nodeCgroup(), "kubepods"))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	shims, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return nil, err
	}
	for _, path := range shims {
		// Processes of additional nodes are visible here too.
		if ns, err := os.Readlink(filepath.Join(filepath.Dir(path), "ns/pid")); err != nil || ns != own {
			continue
		}
		text, err := os.ReadFile(path)
		if err == nil && (strings.Contains(string(text), "containerd-shim") || strings.HasPrefix(string(text), "runc\x00")) {
			var pid int
			if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err == nil {
				all = append(all, pid)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// clearVolatile removes what a reboot does not keep. A network plugin that outlives
// its runtime can still mount something.
func (c *Cluster) clearVolatile(ctx context.Context) error {
	deadline := time.Now().Add(waitTimeout)
	for _, dir := range volatile {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			err := os.RemoveAll(path)
			for errors.Is(err, unix.EBUSY) && time.Now().Before(deadline) {
				err = errors.Join(c.unmountAll(ctx), os.RemoveAll(path))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// unmountAll unmounts all mounts created since the start, last first. A program that
// outlives its runtime can use one for a moment.
func (c *Cluster) unmountAll(ctx context.Context) error {
	return retry.For(ctx, waitTimeout, func() (again bool, err error) {
		err = c.tryUnmountAll(ctx)
		return errors.Is(err, unix.EBUSY), err
	})
}

func (c *Cluster) tryUnmountAll(ctx context.Context) error {
	table, err := mount.Table(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range slices.Backward(table) {
		if c.baseline[e.ID] == e.Target {
			continue
		}
		err := unix.Unmount(e.Target, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			if err = detachHolders(ctx, e.Target); err == nil {
				err = unix.Unmount(e.Target, unix.UMOUNT_NOFOLLOW)
			}
		}
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			failed = append(failed, fmt.Errorf("unmount %s: %w", e.Target, err))
		}
	}
	return errors.Join(failed...)
}

// detachHolders detaches loop devices backed by the device node of a block
// volume, by which the kubelet holds the volume.
func detachHolders(ctx context.Context, node string) error {
	file, err := identity(node)
	if err != nil {
		return err
	}
	devices, err := loop.Find(ctx, file)
	if err != nil {
		return err
	}
	for _, d := range devices {
		if err := loop.Detach(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// detachDriverLoops detaches the loop devices of a node's drivers: a boot
// leaves none attached.
func detachDriverLoops(ctx context.Context, nodeDir string) error {
	devices, err := loopsOf(ctx, filepath.Join(nodeDir, "cleat"))
	if err != nil {
		return err
	}
	for _, d := range slices.Backward(devices) {
		if err := loop.Detach(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// newBootID changes the boot id that the kubelet reads.
func (c *Cluster) newBootID() error {
	path := filepath.Join(c.Dir, "boot_id")
	if err := os.WriteFile(path, []byte(uuid.NewString()+"\n"), 0o444); err != nil {
		return err
	}
	const kernels = "/proc/sys/kernel/random/boot_id"
	if err := unix.Mount(path, kernels, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("replace the boot id: %w", err)
	}
	table, err := mount.Table(context.Background())
	if err != nil {
		return err
	}
	if e, ok := mount.Holding(table, kernels); ok {
		c.baseline[e.ID] = e.Target
	}
	return nil
}
