package vm

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/image"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestArguments(t *testing.T) {
	s := Spec{
		Name: "a", Memory: 512, Processors: 2, Disks: []Disk{File{"/tmp/a,b"}, File{"/c"}},
		Devices: []string{"-device", "pcie-root-port,id=rp1"}, KernelArgs: []string{"debug"},
	}
	got := arguments(s.withDefaults(), image.QEMU{Args: []string{"-L", "/data"}}, files{kernel: "/k", initrd: "/i", monitor: "/m,n", serial: "/s", console: "/o"})
	if !slices.Equal(got[:2], []string{"-L", "/data"}) {
		t.Errorf("arguments of the emulator's installation are not first: %v", got)
	}
	for _, want := range [][]string{
		{"-smp", "2"}, {"-m", "512"}, {"-kernel", "/k"}, {"-initrd", "/i"}, {"-qmp", "unix:/m,,n,server=on,wait=off"},
		{"-chardev", "socket,id=console,server=on,wait=off,path=/s,logfile=/o"}, {"-device", "virtio-rng-pci"},
	} {
		if !containsRun(got, want) {
			t.Errorf("arguments %v do not contain %v", got, want)
		}
	}
	disks := []string{
		"-blockdev", "driver=raw,node-name=disk0,discard=unmap,file.driver=file,file.filename=/tmp/a,,b", "-device", "virtio-blk-pci,drive=disk0,id=disk0-device,serial=disk0",
		"-blockdev", "driver=raw,node-name=disk1,discard=unmap,file.driver=file,file.filename=/c", "-device", "virtio-blk-pci,drive=disk1,id=disk1-device,serial=disk1",
		"-device", "pcie-root-port,id=rp1",
	}
	if diff := cmp.Diff(disks, got[max(0, len(got)-len(disks)):]); diff != "" {
		t.Errorf("arguments of disks and devices (-want +got)\n%s", diff)
	}
	line := got[slices.Index(got, "-append")+1]
	if !strings.HasPrefix(line, "console=ttyS0 ") || !strings.Contains(line, " panic=-1 ") || !strings.HasSuffix(line, " debug") {
		t.Errorf("got kernel command line %q", line)
	}
}

func containsRun(all, run []string) bool {
	for i := range all {
		if i+len(run) <= len(all) && slices.Equal(all[i:i+len(run)], run) {
			return true
		}
	}
	return false
}

func TestRecipe(t *testing.T) {
	bare := Spec{}.withDefaults().recipe()
	if slices.Contains(bare.Modules, "virtio_blk") || !slices.Contains(bare.Modules, "virtio_rng") || bare.Kernel != image.Stable {
		t.Errorf("recipe of a guest without disks: %+v", bare)
	}
	full := Spec{Kernel: image.Backports, Disks: []Disk{File{}}, Modules: []string{"xfs"}, Extra: []string{"btrfs"}, Tools: []string{"cp"}}.withDefaults().recipe()
	want := image.Recipe{Kernel: image.Backports, Modules: []string{"virtio_pci", "virtio_rng", "virtio_net", "configfs", "virtio_blk", "xfs"}, Extra: []string{"btrfs"}, Programs: []string{"cp"}}
	if diff := cmp.Diff(want, full); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestRawFile(t *testing.T) {
	path := t.TempDir() + "/disk"
	testkit.Value(RawFile(path, 4096))(t)
	if _, err := RawFile(path, 4096); err != nil {
		t.Errorf("open the same disk again: %v", err)
	}
	if _, err := RawFile(path, 8192); err == nil || !strings.Contains(err.Error(), "has 4096 bytes, not 8192") {
		t.Errorf("open with another size: got %v", err)
	}
}
