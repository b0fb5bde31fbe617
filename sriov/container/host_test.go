package container

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHostExists(t *testing.T) {
	root := t.TempDir()
	put := func(name string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"dev/vfio/1", "dev/null", "etc/passwd", "dev/x/y",
		"sys/class/misc/vfio", "sys/class/misc/vhost-net", "sys/class/misc/tun", "sys/class/misc/rdma_cm", "sys/class/vfio/2", "sys/class/vfio/noiommu-3",
		"sys/class/uio/uio4", "sys/class/infiniband_verbs/uverbs5", "sys/class/infiniband_mad/umad6", "sys/class/infiniband_mad/issm6",
		"sys/bus/vdpa/devices/vdpa7/vhost-vdpa-7", "sys/class/misc/loop-control"} {
		put(name)
	}
	h := Host{Sysfs: filepath.Join(root, "sys"), Dev: filepath.Join(root, "dev")}
	for path, want := range map[string]bool{
		"/dev/vfio/1": true, "/dev/null": true, "/dev/x/y": true,
		"/dev/vfio/vfio": true, "/dev/vhost-net": true, "/dev/net/tun": true, "/dev/infiniband/rdma_cm": true, "/dev/vfio/2": true, "/dev/vfio/noiommu-3": true,
		"/dev/uio4": true, "/dev/infiniband/uverbs5": true, "/dev/infiniband/umad6": true, "/dev/infiniband/issm6": true, "/dev/vhost-vdpa-7": true,
		"/dev/vfio/3": false, "/dev/uio5": false, "/dev/infiniband/uverbs6": false, "/dev/vhost-vdpa-8": false, "/dev/loop-control": false, "/dev/tun": false,
		"/dev/vfio/*": false, "/dev/vhost-vdpa-*": false, "/dev/../etc/passwd": false, "/etc/passwd": false, "vfio/1": false, "/dev/": false, "/dev": false, "": false,
		"/dev//vfio/1": false, "/dev/infiniband/uverbs": false, "/dev/uio": false,
	} {
		if got := h.Exists(path); got != want {
			t.Errorf("Exists(%q) = %v, want %v", path, got, want)
		}
	}
}

// Where nothing is said, it is the real machine.
func TestHostIsTheMachine(t *testing.T) {
	if (Host{}).Exists("/dev/null") != true || (Host{}).Exists("/dev/vfio/4294967296") {
		t.Error("the zero Host does not look at /dev, want it to have /dev/null and no group 4294967296")
	}
}
