package sriov

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
)

// nvme is an NVMe disk of QEMU.
func nvme() kind {
	return kind{
		name: "nvme", total: 4, driver: "nvme",
		spec: func(t *testing.T) vm.Spec {
			d := testkit.Value(vm.RawFile(filepath.Join(t.TempDir(), "disk"), 64<<20))(t)
			return vm.Spec{
				Modules: []string{"nvme"}, Programs: []string{buildVirtualize(t)},
				Devices: vm.NVMe(1, d),
			}
		},
		prepare: func(p physical) {
			// A function works only after it has got queues and interrupts,
			// which the physical function must free first.
			p.autoprobe(false)
			p.Run("virtualize", "-free", "/dev/nvme0")
			p.Write("/sys/class/nvme/nvme0/reset_controller", "1")
		},
		own: physical.controllers,
	}
}

// controllers verifies that each function with queues and interrupts is a
// controller and a path to the disk.
func (p physical) controllers() {
	p.Helper()
	p.create(2)
	var paths []string
	for i, address := range p.virtual() {
		id := strconv.Itoa(i + 1) // 0 is the physical function
		p.Run("virtualize", "-controller", id, "/dev/nvme0")
		p.bind(address, "nvme")
		all := p.Names(filepath.Join(devices, address, "nvme"))
		if len(all) != 1 {
			p.Fatalf("controllers of function %s: got %v, want one", address, all)
		}
		dir := "/sys/class/nvme/" + all[0]
		p.Await("the controller "+all[0]+" is live", func() bool { return p.Read(dir+"/state") == "live" })
		if got := p.Read(dir + "/cntlid"); got != id {
			p.Errorf("controller ID of %s: got %s, want %s", all[0], got, id)
		}
		paths = append(paths, fmt.Sprintf("nvme0c%sn1", id))
	}
	p.Await(fmt.Sprintf("the disk has the paths %v", paths), func() bool {
		all := p.Names("/sys/block")
		return !slices.ContainsFunc(paths, func(name string) bool { return !slices.Contains(all, name) })
	})
	p.Run("dd", "if=/dev/zero", "of=/dev/nvme0n1", "bs=64k", "count=16", "oflag=direct")
}

// buildVirtualize builds the program that assigns the device's resources.
func buildVirtualize(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "virtualize")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", path, "./virtualize")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build virtualize: %v\n%s", err, out)
	}
	return path
}
