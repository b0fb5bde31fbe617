//go:build ceph

package ceph

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

// A DPU publishes a CephFS volume by the volume_context of CreateVolume alone. On
// a kernel without CephFS it gets as far as the mount.
func TestVolumeOnADPU(t *testing.T) {
	r := newFSRig(t)
	req := create("shared", 16*mib)
	req.VolumeCapabilities[0].AccessMode.Mode = spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	v := testkit.Value(spec.NewControllerClient(r.controller("one").Conn).CreateVolume(testkit.Context(t), req))(t).GetVolume()

	snap := testkit.Value(spdktest.NewNetwork(nil).Start(spdktest.Config{Socket: filepath.Join(r.dir, "snap.sock"), SNAP: true}))(t)
	t.Cleanup(func() { testkit.Must(t, snap.Close()) })
	key := testkit.Value(shared.User("dpu", "mon", "allow r", "mds", "allow rw path=/volumes/"+r.group, "osd", "allow rw tag cephfs data="+fsName))(t)
	plugin := r.dpu(map[string]string{
		"conf/test.conf": "[global]\nmon_host = " + strings.Join(shared.LegacyMonitors(), ",") + "\n",
		"keys/test":      "[client.dpu]\nkey = " + key + "\n",
	}, "--snap-socket", filepath.Join(r.dir, "snap.sock"), "--ceph-dir", filepath.Join(r.dir, "conf"), "--key-dir", filepath.Join(r.dir, "keys"))
	device, err := plugin.Create(testkit.Context(t), client.Create{
		Volume: "pvc-shared", Mode: request.Filesystem, Modes: []storagev1.AccessMode{storagev1.AccessMode_ACCESS_MODE_RWX},
		Contexts: request.Contexts{Volume: v.GetVolumeContext()},
	})
	path := v.GetVolumeContext()["subvolumePath"]
	if kernel := testkit.Value(os.ReadFile("/proc/filesystems"))(t); !strings.Contains(string(kernel), "\tceph\n") {
		want := fmt.Sprintf("directory %s of CephFS %s, cluster test (writable)", path, fsName)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "no such device") {
			t.Errorf("without CephFS in the kernel: %v, want that of %s", err, want)
		}
		return
	}
	testkit.Must(t, err)
	at := filepath.Join(r.dir, "volumes", "pvc-shared")
	if e, mounted, err := mount.At(t.Context(), at); err != nil || !mounted || !strings.HasSuffix(e.Source, ":"+path) {
		t.Errorf("%s is not the volume: %+v, %v", at, e, err)
	}
	testkit.Must(t, plugin.Delete(testkit.Context(t), "pvc-shared", device))
}

// dpu starts cleat dpu with some files.
func (r *rig) dpu(files map[string]string, flags ...string) *client.Client {
	r.Helper()
	for name, text := range files {
		testkit.Must(r, os.MkdirAll(filepath.Join(r.dir, filepath.Dir(name)), 0o700), os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600))
	}
	socket := filepath.Join(r.dir, "plugin", "dpu.sock")
	p := testkit.Value(testkit.Launch(exec.Command(shared.cleat, append([]string{
		"dpu", "--node", "dpu-1", "--plugin-socket", socket, "--volume-dir", filepath.Join(r.dir, "volumes"), "--state-dir", filepath.Join(r.dir, "dpu-state"),
	}, flags...)...)))(r)
	r.Cleanup(func() {
		if err := p.Stop(); err != nil {
			r.Errorf("cleat dpu did not stop cleanly: %v\n%s", err, p.Log)
		}
	})
	var plugin *client.Client
	testkit.Must(r, p.Until(func() (err error) {
		if plugin == nil {
			plugin, err = client.Dial(r.Context(), socket)
		}
		if err == nil {
			_, _, err = plugin.Probe(r.Context())
		}
		return err
	}))
	r.Cleanup(func() { testkit.Must(r, plugin.Close()) })
	return plugin
}
