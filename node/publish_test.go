package node_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
)

// The CSI specification's table for a second NodePublishVolume on one node.
func TestSecondPublish(t *testing.T) {
	for mode, elsewhere := range map[volume.AccessMode]errs.Kind{
		volume.SingleNodeWriter: errs.Precondition, volume.SingleNodeSingleWriter: errs.Precondition,
		volume.SingleNodeReaderOnly: errs.Precondition, volume.SingleNodeMultiWriter: "",
	} {
		t.Run(string(mode), func(t *testing.T) {
			n := newNode(t)
			s := n.staging("vol-second", mkfs.Ext4)
			s.Capability.Mode = mode
			n.stage(s)
			first := n.publishOf(s, "t1")
			n.publish(first)
			n.publish(first) // T1=T2, P1=P2

			other := first // T1=T2, P1!=P2
			other.ReadOnly = true
			other.Capability.MountFlags = []string{"noexec"}
			n.refused(n.Publish(t.Context(), other), errs.Exists, first.Target)

			for _, p := range []node.PublishRequest{n.publishOf(s, "t2"), {Volume: s.Volume, Staging: s.Staging, Target: n.path("t3", false), Capability: s.Capability, ReadOnly: true}} {
				err := n.Publish(t.Context(), p)
				if elsewhere == "" {
					n.ok("publish elsewhere", err)
					n.unpublish(p)
					continue
				}
				n.refused(err, elsewhere, first.Target)
				n.gone(p.Target)
			}
			if got := n.mounts(first.Target); got != 1 {
				t.Errorf("%d mounts at the first target, want 1", got)
			}
			n.unpublish(first)
			n.publish(n.publishOf(s, "t2")) // not a second one: the first was unpublished
			n.unpublish(n.publishOf(s, "t2"))
			n.unstage(s)
		})
	}
}

func TestPublishNeedsItsStage(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-unstaged", mkfs.Ext4)
	p := n.publishOf(s, "target")
	n.refused(n.Publish(t.Context(), p), errs.Precondition, "not staged")
	n.gone(p.Target)
	n.stage(s)
	elsewhere := p
	elsewhere.Staging = n.path("elsewhere", true)
	n.refused(n.Publish(t.Context(), elsewhere), errs.Precondition, s.Staging)
	block := p
	block.Capability = volume.Capability{Block: true, Mode: volume.SingleNodeWriter}
	n.refused(n.Publish(t.Context(), block), errs.Precondition, "block device")
	orphan := p
	orphan.Target = n.path("no/such/parent", false)
	n.refused(n.Publish(t.Context(), orphan), errs.Precondition, "does not exist")
	other := n.staging("vol-other", mkfs.Ext4)
	n.up(other, p)
	n.refused(n.Publish(t.Context(), node.PublishRequest{Volume: other.Volume, Staging: other.Staging, Target: p.Target, Capability: other.Capability}), errs.Precondition, "vol-unstaged")
	n.ok("unpublish by another volume", n.Unpublish(t.Context(), node.UnpublishRequest{Volume: other.Volume, Target: p.Target}))
	if n.mounts(p.Target) != 1 {
		t.Error("a volume was unpublished by a request for another volume")
	}
	n.refused(n.Unstage(t.Context(), node.UnstageRequest{Volume: s.Volume, Staging: s.Staging}), errs.Precondition, p.Target)
	n.down(s, p)
	n.unstage(other)
}

// Only an empty target, as left by an interrupted call, is removed.
func TestUnpublishAndUnstageWithoutRecord(t *testing.T) {
	n := newNode(t)
	empty, full := n.path("target", true), n.path("full", true)
	n.write(filepath.Join(full, "file"), "foreign")
	for _, path := range []string{empty, full, n.path("missing", false), "/var/lib", n.pool} {
		n.ok("unpublish", n.Unpublish(t.Context(), node.UnpublishRequest{Volume: "vol-unknown", Target: path}))
	}
	n.gone(empty)
	n.reads(filepath.Join(full, "file"), "foreign")
	n.ok("unstage", n.Unstage(t.Context(), node.UnstageRequest{Volume: "vol-unknown", Staging: full}))
	s := n.staging("vol-known", mkfs.Ext4)
	n.stage(s)
	n.ok("unpublish", n.Unpublish(t.Context(), node.UnpublishRequest{Volume: s.Volume, Target: full}))
	n.ok("unstage elsewhere", n.Unstage(t.Context(), node.UnstageRequest{Volume: s.Volume, Staging: full}))
	if n.mounts(s.Staging) != 1 {
		t.Error("unstage of another path unmounted the volume")
	}
	n.unstage(s)
}

