package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// bound are directories of the machine in whose place the cluster sees
// directories of its state.
var bound = map[string]string{
	"/var/lib/kubelet":    "kubelet",
	"/var/lib/cni":        "cni-state",
	"/var/lib/cleat":      "cleat",
	"/var/lib/nvidia":     "nvidia", // SNAP's and its plugins' sockets
	"/var/lib/sriov":      "sriov",  // the SR-IOV plugin's control socket
	"/var/log/pods":       "pods",
	"/var/log/containers": "containers",
}

// volatile are directories of the machine that are empty in the cluster at
// first, and again after a reboot.
var volatile = []string{"/run/netns", "/run/containerd", "/run/cleat", "/run/cdi", "/run/k8s.cni.cncf.io", "/dev/vfio"}

// wanted are directories that pods mount from the machine as they are.
var wanted = []string{"/lib/modules"}

const (
	nodeAddress = "10.99.0.1"
	serviceNet  = "10.96.0.0/16"
	podNet      = "10.88.0.0/24"
)

// layOut makes the mounts and the network of the cluster's namespaces.
func (s *site) layOut() error {
	// Private first: what is mounted here must not be seen outside. Then a peer
	// group of its own: mounts of containers must be seen by the kubelet.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared here: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for target, name := range bound {
		source := filepath.Join(s.Dir, name)
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
	return s.network()
}

// network gives the node its address. It may not be in 127/8, and without a
// route to the services' addresses their packets would never be looked at.
func (s *site) network() error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"addr", "add", nodeAddress + "/32", "dev", "lo"},
		{"route", "add", serviceNet, "dev", "lo"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}
