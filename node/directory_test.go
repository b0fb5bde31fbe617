package node_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// directories is an attacher of directories: a tmpfs stands for the shared file
// system, whose state the test sets.
type directories struct {
	node.Attacher // the rest is not called
	dir           string
	options       []string
	presence      node.Presence
}

func (d *directories) Lock(context.Context, node.Target) (func(), error) { return func() {}, nil }

func (d *directories) Inspect(ctx context.Context, _ node.Target) (node.Info, error) {
	e, there, err := mount.At(ctx, d.dir)
	if err != nil || !there {
		return node.Info{Presence: node.Present}, err
	}
	i := node.Info{Presence: d.presence, Backing: "b", Size: 8 * mib, Allocated: mib, Device: node.Device{Path: d.dir, Minor: uint32(e.Minor), Backing: "b"}}
	if d.presence != node.Present {
		i.Problem = errs.Errorf(errs.Unavailable, "the server does not answer")
	}
	return i, nil
}

func (d *directories) Attach(ctx context.Context, t node.Target, use node.Use) (*node.Attachment, error) {
	if use.Block {
		return nil, errs.Errorf(errs.Invalid, "a directory is no block device")
	}
	if _, there, err := mount.At(ctx, d.dir); err != nil || !there {
		if err := mount.Mount(ctx, mount.Spec{Source: "shared", Target: d.dir, FSType: "tmpfs", Options: d.options}); err != nil {
			return nil, err
		}
	}
	i, err := d.Inspect(ctx, t)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(d.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	return &node.Attachment{Device: i.Device, Size: i.Size, File: f}, err
}

func (d *directories) Detach(ctx context.Context, _ node.Target) error {
	return mount.Unmount(ctx, d.dir)
}

func (d *directories) Resize(context.Context, node.Target) (int64, error) { return 8 * mib, nil }

func (d *directories) Held(ctx context.Context) ([]node.Held, error) {
	i, err := d.Inspect(ctx, node.Target{})
	if err != nil || i.Device.IsZero() {
		return nil, err
	}
	return []node.Held{{Device: i.Device}}, nil
}

// directoryNode is a node with one volume, a directory.
func directoryNode(t *testing.T, d *directories) (*testNode, node.StageRequest, node.PublishRequest) {
	d.presence = node.Present
	l := access.CephFS{Ceph: access.Ceph{ClusterID: "c"}, Path: "/v"}
	n := newNode(t, func(n *testNode) {
		d.dir = n.path("private", true)
		n.config.Attachers[l.Protocol()] = d
	})
	c := volume.Capability{Mode: volume.MultiNodeMultiWriter}
	s := node.StageRequest{Volume: "v", Staging: n.path("staging", true), Locator: l, Capability: c}
	return n, s, node.PublishRequest{Volume: "v", Staging: s.Staging, Target: n.path("target", false), Capability: c}
}

func TestDirectory(t *testing.T) {
	d := &directories{}
	n, s, p := directoryNode(t, d)
	ctx, gid := t.Context(), 1234
	s.Capability.MountGroup, s.Capability.MountFlags = &gid, []string{"noexec"}
	p.Capability = s.Capability
	second := p
	second.Target, second.ReadOnly = n.path("second", false), true
	for range 2 {
		testkit.Must(t, n.Stage(ctx, s), n.Publish(ctx, p), n.Publish(ctx, second))
		n.restart()
	}
	testkit.Must(t, os.WriteFile(filepath.Join(p.Target, "file"), []byte("text"), 0o600))
	if text, err := os.ReadFile(filepath.Join(second.Target, "file")); string(text) != "text" {
		t.Errorf("the second target has %q, %v", text, err)
	}
	if err := os.WriteFile(filepath.Join(second.Target, "file"), nil, 0o600); err == nil {
		t.Error("the read-only target is writable")
	}
	if info := testkit.Value(os.Stat(p.Target))(t); int(info.Sys().(*syscall.Stat_t).Gid) != gid {
		t.Errorf("the root has %v", info)
	}
	if e, _, err := mount.At(ctx, p.Target); err != nil || !slices.Contains(e.Options, "noexec") {
		t.Errorf("mounted with %q, %v", e.Options, err)
	}
	if got := testkit.Value(n.Expand(ctx, node.ExpandRequest{Volume: "v", Path: p.Target}))(t); got != 8*mib {
		t.Errorf("Expand: %d", got)
	}
	stats := node.StatsRequest{Volume: "v", Path: p.Target}
	if got := testkit.Value(n.Stats(ctx, stats))(t); got.Block || got.Bytes != (node.Amount{Total: 8 * mib, Used: mib, Available: 7 * mib}) {
		t.Errorf("Stats: %+v", got)
	}
	if got := testkit.Value(n.Health(ctx, "v"))(t); len(got) > 0 {
		t.Errorf("Health: %+v", got)
	}
	d.presence = node.Unreachable
	testkit.WantError(t, "Stats", testkit.Err(n.Stats(ctx, stats)), errs.Unavailable, "does not answer")
	testkit.WantError(t, "Expand", testkit.Err(n.Expand(ctx, node.ExpandRequest{Volume: "v", Path: p.Target})), errs.Unavailable, "does not answer")
	if got := testkit.Value(n.Health(ctx, "v"))(t); len(got) != 1 || got[0].Reason != volume.ReasonStorageUnreachable {
		t.Errorf("Health: %+v", got)
	}
	testkit.WantError(t, "Unstage", n.Unstage(ctx, node.UnstageRequest{Volume: "v", Staging: s.Staging}), errs.Precondition, "published")
	for _, target := range []string{p.Target, second.Target} {
		testkit.Must(t, n.Unpublish(ctx, node.UnpublishRequest{Volume: "v", Target: target}))
	}
	testkit.Must(t, n.Unstage(ctx, node.UnstageRequest{Volume: "v", Staging: s.Staging}))
}

// What a directory cannot have is refused before anything is mounted at the path.
func TestDirectoryRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		options []string
		change  func(*volume.Capability)
		kind    errs.Kind
		words   string
	}{
		"block":            {nil, func(c *volume.Capability) { c.Block = true }, errs.Invalid, "no block device"},
		"other type":       {nil, func(c *volume.Capability) { c.FSType = "ext4" }, errs.Precondition, "tmpfs"},
		"superblock flag":  {nil, func(c *volume.Capability) { c.MountFlags = []string{"size=1m"} }, errs.Invalid, "one mount"},
		"writing snapshot": {[]string{"ro"}, func(*volume.Capability) {}, errs.Precondition, "ReadOnlyMany"},
		"group of readers": {nil, func(c *volume.Capability) {
			gid := 1234
			c.Mode, c.MountGroup = volume.MultiNodeReaderOnly, &gid
		}, errs.Precondition, "1234"},
	} {
		t.Run(name, func(t *testing.T) {
			n, s, _ := directoryNode(t, &directories{options: c.options})
			c.change(&s.Capability)
			testkit.WantError(t, "Stage", n.Stage(t.Context(), s), c.kind, c.words)
		})
	}
	n, s, p := directoryNode(t, &directories{options: []string{"ro"}})
	s.Capability.Mode = volume.MultiNodeReaderOnly
	p.Capability, p.ReadOnly = s.Capability, true
	testkit.Must(t, n.Stage(t.Context(), s), n.Publish(t.Context(), p))
	n.undo(t, s, p)
}

