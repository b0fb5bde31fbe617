package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// inline is an engine that creates volumes and finds them by name.
type inline struct {
	n    *testNode
	mu   sync.Mutex
	made map[string]volume.Volume
	fail error
}

func (e *inline) Create(_ context.Context, r volume.CreateRequest) (volume.Volume, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if v, ok := e.made[r.Name]; ok {
		return v, nil
	}
	if e.fail != nil {
		return volume.Volume{}, e.fail
	}
	if !r.Ephemeral || r.Content != volume.Filesystem {
		return volume.Volume{}, errors.New("not an ephemeral file system")
	}
	id := volume.NewID("")
	v := volume.Volume{ID: id, Name: r.Name, Size: size[mkfs.Ext4], FSType: r.FSType, Locator: e.n.volume(id, mkfs.Ext4)}
	e.made[r.Name] = v
	return v, nil
}

func (e *inline) Delete(_ context.Context, id volume.ID) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, v := range e.made {
		if v.ID == id {
			delete(e.made, name)
			return os.Remove(e.n.file(id))
		}
	}
	return nil
}

func (e *inline) count(want int) {
	e.n.t.Helper()
	if len(e.made) != want {
		e.n.t.Errorf("the engine has %d volumes, want %d", len(e.made), want)
	}
}

func newInline(t *testing.T) (*testNode, *inline, node.PublishRequest) {
	e := &inline{made: map[string]volume.Volume{}}
	n := newNode(t, func(n *testNode) { e.n = n; n.config.Inline = e })
	return n, e, node.PublishRequest{
		Volume: "csi-0123456789", Target: n.path("target", false),
		Capability: volume.Capability{FSType: "ext4", Mode: volume.SingleNodeWriter},
		Inline:     &node.InlineVolume{Size: volume.SizeRange{Required: 1}, FSType: "ext4"},
	}
}

func TestEphemeral(t *testing.T) {
	n, e, p := newInline(t)
	n.publish(p)
	n.publish(p)
	e.count(1)
	n.write(filepath.Join(p.Target, "a"), "x")
	st, err := n.Stats(t.Context(), node.StatsRequest{Volume: p.Volume, Path: p.Target})
	if err != nil || st.Bytes.Total == 0 {
		t.Errorf("stats: %+v, %v", st, err)
	}
	n.sick(p.Volume)
	elsewhere := p
	elsewhere.Target = n.path("elsewhere", false)
	n.refused(n.Publish(t.Context(), elsewhere), errs.Precondition, p.Target)
	other := p
	other.Inline = &node.InlineVolume{Size: volume.SizeRange{Required: 2}}
	n.refused(n.Publish(t.Context(), other), errs.Exists, "size")
	n.restart()
	n.publish(p)
	n.reads(filepath.Join(p.Target, "a"), "x")
	n.unpublish(p)
	n.unpublish(p)
	e.count(0)
	n.loopCount(0)
}

func TestInterruptedEphemeralPublish(t *testing.T) {
	for name, interrupt := range map[string]func(e *inline, p node.PublishRequest){
		"intent": func(*inline, node.PublishRequest) {},
		"created": func(e *inline, p node.PublishRequest) {
			_, err := e.Create(e.n.t.Context(), volume.CreateRequest{Name: node.InlineName(p.Volume), Content: volume.Filesystem, Ephemeral: true})
			e.n.ok("create", err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, e, p := newInline(t)
			interrupt(e, p)
			n.ok("record", n.PutPublishRecord(t.Context(), p, node.Creating, n.Boot(), node.Device{}))
			n.restart()
			e.count(0)
			n.publish(p)
			n.unpublish(p)
			e.count(0)
		})
	}
}

// After a reboot or a foreign unmount the volume exists, even if it cannot be
// mounted again at once.
func TestEphemeralSurvives(t *testing.T) {
	n, e, p := newInline(t)
	n.publish(p)
	n.write(filepath.Join(p.Target, "a"), "kept")
	n.ok("unmount", mount.Unmount(t.Context(), p.Target))
	n.restart()
	e.count(1)
	n.sick(p.Volume, "INACCESSIBLE Unmounted")
	n.ok("hide the pool", os.Rename(n.pool, n.pool+"-away"))
	n.refused(n.Publish(t.Context(), p), errs.Precondition, "is not on this machine")
	n.ok("bring it back", os.Rename(n.pool+"-away", n.pool))
	e.count(1)
	other := p
	other.Inline = &node.InlineVolume{Size: volume.SizeRange{Required: 2}}
	n.refused(n.Publish(t.Context(), other), errs.Exists, "size")
	taken := p
	taken.Volume = "csi-other"
	n.refused(n.Publish(t.Context(), taken), errs.Precondition, "csi-0123456789")
	n.publish(p)
	n.reads(filepath.Join(p.Target, "a"), "kept")
	n.unpublish(p)
	e.count(0)
	n.loopCount(0)
}

// A volume whose pod's directory is gone after a reboot is reported until it is
// deleted.
func TestEphemeralLeft(t *testing.T) {
	n, e, p := newInline(t)
	pod := n.path("pod", true)
	p.Target = filepath.Join(pod, "mount")
	left := func(want string) {
		t.Helper()
		found, err := n.StorageHealth(t.Context())
		if text := fmt.Sprint(found); err != nil || len(found) != min(len(want), 1) || !strings.Contains(text, want) {
			t.Errorf("got %s, %v; want %q", text, err, want)
		}
	}
	n.publish(p)
	left("")
	id := testkit.Value(os.ReadDir(filepath.Join(n.pool, "volumes")))(t)[0].Name()
	n.ok("unmount", mount.Unmount(t.Context(), p.Target))
	n.ok("remove the directory of the pod", os.RemoveAll(pod))
	n.restart()
	e.count(1)
	left("InlineVolumeLeft")
	left("cleat volume delete " + id)
	n.ok("delete", e.Delete(t.Context(), volume.ID(id)))
	left("")
	n.unpublish(p)
}

func TestEphemeralRefused(t *testing.T) {
	n, e, p := newInline(t)
	e.fail = errs.Errorf(errs.Exhausted, "the pool is full")
	n.refused(n.Publish(t.Context(), p), errs.Exhausted, "full")
	n.gone(p.Target)
	if got, err := n.PublishState(t.Context(), p.Target); err != nil || got != "" {
		t.Errorf("a record of state %q is left, %v", got, err)
	}
	e.fail = nil
	p.Capability.FSType = "xfs" // the engine creates ext4
	n.refused(n.Publish(t.Context(), p), errs.Precondition, "ext4")
	e.count(0)
	n.gone(p.Target)

	plain := newNode(t)
	p.Target = plain.path("target", false)
	plain.refused(plain.Publish(t.Context(), p), errs.Unsupported, "controller")
	plain.gone(p.Target)
}
