package attach_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/attach"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/volume"
)

// TestUnpublishLeavesStages: a path that is no publish target of the volume is
// not published, whatever lies there and by whatever name it is called.
func TestUnpublishLeavesStages(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s, other, block := n.staging("vol-staged", mkfs.Ext4), n.staging("vol-other", mkfs.Ext4), n.staging("vol-block", "")
	p, q := n.publishOf(s, "target"), n.publishOf(other, "other-target")
	for _, r := range []attach.StageRequest{s, other, block} {
		n.stage(r)
	}
	n.publish(p)
	n.publish(q)
	n.ok("link", os.Symlink(n.dir, n.path("link", false)))
	below := filepath.Join(s.Staging, "below")
	n.ok("mkdir", os.Mkdir(below, 0o700))
	for id, paths := range map[string][]string{
		"vol-staged": {
			s.Staging, n.path("link/staging-vol-staged", false), n.dir + "/link/../" + filepath.Base(n.dir) + "/staging-vol-staged",
			below, other.Staging, q.Target, n.path("link/other-target", false), block.Staging,
		},
		"vol-other":   {s.Staging, p.Target},
		"vol-block":   {block.Staging, s.Staging, p.Target},
		"vol-unknown": {s.Staging, p.Target, block.Staging},
	} {
		for _, path := range paths {
			n.ok("unpublish "+id+" at "+path, n.Unpublish(t.Context(), attach.UnpublishRequest{Volume: volume.ID(id), Target: path}))
			for _, mounted := range []string{s.Staging, p.Target, other.Staging, q.Target} {
				if n.mounts(mounted) != 1 {
					t.Fatalf("unpublish of %s at %s: %d mounts at %s, want 1", id, path, n.mounts(mounted), mounted)
				}
			}
		}
	}
	if _, err := os.Stat(below); err != nil {
		t.Errorf("a directory in the volume was removed: %v", err)
	}
	n.loopCount(3)
	if c, err := n.Health(t.Context(), s.Volume); err != nil || len(c) != 0 {
		t.Errorf("health: %v, %v", c, err)
	}
	n.unpublish(p)
	n.unpublish(q)
	for _, r := range []attach.StageRequest{s, other, block} {
		n.unstage(r)
	}
}

// TestUnpublishByAnotherName: a target that is reached through a symbolic link
// is the target that is on record.
func TestUnpublishByAnotherName(t *testing.T) {
	t.Parallel()
	for _, fs := range []mkfs.Type{mkfs.Ext4, ""} {
		n := newNode(t)
		s := n.staging("vol-alias", fs)
		p := n.publishOf(s, "target")
		n.stage(s)
		n.publish(p)
		n.ok("link", os.Symlink(n.dir, n.path("link", false)))
		n.ok("unpublish", n.Unpublish(t.Context(), attach.UnpublishRequest{Volume: s.Volume, Target: n.path("link/target", false)}))
		n.gone(p.Target)
		if state, err := n.PublishState(t.Context(), p.Target); err != nil || state != "" {
			t.Errorf("a record of state %q is left, %v", state, err)
		}
		n.unstage(s)
	}
}

// TestUnpublishAfterRecordLoss: without records the last mount of a file system
// is its stage, and what is mounted beside it is published.
func TestUnpublishAfterRecordLoss(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := n.staging("vol-lost", mkfs.XFS)
	p := n.publishOf(s, "target")
	n.stage(s)
	n.publish(p)
	n.ok("close", n.Close())
	n.ok("remove", os.Remove(n.config.Store))
	n.start()
	for range 2 {
		n.unpublish(p)
		n.ok("unpublish the stage", n.Unpublish(t.Context(), attach.UnpublishRequest{Volume: s.Volume, Target: s.Staging}))
		if n.mounts(s.Staging) != 1 {
			t.Fatal("the stage was unmounted")
		}
	}
	n.unstage(s)
	n.loopCount(0)
}