// After the loss of the store, the volume is unpublished and unstaged by what is
// mounted at its paths.
func TestDirectoryWithoutRecords(t *testing.T) {
	n, s, p := directoryNode(t, &directories{})
	testkit.Must(t, n.Stage(t.Context(), s), n.Publish(t.Context(), p))
	testkit.Must(t, n.Close(), os.Remove(n.config.Store))
	n.start()
	n.undo(t, s, p)
	n.wantUnmounted(t)
}

// Another program has unmounted the attacher's mount: those at the orchestrator's
// paths still use the volume.
func TestDirectoryUnmountedByOthers(t *testing.T) {
	d := &directories{}
	n, s, p := directoryNode(t, d)
	testkit.Must(t, n.Stage(t.Context(), s), n.Publish(t.Context(), p), mount.Unmount(t.Context(), d.dir))
	testkit.WantError(t, "Unstage", n.Unstage(t.Context(), node.UnstageRequest{Volume: s.Volume, Staging: s.Staging}), errs.Precondition, "still published at "+p.Target)
	n.undo(t, s, p)
	n.wantUnmounted(t)
	testkit.Must(t, n.Stage(t.Context(), s), mount.Unmount(t.Context(), d.dir))
	n.undo(t, s, p)
	n.wantUnmounted(t)
}

// A kill between the record of the device and its mount at the path: the next start
// rolls the stage back, also if the attacher's mount is gone by then.
func TestInterruptedDirectoryStage(t *testing.T) {
	d := &directories{}
	n, s, p := directoryNode(t, d)
	for _, unmount := range []bool{false, true} {
		a := testkit.Value(d.Attach(t.Context(), node.Target{}, node.Use{}))(t)
		testkit.Must(t, a.File.Close(), n.PutStageRecord(t.Context(), s, node.Creating, n.Boot(), a.Device))
		if unmount {
			testkit.Must(t, mount.Unmount(t.Context(), d.dir))
		}
		n.restart()
		n.nothingStaged(s)
		n.wantUnmounted(t)
	}
	testkit.Must(t, n.Stage(t.Context(), s), n.Publish(t.Context(), p))
	n.undo(t, s, p)
}

func (n *testNode) wantUnmounted(t *testing.T) {
	t.Helper()
	for _, e := range testkit.Value(mount.Table(t.Context()))(t) {
		if strings.HasPrefix(e.Target, n.dir) {
			t.Error(fmt.Sprint("left mounted: ", e.Target))
		}
	}
}

func (n *testNode) undo(t *testing.T, s node.StageRequest, p node.PublishRequest) {
	t.Helper()
	testkit.Must(t, n.Unpublish(t.Context(), node.UnpublishRequest{Volume: p.Volume, Target: p.Target}), n.Unstage(t.Context(), node.UnstageRequest{Volume: s.Volume, Staging: s.Staging}))
}
