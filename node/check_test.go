package node_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func (n *testNode) run(argv ...string) {
	n.t.Helper()
	if out, err := exec.CommandContext(n.t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
		n.t.Errorf("%v: %v\n%s", argv, err, out)
	}
}

// resize2fs fails for this ext4, which has few reserved group descriptors. A
// second stage lost the file before.
func TestStageAfterAFailedGrowth(t *testing.T) {
	n := newNode(t, withGrower)
	s := n.staging("v", mkfs.Ext4)
	testkit.Must(t, os.Truncate(n.file("v"), 0), os.Truncate(n.file("v"), 64<<20))
	n.run("mkfs.ext4", "-q", "-b", "4096", n.file("v"))
	n.stage(s)
	n.write(filepath.Join(s.Staging, "f"), "text")
	n.unstage(s)
	before := n.probe("v").Size
	const grown = 100 << 30
	testkit.Must(t, os.Truncate(n.file("v"), grown))
	for range 2 {
		n.stage(s)
		n.reads(filepath.Join(s.Staging, "f"), "text")
		if mkfstest.HasSysResource(t) {
			n.sick("v")
			n.unstage(s)
			return
		}
		n.sick("v", "DEGRADED FileSystemNotGrown")
		_, err := n.Expand(t.Context(), node.ExpandRequest{Volume: "v", Path: s.Staging, Size: volume.SizeRange{Required: grown}})
		n.refused(err, errs.Precondition, "group descriptors", "CAP_SYS_RESOURCE")
		n.unstage(s)
		if got := n.probe("v").Size; got != before {
			t.Errorf("the file system has %d bytes, want %d", got, before)
		}
	}
}

// The kernel has recorded errors: Kubernetes' own mounter runs fsck -a then.
func TestStageChecksAMarkedExt4(t *testing.T) {
	n := newNode(t)
	s := n.staging("v", mkfs.Ext4)
	n.stage(s)
	n.write(filepath.Join(s.Staging, "f"), "text")
	n.unstage(s)
	marked := func() bool {
		head := testkit.Value(os.Open(n.file("v")))(t)
		defer head.Close()
		return testkit.Value(mkfs.NeedsCheck(head))(t)
	}
	n.run("debugfs", "-w", "-R", "set_super_value state 3", n.file("v"))
	read := s
	read.Capability.MountFlags = []string{"ro"}
	n.stage(read)
	n.unstage(read)
	if !marked() {
		t.Error("a read-only stage has changed the file system")
	}
	n.stage(s)
	n.reads(filepath.Join(s.Staging, "f"), "text")
	n.unstage(s)
	if marked() {
		t.Error("the file system was staged for writing without a check")
	}
	n.run("debugfs", "-w", "-R", "clri <2>", n.file("v"))
	n.run("debugfs", "-w", "-R", "set_super_value state 3", n.file("v"))
	n.refused(n.Stage(t.Context(), s), errs.Precondition, "manually", "copy")
	n.nothingStaged(s)
}

// A volume without a superblock was not necessarily created as block.
func TestZeroedSuperblocksAreDamage(t *testing.T) {
	for _, fs := range mkfs.Types() {
		n := newNode(t)
		s := n.staging("v", fs)
		large := s
		large.Volume, large.Locator = "large", n.volume("large", "")
		large.Staging = n.path("staging-large", true)
		testkit.Must(t, os.Truncate(n.file("large"), 600<<20), mkfs.Make(t.Context(), mkfs.Request{Path: n.file("large"), Type: fs}))
		format := large
		format.Format = true
		for _, id := range []volume.ID{"v", "large"} {
			f := testkit.Value(os.OpenFile(n.file(id), os.O_RDWR, 0))(t)
			testkit.Value(f.WriteAt(make([]byte, 128<<10), 0))(t)
			testkit.Must(t, f.Close())
		}
		n.refused(n.Stage(t.Context(), large), errs.Precondition, "damaged", "a copy of it is at byte", string(fs))
		n.refused(n.Stage(t.Context(), format), errs.Precondition, "damaged", "a copy of it is at byte", string(fs))
		if fs == mkfs.Ext4 { // too small for a copy
			n.refused(n.Stage(t.Context(), s), errs.Precondition, "created as block", "damaged")
			testkit.Must(t, n.Close())
			n.config.FSType = func(context.Context, volume.ID) (string, error) { return string(fs), nil }
			n.start()
			err := n.Stage(t.Context(), s)
			n.refused(err, errs.Precondition, "damaged", "created", "copy the volume")
			if strings.Contains(err.Error(), "as block") {
				t.Errorf("%v contradicts the record", err)
			}
		}
	}
}
