package power

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/disk"
	"github.com/cleatproject/cleat/test/vm/image"
)

// shell runs a script in a guest with "sh -e".
func shell(t *testing.T, g *vm.Guest, script string) string {
	t.Helper()
	out, err := g.Run(t.Context(), "sh", "-ec", script)
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return out
}

// drives creates n disks that lose all unflushed data at a power loss.
func drives(t *testing.T, n int) []*disk.Disk {
	t.Helper()
	var all []*disk.Disk
	for range n {
		d := testkit.Value(disk.Open(disk.Spec{Path: filepath.Join(t.TempDir(), "drive"), Size: 400 << 20, Survival: disk.SurviveNone}))(t) // mkfs.xfs needs 300 MiB
		t.Cleanup(func() {
			t.Logf("disk: %v", d.Stats())
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		all = append(all, d)
	}
	return all
}

// The power loss test is effective: a guest keeps data flushed in any way, and
// loses an acknowledged fsync if its file system was mounted without barriers.
func TestDriveLosesUnflushedWrites(t *testing.T) {
	t.Parallel()
	all := drives(t, 4)
	raw := all[3]
	spec := vm.Spec{
		Name: "drive", Modules: []string{"xfs", "ext4", "loop"}, Tools: image.Filesystems(),
		Disks: []vm.Disk{all[0], all[1], all[2], raw},
	}
	g := vm.Boot(t, spec)
	const queues = `cd /sys/block/vda/queue; for f in write_cache fua logical_block_size physical_block_size; do echo $f=$(cat $f); done`
	if diff := cmp.Diff("write_cache=write back\nfua=0\nlogical_block_size=512\nphysical_block_size=4096\n", shell(t, g, queues)); diff != "" {
		t.Errorf("the disk's queue attributes in the guest (-want +got):\n%s", diff)
	}
	const mounts = `mkdir -p /a /b /c; mount -t xfs /dev/vda /a; mount -t ext4 /dev/vdb /b; mount -t ext4 -o barrier=0 /dev/vdc /c;`
	const word = `word() { yes $1 | dd bs=64k count=1 iflag=fullblock 2>/dev/null; };`
	loop := func() { // not in a script: busybox's shell would run its own, more limited losetup
		t.Helper()
		testkit.Value(g.Run(t.Context(), "losetup", "--direct-io=on", "--sector-size=4096", "/dev/loop0", "/a/image"))(t)
	}
	shell(t, g, `mkfs.xfs -q /dev/vda; mkfs.ext4 -q /dev/vdb; mkfs.ext4 -q /dev/vdc;`+mounts+`dd if=/dev/zero of=/a/image bs=1M count=16 conv=fsync`)
	loop()
	shell(t, g, word+`
		word kept | dd of=/dev/loop0 bs=64k conv=fsync
		for dir in a b c; do word kept | dd of=/$dir/file bs=64k conv=fsync; done
		word old | dd of=/dev/vdd bs=64k conv=fsync
		word new | dd of=/dev/vdd bs=64k oflag=direct`)

	restore := raw.Fail(disk.Fault{Reads: true, Writes: true})
	var exit *vm.ExitError
	for _, script := range []string{`dd if=/dev/vdd of=/dev/null bs=64k count=1 iflag=direct`, `dd if=/dev/zero of=/dev/vdd bs=64k count=1 oflag=direct`} {
		if _, err := g.Run(t.Context(), "sh", "-ec", script); !errors.As(err, &exit) || !strings.Contains(exit.Output, "I/O error") && !strings.Contains(exit.Output, "Input/output error") {
			t.Errorf("%s on a disk with I/O errors: got %v", script, err)
		}
	}
	restore()
	if got := shell(t, g, `dd if=/dev/vdd bs=64k count=1 iflag=direct | head -n 1`); got != "new\n" {
		t.Errorf("before the power loss the disk reads %q", got)
	}
	testkit.Must(t, g.LosePower())
	if _, err := g.Run(t.Context(), "true"); err == nil || !strings.Contains(err.Error(), "simulated power loss") {
		t.Errorf("guest after a power loss: got %v", err)
	}

	for _, d := range all {
		testkit.Must(t, d.PowerOn())
	}
	g = vm.Boot(t, spec)
	shell(t, g, mounts)
	loop()
	got := shell(t, g, word+`
		word kept >/run/kept; word old >/run/old
		see() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo $name kept; else echo $name lost; fi; }
		see loop cmp -n 65536 /run/kept /dev/loop0
		see xfs cmp /run/kept /a/file
		see ext4 cmp /run/kept /b/file
		see no-barrier cmp /run/kept /c/file
		see raw cmp -n 65536 /run/old /dev/vdd`)
	if diff := cmp.Diff("loop kept\nxfs kept\next4 kept\nno-barrier lost\nraw kept\n", got); diff != "" {
		t.Errorf("after the power loss (-want +got):\n%s", diff)
	}
}