func TestReadOnly(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-ro", mkfs.XFS)
	s.Capability.Mode = volume.SingleNodeMultiWriter
	n.stage(s)
	reader := n.publishOf(s, "reader")
	reader.ReadOnly = true
	reader.Capability.MountFlags = []string{"nosuid"}
	writer := n.publishOf(s, "writer")
	n.publish(reader)
	n.publish(writer)
	n.write(filepath.Join(writer.Target, "a"), "x")
	n.readOnlyAt(filepath.Join(reader.Target, "b"))
	n.reads(filepath.Join(reader.Target, "a"), "x")
	n.down(s, reader, writer)

	s.Capability.Mode = volume.SingleNodeReaderOnly
	n.stage(s)
	n.stage(s)
	n.readOnlyAt(filepath.Join(s.Staging, "b"))
	p := n.publishOf(s, "reader")
	n.publish(p)
	n.readOnlyAt(filepath.Join(p.Target, "b"))
	wrong := n.publishOf(s, "writer")
	wrong.Capability.Mode = volume.SingleNodeWriter
	n.refused(n.Publish(t.Context(), wrong), errs.Precondition, "staged read-only")
	if c, err := n.Health(t.Context(), s.Volume); err != nil || len(c) != 0 {
		t.Errorf("health of a volume mounted read-only: %v, %v", c, err)
	}
	n.down(s, p)
}

func (n *testNode) readOnlyAt(path string) {
	n.t.Helper()
	if err := os.WriteFile(path, nil, 0o600); !errors.Is(err, unix.EROFS) {
		n.t.Errorf("write to %s: %v, want EROFS", path, err)
	}
}

func TestReadOnlyBlock(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-roblock", "")
	s.Capability.Mode = volume.SingleNodeMultiWriter
	n.stage(s)
	reader, second, writer := n.publishOf(s, "r1"), n.publishOf(s, "r2"), n.publishOf(s, "w")
	reader.ReadOnly, second.ReadOnly = true, true
	n.publish(reader)
	n.publish(second)
	n.writable(reader.Target, false)
	n.stage(s) // repeated, as by a restarted kubelet
	n.writable(reader.Target, false)
	n.refused(n.Publish(t.Context(), writer), errs.Precondition, "the same for all")
	n.unpublish(reader)
	n.writable(second.Target, false)
	n.unpublish(second)
	n.publish(writer)
	n.writable(writer.Target, true)
	n.refused(n.Publish(t.Context(), reader), errs.Precondition, "the same for all")
	n.writable(writer.Target, true)
	n.down(s, writer)

	s.Capability.Mode = volume.SingleNodeReaderOnly
	n.stage(s)
	p := n.publishOf(s, "r1")
	n.publish(p)
	n.writable(p.Target, false)
	n.down(s, p)
}

func (n *testNode) writable(device string, want bool) {
	n.t.Helper()
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt([]byte("w"), 4096)
		if err == nil {
			err = f.Sync()
		}
		f.Close()
	}
	refused := errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS)
	if want && err != nil || !want && !refused {
		n.t.Errorf("write to %s: %v, want it allowed: %t", device, err, want)
	}
}

