package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/file"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const (
	mib      = 1 << 20
	poolUUID = "0f0e0d0c-0b0a-4908-8706-050403020100"
)

// size is about the minimum of each file system.
var size = map[mkfs.Type]int64{"": 16 * mib, mkfs.Ext4: 64 * mib, mkfs.XFS: 300 * mib, mkfs.Btrfs: 256 * mib}

// testNode has its own pool in a private directory.
type testNode struct {
	*node.Manager
	t      *testing.T
	dir    string
	pool   string
	config node.Config
}

// At the end of a test nothing of its pool must be mounted or attached.
func newNode(t *testing.T, adjust ...func(*testNode)) *testNode {
	t.Helper()
	dir := testkit.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	n := &testNode{t: t, dir: dir, pool: filepath.Join(dir, "pool")}
	makePool(t, n.pool)
	n.config = node.Config{
		Store:     filepath.Join(dir, "node.db"),
		Attachers: map[string]node.Attacher{file.Protocol(): file.New(n.pool)},
	}
	for _, a := range adjust {
		a(n)
	}
	t.Cleanup(n.cleanUp)
	n.start()
	return n
}

func makePool(t *testing.T, dir string) {
	t.Helper()
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "volumes"), 0o700))
	text := testkit.Value(json.Marshal(map[string]any{"version": 1, "uuid": poolUUID}))(t)
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "pool.json"), text, 0o600))
}

func (n *testNode) start() {
	n.t.Helper()
	m := testkit.Value(node.Open(n.t.Context(), n.config))(n.t)
	n.Manager = m
}

// restart ends and starts the Manager like a process.
func (n *testNode) restart() {
	n.t.Helper()
	testkit.Must(n.t, n.Close())
	n.start()
	testkit.Must(n.t, n.Reconcile(n.t.Context()))
}

// cleanUp removes what a failed test left in the kernel; a passed one must
// leave nothing.
func (n *testNode) cleanUp() {
	ctx := context.Background()
	testkit.Must(n.t, n.Close())
	table, err := mount.Table(ctx)
	if err != nil {
		n.t.Error(err)
	}
	for i := len(table) - 1; i >= 0; i-- {
		if strings.HasPrefix(table[i].Target, n.dir+"/") {
			n.leak("mount at " + table[i].Target)
			_ = mount.Unmount(ctx, table[i].Target)
		}
	}
	for _, d := range n.loops() {
		n.leak("loop device " + d.Path)
		_ = loop.Detach(ctx, d)
	}
}

func (n *testNode) leak(what string) {
	if !n.t.Failed() {
		n.t.Errorf("left over: %s", what)
	}
}

func (n *testNode) loops() []loop.Device {
	all, err := loop.List(context.Background())
	if err != nil {
		n.t.Error(err)
	}
	var ours []loop.Device
	for _, d := range all {
		if name, _, err := loop.BackingName(d); err == nil && strings.HasPrefix(name, n.dir+"/") {
			ours = append(ours, d)
		}
	}
	return ours
}

func (n *testNode) file(id volume.ID) string { return filepath.Join(n.pool, "volumes", string(id)) }

// Without a type, a block volume.
func (n *testNode) volume(id volume.ID, t mkfs.Type) access.File {
	n.t.Helper()
	f := testkit.Value(os.OpenFile(n.file(id), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600))(n.t)
	defer f.Close()
	testkit.Must(n.t, f.Truncate(size[t]))
	if t != "" {
		testkit.Must(n.t, mkfs.Make(n.t.Context(), mkfs.Request{Path: f.Name(), Type: t}))
	}
	return access.File{Pool: poolUUID, Name: "volumes/" + string(id)}
}

// make creates a directory.
func (n *testNode) path(name string, make bool) string {
	n.t.Helper()
	p := filepath.Join(n.dir, name)
	if make {
		testkit.Must(n.t, os.MkdirAll(p, 0o750))
	}
	return p
}

// staging requests a new volume at its own staging path.
func (n *testNode) staging(id volume.ID, t mkfs.Type) node.StageRequest {
	n.t.Helper()
	return node.StageRequest{
		Volume: id, Staging: n.path("staging-"+string(id), true), Locator: n.volume(id, t),
		Capability: volume.Capability{Block: t == "", FSType: string(t), Mode: volume.SingleNodeWriter},
	}
}

// publishOf requests a publish that fits a stage.
func (n *testNode) publishOf(s node.StageRequest, target string) node.PublishRequest {
	return node.PublishRequest{Volume: s.Volume, Staging: s.Staging, Target: n.path(target, false), Capability: s.Capability}
}

func (n *testNode) stage(r node.StageRequest) {
	n.t.Helper()
	n.ok("stage", n.Stage(n.t.Context(), r))
}

func (n *testNode) up(s node.StageRequest, all ...node.PublishRequest) {
	n.t.Helper()
	n.stage(s)
	for _, p := range all {
		n.publish(p)
	}
}

func (n *testNode) down(s node.StageRequest, all ...node.PublishRequest) {
	n.t.Helper()
	for _, p := range all {
		n.unpublish(p)
	}
	n.unstage(s)
}

func (n *testNode) publish(r node.PublishRequest) {
	n.t.Helper()
	n.ok("publish", n.Publish(n.t.Context(), r))
}

func (n *testNode) unpublish(r node.PublishRequest) {
	n.t.Helper()
	n.ok("unpublish", n.Unpublish(n.t.Context(), node.UnpublishRequest{Volume: r.Volume, Target: r.Target}))
	n.gone(r.Target)
}

func (n *testNode) unstage(r node.StageRequest) {
	n.t.Helper()
	n.ok("unstage", n.Unstage(n.t.Context(), node.UnstageRequest{Volume: r.Volume, Staging: r.Staging}))
	if _, there, err := mount.At(n.t.Context(), r.Staging); err != nil || there {
		n.t.Errorf("after unstage: mounted at staging %t, %v", there, err)
	}
}

func (n *testNode) ok(what string, err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
}

// refused checks an error's kind and text.
func (n *testNode) refused(err error, kind errs.Kind, words ...string) {
	n.t.Helper()
	testkit.WantError(n.t, "the call", err, kind, words...)
	if errs.KindOf(err) != kind {
		n.t.Errorf("got %v, want kind %q", err, kind)
	}
}

func (n *testNode) gone(path string) {
	n.t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		n.t.Errorf("%s should be gone: %v", path, err)
	}
}

func (n *testNode) mounts(path string) int {
	n.t.Helper()
	table := testkit.Value(mount.Table(n.t.Context()))(n.t)
	count := 0
	for _, e := range table {
		if e.Target == path {
			count++
		}
	}
	return count
}

func (n *testNode) loopCount(want int) {
	n.t.Helper()
	// The kernel removes an auto-clear device shortly after the last close.
	testkit.EventuallyNil(n.t, "loop devices", func() error {
		if have := n.loops(); len(have) != want {
			return fmt.Errorf("the pool has %v, want %d", have, want)
		}
		return nil
	})
}

func (n *testNode) write(path, text string) {
	n.t.Helper()
	testkit.Must(n.t, os.WriteFile(path, []byte(text), 0o600))
}

func (n *testNode) reads(path, want string) {
	n.t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		n.t.Errorf("%s holds %q, %v; want %q", path, got, err, want)
	}
}

type grower struct{ n *testNode }

func (g grower) Expand(_ context.Context, id volume.ID, size volume.SizeRange) (volume.Volume, error) {
	return volume.Volume{ID: id, Size: size.Required}, os.Truncate(g.n.file(id), size.Required)
}

func withGrower(n *testNode) { n.config.Grower = grower{n} }
