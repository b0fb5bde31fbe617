package csi_test

import (
	"os"
	"path/filepath"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// TestOddPaths: the directories of an orchestrator can be symbolic links, or
// have names that the mount table escapes.
func TestOddPaths(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range soak.Pick(3, []struct{ name, home string }{
		{"linked", "linked"}, {"escaped", "back\\slash\\040"}, {"lines", "two\nlines\t# and  spaces"},
		{"spaces", "with  two spaces"}, {"unicode", "Bände für 日本"},
	}) {
		name, home := c.name, c.home
		r.sub(t, name, func(r *rig) {
			d := r.create(name, withMode(mounted("ext4"), multiWriter))
			raw := r.create(name+"-raw", block())
			above := filepath.Join(r.dir, home)
			testkit.Must(r, os.MkdirAll(filepath.Join(above+"-real", "staging"), 0o750))
			if name == "linked" {
				testkit.Must(r, os.Symlink(above+"-real", above))
			} else {
				testkit.Must(r, os.Rename(above+"-real", above))
			}
			d.staging, d.target = filepath.Join(above, "staging"), filepath.Join(above, "target")
			raw.staging, raw.target = d.staging, filepath.Join(above, "raw")
			d.attach().attach()
			raw.attach().attach()
			d.writeFile("x", 1, 4096)
			raw.writeBlock(0, 2, 4096)
			d.hasStats(true)
			d.healthy()
			r.restart()
			d.rig, raw.rig = r, r
			d.attach()
			raw.attach()
			d.healthy()
			raw.hasStats(false)
			_, err := r.controller().CreateSnapshot(r.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: d.id})
			r.refused(err, codes.FailedPrecondition, "mounted on") // this pool cannot snapshot a volume in use
			d.drop()
			raw.drop()
		})
	}
}

// TestNeverFormatted: a volume that has lost its file system is an error, and
// is never formatted again.
func TestNeverFormatted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	zeros, noise := make([]byte, 128<<10), noise(7, 128<<10)
	for _, c := range soak.Pick(1, []struct {
		fsType, what string
		head         []byte
	}{
		{"ext4", "zeros", zeros}, {"xfs", "noise", noise}, {"btrfs", "zeros", zeros},
		{"ext4", "noise", noise}, {"xfs", "zeros", zeros}, {"btrfs", "noise", noise},
	}) {
		d := r.create("wiped", mounted(c.fsType))
		asBlock := *d
		asBlock.capability = block()
		asBlock.attach()
		testkit.Must(r, writeAt(d.target, 0, 0, c.head))
		asBlock.writeBlock(d.size-4096, 8, 4096)
		asBlock.detach()
		file := filepath.Join(r.pool, "volumes", d.id)
		before := sumOf(t, file)
		r.refused(d.stage(), codes.FailedPrecondition)
		if sumOf(t, file) != before {
			t.Errorf("%s with %s in front was changed by a stage that failed", c.fsType, c.what)
		}
		testkit.Must(r, d.remove())
	}
}

// TestFrozenByOthers: a foreign freeze is reported and not thawed.
func TestFrozenByOthers(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, "btrfs")
	d := r.create("iced", mounted("ext4")).attach()
	dir, err := os.Open(d.staging)
	testkit.Must(r, err)
	defer dir.Close()
	const freezeOn = 0xc0045877 // FIFREEZE
	testkit.Must(r, unix.IoctlSetInt(int(dir.Fd()), freezeOn, 0))
	t.Cleanup(func() { _ = freeze.ThawPath(d.staging) })
	_, err = r.controller().CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: d.id})
	r.refused(err, codes.FailedPrecondition, "thaw it first", d.staging)
	if err := unix.IoctlSetInt(int(dir.Fd()), freezeOn, 0); err != unix.EBUSY {
		t.Errorf("a foreign freeze was thawed: %v", err)
	}
	testkit.Must(r, freeze.ThawPath(d.staging))
	snap := d.snapshot("s")
	testkit.Must(r, dir.Close())
	d.drop()
	r.dropSnapshots(snap.GetSnapshotId())
}