func TestMountFlags(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-flags", mkfs.Ext4)
	s.Capability.MountFlags = []string{"noatime,nodev", "nosuid", "commit=17"}
	n.stage(s)
	p := n.publishOf(s, "target")
	n.publish(p)
	for _, path := range []string{s.Staging, p.Target} {
		e, _, err := mount.At(t.Context(), path)
		n.ok("mount table", err)
		for _, want := range []string{"noatime", "nodev", "nosuid", "commit=17"} {
			if !slices.Contains(slices.Concat(e.Options, e.SuperOptions), want) {
				t.Errorf("%s has options %v %v, want %s", path, e.Options, e.SuperOptions, want)
			}
		}
	}
	n.unpublish(p)
	p.Capability.MountFlags = []string{"data=journal"}
	n.refused(n.Publish(t.Context(), p), errs.Precondition, "mount flags")
	n.unstage(s)
	s.Capability.MountFlags = []string{"no-such-option"}
	n.refused(n.Stage(t.Context(), s), errs.Invalid)
	n.nothingStaged(s)
	s.Capability.MountFlags = []string{"loop"}
	n.refused(n.Stage(t.Context(), s), errs.Invalid)
	n.nothingStaged(s)
}

func (n *testNode) nothingStaged(s node.StageRequest) {
	n.t.Helper()
	if got, err := n.StageState(n.t.Context(), s.Volume); err != nil || got != "" {
		n.t.Errorf("a record of state %q is left, %v", got, err)
	}
	if n.mounts(s.Staging) != 0 {
		n.t.Error("a mount is left over")
	}
	n.loopCount(0)
}

// Whatever is at the path, under any name.
func TestUnpublishLeavesStages(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s, other, block := n.staging("vol-staged", mkfs.Ext4), n.staging("vol-other", mkfs.Ext4), n.staging("vol-block", "")
	p, q := n.publishOf(s, "target"), n.publishOf(other, "other-target")
	for _, r := range []node.StageRequest{s, other, block} {
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
			n.ok("unpublish "+id+" at "+path, n.Unpublish(t.Context(), node.UnpublishRequest{Volume: volume.ID(id), Target: path}))
			for _, mounted := range []string{s.Staging, p.Target, other.Staging, q.Target} {
				if n.mounts(mounted) != 1 {
					t.Fatalf("unpublish of %s at %s: %d mounts at %s, want 1", id, path, n.mounts(mounted), mounted)
				}
			}
		}
	}
	for _, kept := range []string{below, block.Staging} {
		if _, err := os.Stat(kept); err != nil {
			t.Errorf("a directory that is not a target was removed: %v", err)
		}
	}
	n.loopCount(3)
	if c, err := n.Health(t.Context(), s.Volume); err != nil || len(c) != 0 {
		t.Errorf("health: %v, %v", c, err)
	}
	n.unpublish(p)
	n.unpublish(q)
	for _, r := range []node.StageRequest{s, other, block} {
		n.unstage(r)
	}
}

// A symbolic link leads to the recorded target.
func TestUnpublishByAnotherName(t *testing.T) {
	t.Parallel()
	for _, fs := range []mkfs.Type{mkfs.Ext4, ""} {
		n := newNode(t)
		s := n.staging("vol-alias", fs)
		p := n.publishOf(s, "target")
		n.up(s, p)
		n.ok("link", os.Symlink(n.dir, n.path("link", false)))
		n.ok("unpublish", n.Unpublish(t.Context(), node.UnpublishRequest{Volume: s.Volume, Target: n.path("link/target", false)}))
		n.gone(p.Target)
		if state, err := n.PublishState(t.Context(), p.Target); err != nil || state != "" {
			t.Errorf("a record of state %q is left, %v", state, err)
		}
		n.unstage(s)
	}
}

// The last mount of a file system is its stage, others are publishes.
func TestUnpublishAfterRecordLoss(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := n.staging("vol-lost", mkfs.XFS)
	p := n.publishOf(s, "target")
	n.up(s, p)
	n.ok("close", n.Close())
	n.ok("remove", os.Remove(n.config.Store))
	n.start()
	for range 2 {
		n.unpublish(p)
		n.ok("unpublish the stage", n.Unpublish(t.Context(), node.UnpublishRequest{Volume: s.Volume, Target: s.Staging}))
		if n.mounts(s.Staging) != 1 {
			t.Fatal("the stage was unmounted")
		}
	}
	n.unstage(s)
	n.loopCount(0)
}
