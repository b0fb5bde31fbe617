package nodetest

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

type machine struct {
	*trial
	*node.Manager
	dir      string
	protocol string
}

// Nothing is mounted at the end of the test.
func newMachine(t *trial) *machine {
	m := &machine{trial: t, dir: testkit.Value(filepath.EvalSymlinks(t.TempDir()))(t), protocol: t.missing("protocol").Protocol()}
	m.start()
	t.Cleanup(func() {
		ctx := testkit.Context(t)
		testkit.Must(t, m.Close())
		table := testkit.Value(mount.Table(ctx))(t)
		for i := len(table) - 1; i >= 0; i-- {
			if target := table[i].Target; strings.HasPrefix(target, m.dir+"/") {
				t.Errorf("left mounted: %s: %v", target, mount.Unmount(ctx, target))
			}
		}
	})
	return m
}

func (m *machine) start() {
	m.Helper()
	m.Attacher = m.New()
	m.Manager = testkit.Value(node.Open(m.Context(), node.Config{
		Store: filepath.Join(m.dir, "node.db"), Attachers: map[string]node.Attacher{m.protocol: m.Attacher},
	}))(m)
	testkit.Must(m, m.Reconcile(m.Context()))
}

func (m *machine) restart() {
	m.Helper()
	testkit.Must(m, m.Close())
	m.start()
}

// requests creates a volume and returns how it is staged and published.
func (m *machine) requests(id volume.ID, block bool) (node.StageRequest, node.PublishRequest) {
	m.Helper()
	v := m.volume(id)
	c := volume.Capability{Block: block && !m.Directories, Mode: volume.SingleNodeWriter}
	if !block && !m.Directories {
		c.FSType = string(mkfs.Ext4)
		d := m.attach(v, node.Use{Block: true})
		testkit.Must(m, mkfs.Make(m.Context(), mkfs.Request{Path: d.Path, Type: mkfs.Ext4}))
		m.detach(v)
	}
	s := node.StageRequest{Volume: id, Staging: filepath.Join(m.dir, "staging-"+string(id)), Locator: v.Locator, Capability: c}
	testkit.Must(m, os.MkdirAll(s.Staging, 0o750))
	return s, node.PublishRequest{Volume: id, Staging: s.Staging, Target: filepath.Join(m.dir, "target-"+string(id)), Capability: c}
}

func (m *machine) publish(s node.StageRequest, p node.PublishRequest) {
	m.Helper()
	testkit.Must(m, m.Stage(m.Context(), s), m.Publish(m.Context(), p))
}

// undo unpublishes and unstages, with restarts before and after each.
func (m *machine) undo(s node.StageRequest, p node.PublishRequest) {
	m.Helper()
	for range 2 {
		m.restart()
		testkit.Must(m, m.Unpublish(m.Context(), node.UnpublishRequest{Volume: p.Volume, Target: p.Target}))
	}
	for range 2 {
		m.restart()
		testkit.Must(m, m.Unstage(m.Context(), node.UnstageRequest{Volume: s.Volume, Staging: s.Staging}))
	}
	m.wantHeld()
}

func testFilesystemVolume(t *trial) {
	m := newMachine(t)
	s, p := m.requests("v", false)
	name := filepath.Join(p.Target, "file")
	m.publish(s, p)
	testkit.Must(m, os.WriteFile(name, []byte("kept"), 0o600))
	d := m.inspect(node.Target{Locator: s.Locator}).Device
	m.wantHeld(d)
	m.restart()
	m.publish(s, p)
	m.wantHeld(d)
	m.wantText(name, "kept")
	m.undo(s, p)
	m.publish(s, p)
	m.wantText(name, "kept")
	m.undo(s, p)
}

func testBlockVolume(t *trial) {
	m := newMachine(t)
	s, p := m.requests("v", true)
	for _, p.ReadOnly = range []bool{false, true, false} {
		m.publish(s, p)
		d := m.inspect(node.Target{Locator: s.Locator}).Device
		m.restart()
		m.publish(s, p)
		m.wantHeld(d)
		m.wantWrites(node.Device{Path: p.Target}, !p.ReadOnly)
		m.wantText(p.Target, "text")
		m.undo(s, p)
	}
	m.publish(s, p)
	m.Grow("v", 2*size)
	got, err := m.Expand(m.Context(), node.ExpandRequest{Volume: "v", Path: p.Target, Size: volume.SizeRange{Required: 2 * size}})
	if err != nil || got != 2*size {
		m.Errorf("Expand: %d, %v; want %d", got, err, 2*size)
	}
	m.undo(s, p)
}

// A volume deleted or replaced under its users works until it is unpublished,
// and leaves no device.
func testDeletedWhilePublished(t *trial) {
	m := newMachine(t)
	for _, block := range []bool{false, true} {
		for _, replaced := range []bool{false, true} {
			s, p := m.requests("v", block)
			m.publish(s, p)
			m.Delete("v")
			if replaced {
				m.Create("v", size)
			}
			m.restart()
			if !m.Unseen {
				m.wantKind("Stage of a volume that was deleted", m.Stage(m.Context(), s), errs.Precondition)
			}
			m.undo(s, p)
			if replaced {
				m.Delete("v")
			}
		}
	}
}

// Start-up detaches what has no record.
func testOrphans(t *trial) {
	m := newMachine(t)
	s, p := m.requests("owned", true)
	m.publish(s, p)
	d := m.inspect(node.Target{Locator: s.Locator}).Device
	m.attached("orphan")
	m.attached("deleted")
	m.Delete("deleted")
	m.restart()
	m.wantHeld(d)
	m.undo(s, p)
}
