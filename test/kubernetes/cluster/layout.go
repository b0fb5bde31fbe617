package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/mount"
)

// bindMounts maps directories of the machine to directories of the node's
// state, which are mounted there.
var bindMounts = map[string]string{
	"/var/lib/kubelet":    "kubelet",
	"/var/lib/cni":        "cni-state",
	"/var/lib/cleat":      "cleat",
	"/var/lib/nvidia":     "nvidia", // sockets of SNAP and its plugins
	"/var/lib/sriov":      "sriov",  // control socket of the SR-IOV plugin
	"/etc/sriov-operator": "guids",  // static GUIDs of the SR-IOV daemon
	"/var/log/pods":       "pods",
	"/var/log/containers": "containers",
}

// volatile lists directories that are empty on a new node and after a reboot.
var volatile = []string{"/run/netns", "/run/containerd", "/run/cleat", "/run/cdi", "/run/k8s.cni.cncf.io", "/dev/vfio"}

// hostDirs lists directories that pods mount from the machine.
var hostDirs = []string{"/lib/modules"}

const serviceNet = "10.96.0.0/16"

func (s *site) nodeName() string { return fmt.Sprintf("node-%d", s.Node) }

// nodeDir returns the directory of the node's state; the first node uses the
// cluster's.
func (s *site) nodeDir() string {
	if s.Node == 1 {
		return s.Dir
	}
	return filepath.Join(s.Dir, s.nodeName())
}

// nodeCgroup returns the name of the node's cgroup below each hierarchy's root.
func (s *site) nodeCgroup() string {
	if s.Node == 1 {
		return s.Cgroup
	}
	return filepath.Join(s.Cgroup, s.nodeName())
}

func nodeAddress(node int) string { return fmt.Sprintf("10.99.0.%d", node) }

func podNet(node int) string { return fmt.Sprintf("10.88.%d.0/24", node-1) }

// setUpNamespaces creates the mounts and the network of the node's namespaces.
func (s *site) setUpNamespaces() error {
	// First private, so that mounts here are not visible outside, then shared,
	// so that the kubelet sees mounts of containers.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if s.Node > 1 {
		if err := s.unmountCopies(); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for target, name := range bindMounts {
		source := filepath.Join(s.nodeDir(), name)
		if err := os.MkdirAll(source, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s to %s: %w", source, target, err)
		}
	}
	for _, target := range volatile {
		if err := unix.Mount("tmpfs", target, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", target, err)
		}
	}
	if err := unix.Sethostname([]byte(s.nodeName())); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	return s.network()
}

// unmountCopies unmounts the copies of the first node's and its pods' mounts,
// which would keep their volumes and loop devices in use.
func (s *site) unmountCopies() error {
	table, err := mount.Table(context.Background())
	if err != nil {
		return err
	}
	dirs := append(slices.Collect(maps.Keys(bindMounts)), volatile...)
	for _, e := range slices.Backward(table) {
		if !slices.ContainsFunc(append(dirs, s.Dir), func(dir string) bool { return e.Target == dir || strings.HasPrefix(e.Target, dir+"/") }) {
			continue
		}
		if err := unix.Unmount(e.Target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount the copy of %s: %w", e.Target, err)
		}
	}
	return nil
}

// network assigns the node's address. The kubelet rejects an address in 127/8,
// and kube-proxy's rules see packets to service addresses only if a route
// exists.
func (s *site) network() error {
	if err := run("ip", "link", "set", "lo", "up"); err != nil {
		return err
	}
	if err := run("ip", "addr", "add", nodeAddress(s.Node)+"/32", "dev", "lo"); err != nil {
		return err
	}
	if err := run("ip", "route", "add", serviceNet, "dev", "lo"); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}

func run(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}
