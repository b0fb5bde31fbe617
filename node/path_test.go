package node_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// withPrivate has a state directory, and the pool by a symbolic link, as
// private directories.
func withPrivate(n *testNode) {
	state := n.path("state/csi", true)
	n.ok("link", os.Symlink(n.pool, n.path("link", false)))
	n.config.Store = filepath.Join(state, "node.db")
	n.config.Private = []string{n.path("link", false), state}
}

// Under any name.
func TestForbiddenPaths(t *testing.T) {
	t.Parallel()
	n := newNode(t, withPrivate)
	s, staged, block := n.staging("vol-path", mkfs.Ext4), n.staging("vol-staged", mkfs.Ext4), n.staging("vol-block", "")
	n.stage(staged)
	n.stage(block)
	n.ok("link", os.Symlink("/usr/share", n.path("share", false)))
	n.ok("link", os.Symlink(n.dir, n.path("here", false)))
	n.path("state/csi/x", true)
	n.path("pool/x", true)
	for _, c := range []struct{ path, word string }{
		{n.path("pool/x", false), "pool"},
		{n.path("pool/volumes", false), "pool"},
		{n.path("here/pool/x", false), "pool"},
		{n.path("link/x", false), "pool"},
		{n.path("pool", false), "pool"},
		{n.path("here/state/csi/x", false), "state/csi"},
		{n.path("state/csi", false), "state/csi"},
		{n.path("state", false), "state/csi"}, // would hide it
		{n.dir, n.dir},
		{"/usr/share/doc", "/usr"},
		{n.path("share/doc", false), "/usr"},
	} {
		s.Staging = c.path
		if n.refused(n.Stage(t.Context(), s), errs.Invalid, "staging_target_path "+c.path, c.word); t.Failed() {
			_ = n.Unstage(t.Context(), node.UnstageRequest{Volume: s.Volume, Staging: s.Staging})
			t.FailNow()
		}
		for _, of := range []node.StageRequest{staged, block} {
			p := n.publishOf(of, "")
			p.Target = c.path
			n.refused(n.Publish(t.Context(), p), errs.Invalid, "target_path "+c.path, c.word)
		}
	}
	for _, path := range []string{staged.Staging, n.path("here/staging-vol-staged", false), filepath.Join(staged.Staging, "below")} {
		p := n.publishOf(staged, "")
		p.Target = path
		n.refused(n.Publish(t.Context(), p), errs.Invalid, "target_path "+path, "staging_target_path "+staged.Staging)
	}
	if n.mounts(staged.Staging) != 1 {
		t.Error("the stage was unmounted")
	}
	if ids, err := n.Volumes(t.Context()); err != nil || len(ids) != 2 {
		t.Errorf("recorded: %v, %v, want the two staged volumes", ids, err)
	}
	n.unstage(staged)
	n.unstage(block)
}

func TestSystemPaths(t *testing.T) {
	for path, want := range map[string]bool{
		"/": true, "/etc": true, "/etc/x": true, "/usr/local/x": true, "/bin": true, "/sbin/x": true, "/lib64": true, "/boot/efi": true,
		"/proc/1": true, "/sys/fs": true, "/dev": true, "/dev/shm": true, "/dev/pts": true, "/run": true, "/tmp": true, "/var": true,
		"/var/lib": true, "/var/tmp": true, "/var/lib/kubelet": true,
		"/dev/shm/disk": false, "/var/lib/kubelet/pods/x": false, "/var/nomad": false, "/opt/nomad": false, "/mnt": false, "/srv": false,
		"/tmp/x": false, "/run/x": false, "/etcetera": false, "/home": false, "/binary": false, "/var/lib/libvirt": false, "/csi/staging": false,
	} {
		if got := node.IsSystemPath(path); got != want {
			t.Errorf("%s: %t, want %t", path, got, want)
		}
	}
}

// Content of the volume that is already published there does not count.
func TestPublishOverContent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s, block := n.staging("vol-content", mkfs.Ext4), n.staging("vol-block", "")
	n.stage(s)
	n.stage(block)
	p, q := n.publishOf(s, "target"), n.publishOf(block, "device")
	n.path("target", true)
	mine := filepath.Join(p.Target, "mine")
	n.write(mine, "precious")
	n.refused(n.Publish(t.Context(), p), errs.Precondition, p.Target, "not empty")
	n.reads(mine, "precious")
	n.ok("remove", os.Remove(mine))
	n.publish(p)
	n.write(filepath.Join(p.Target, "inside"), "of the volume")
	n.publish(p)

	n.write(q.Target, "precious")
	n.refused(n.Publish(t.Context(), q), errs.Precondition, q.Target, "not an empty file")
	n.reads(q.Target, "precious")
	for _, make := range []func(string) error{
		func(path string) error { return os.Symlink(p.Target, path) },
		func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		n.ok("remove", os.Remove(q.Target))
		n.ok("make", make(q.Target))
		n.refused(n.Publish(t.Context(), q), errs.Precondition, q.Target)
	}
	n.ok("remove", os.Remove(q.Target))
	n.write(q.Target, "")
	n.publish(q)
	n.publish(q)
	n.down(s, p, q)
	n.unstage(block)
}

// Files below the mount are kept.
func TestContentBelowMount(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := n.staging("vol-content", mkfs.Ext4)
	p := n.publishOf(s, "targets/target")
	view := n.path("view", true)
	n.ok("bind", mount.Bind(t.Context(), n.path("targets", true), view, mount.BindOptions{}))
	n.up(s, p)
	mine := filepath.Join(view, "target/mine")
	n.write(mine, "precious")
	n.refused(n.Unpublish(t.Context(), node.UnpublishRequest{Volume: s.Volume, Target: p.Target}), errs.Precondition, p.Target)
	n.reads(mine, "precious")
	n.ok("remove", os.Remove(mine))
	n.down(s, p)
	n.ok("unmount", mount.Unmount(t.Context(), view))
	testkit.WantError(t, "the target is left over", testkit.Err(os.Lstat(filepath.Join(view, "target"))), os.ErrNotExist)
}

// Locators with lists are compared by content; == would panic.
func TestLocatorsWithLists(t *testing.T) {
	own := access.NVMe{
		Transport: "tcp", NQN: "nqn.2016-06.io.spdk:a",
		Paths: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4420"), netip.MustParseAddrPort("192.0.2.2:4420")},
	}
	n := newNode(t, func(n *testNode) {
		n.config.Locate = func(context.Context, volume.ID) (access.Access, error) { return own, nil }
	})
	r := n.staging("vol-remote", "")
	other := own
	other.NQN += "b"
	r.Locator = other
	n.refused(n.Stage(t.Context(), r), errs.Invalid, "does not belong to volume")
	// The comparison passes; a node without NVMe then fails.
	r.Locator = own
	n.refused(n.Stage(t.Context(), r), errs.Unsupported, "nvme")
}
