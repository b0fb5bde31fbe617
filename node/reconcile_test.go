package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/file"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

const otherBoot = "00000000-1111-4222-8333-444444444444"

// attached attaches a volume like a stage that is killed.
func (n *testNode) attached(s node.StageRequest) node.Device {
	n.t.Helper()
	a, err := file.New(n.pool).Attach(n.t.Context(), node.Target{Locator: s.Locator}, node.Use{Block: s.Capability.Block})
	n.ok("attach", err)
	n.t.Cleanup(func() { a.File.Close() })
	if s.Capability.Block {
		n.ok("close", a.File.Close())
	}
	return a.Device
}

// mounted mounts a volume without a record.
func (n *testNode) mounted(s node.StageRequest) node.Device {
	n.t.Helper()
	a, err := file.New(n.pool).Attach(n.t.Context(), node.Target{Locator: s.Locator}, node.Use{})
	n.ok("attach", err)
	defer a.File.Close()
	n.ok("mount", mount.Mount(n.t.Context(), mount.Spec{Source: a.Device.Path, Target: s.Staging, FSType: s.Capability.FSType}))
	return a.Device
}

// Rebuilds what a kill leaves after each step of a stage and an unstage:
// start-up rolls it back, and the volume can be staged.
func TestInterruptedStage(t *testing.T) {
	for name, interrupt := range map[string]func(n *testNode, s node.StageRequest) (string, node.Device){
		"intent": func(*testNode, node.StageRequest) (string, node.Device) { return node.Creating, node.Device{} },
		"mounted unrecorded": func(n *testNode, s node.StageRequest) (string, node.Device) {
			n.mounted(s)
			return node.Creating, node.Device{}
		},
		"mounted":           func(n *testNode, s node.StageRequest) (string, node.Device) { return node.Creating, n.mounted(s) },
		"unstage intent":    func(n *testNode, s node.StageRequest) (string, node.Device) { return node.Deleting, n.mounted(s) },
		"unstage unmounted": func(*testNode, node.StageRequest) (string, node.Device) { return node.Deleting, node.Device{} },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			s := n.staging("vol-interrupted", mkfs.Ext4)
			state, device := interrupt(n, s)
			n.ok("record", n.PutStageRecord(t.Context(), s, state, n.Boot(), device))
			n.restart()
			n.nothingStaged(s)
			n.stage(s)
			n.unstage(s)
		})
	}
}

// The next call completes an interrupted one.
func TestInterruptedStageWithoutRestart(t *testing.T) {
	for _, state := range []string{node.Creating, node.Ready, node.Deleting} {
		t.Run(state, func(t *testing.T) {
			n := newNode(t)
			s := n.staging("vol-interrupted", mkfs.XFS)
			device := n.mounted(s)
			n.ok("record", n.PutStageRecord(t.Context(), s, state, n.Boot(), device))
			n.stage(s)
			if got := n.mounts(s.Staging); got != 1 {
				t.Errorf("%d mounts at the staging path, want 1", got)
			}
			n.loopCount(1)
			n.unstage(s)
			n.mounted(s)
			n.ok("record", n.PutStageRecord(t.Context(), s, state, n.Boot(), device))
			n.unstage(s)
			n.loopCount(0)
		})
	}
}

func TestInterruptedBlockStage(t *testing.T) {
	for _, state := range []string{node.Creating, node.Deleting} {
		t.Run(state, func(t *testing.T) {
			n := newNode(t)
			s := n.staging("vol-interrupted", "")
			n.ok("record", n.PutStageRecord(t.Context(), s, state, n.Boot(), n.attached(s)))
			n.loopCount(1)
			n.restart()
			n.nothingStaged(s)
		})
	}
}

func TestInterruptedPublish(t *testing.T) {
	for _, block := range []bool{false, true} {
		for name, interrupt := range map[string]func(n *testNode, s node.StageRequest, p node.PublishRequest) string{
			"intent": func(*testNode, node.StageRequest, node.PublishRequest) string { return node.Creating },
			"target made": func(n *testNode, _ node.StageRequest, p node.PublishRequest) string {
				n.makeTarget(p)
				return node.Creating
			},
			"bound": func(n *testNode, s node.StageRequest, p node.PublishRequest) string {
				n.bound(s, p)
				return node.Creating
			},
			"unpublish intent": func(n *testNode, s node.StageRequest, p node.PublishRequest) string {
				n.bound(s, p)
				return node.Deleting
			},
			"unpublish unmounted": func(n *testNode, _ node.StageRequest, p node.PublishRequest) string {
				n.makeTarget(p)
				return node.Deleting
			},
		} {
			kind := map[bool]string{false: "mount", true: "block"}[block]
			t.Run(kind+" "+name, func(t *testing.T) {
				n := newNode(t)
				s := n.staging("vol-interrupted", map[bool]mkfs.Type{false: mkfs.Ext4, true: ""}[block])
				n.stage(s)
				p := n.publishOf(s, "target")
				n.ok("record", n.PutPublishRecord(t.Context(), p, interrupt(n, s, p), n.Boot(), n.device(s)))
				n.restart()
				n.gone(p.Target)
				if got, err := n.PublishState(t.Context(), p.Target); err != nil || got != "" {
					t.Errorf("a record of state %q is left, %v", got, err)
				}
				n.loopCount(1)
				n.publish(p)
				n.down(s, p)
			})
		}
	}
}

func (n *testNode) makeTarget(p node.PublishRequest) {
	n.t.Helper()
	if p.Capability.Block {
		n.write(p.Target, "")
		return
	}
	n.ok("mkdir", os.Mkdir(p.Target, 0o750))
}

func (n *testNode) bound(s node.StageRequest, p node.PublishRequest) {
	n.t.Helper()
	n.makeTarget(p)
	source := s.Staging
	if s.Capability.Block {
		source = n.device(s).Path
	}
	n.ok("bind", mount.Bind(n.t.Context(), source, p.Target, mount.BindOptions{}))
}

func (n *testNode) device(s node.StageRequest) node.Device {
	n.t.Helper()
	v, err := file.New(n.pool).Inspect(n.t.Context(), node.Target{Locator: s.Locator})
	n.ok("look", err)
	return v.Device
}

// What was acknowledged survives a restart unchanged.
func TestRestart(t *testing.T) {
	n := newNode(t)
	s, b := n.staging("vol-stands", mkfs.Btrfs), n.staging("vol-block", "")
	p, q := n.publishOf(s, "target"), n.publishOf(b, "device")
	n.stage(s)
	n.up(b, p, q)
	n.write(filepath.Join(p.Target, "a"), "kept")
	open, err := os.Open(filepath.Join(p.Target, "a"))
	n.ok("open", err)
	n.restart()
	n.restart()
	n.up(s, p)
	n.up(b, q)
	if n.mounts(s.Staging) != 1 || n.mounts(p.Target) != 1 || n.mounts(q.Target) != 1 {
		t.Error("mounts were stacked or lost")
	}
	n.loopCount(2)
	n.reads(filepath.Join(p.Target, "a"), "kept")
	n.ok("close", open.Close())
	n.down(s, p, q)
	n.unstage(b)
}

// After a reboot only records and targets exist; stages can be repeated or
// removed.
func TestReboot(t *testing.T) {
	for _, fs := range []mkfs.Type{mkfs.Ext4, ""} {
		n := newNode(t)
		s := n.staging("vol-reboot", fs)
		p, lost := n.publishOf(s, "target"), n.publishOf(s, "lost")
		// Here the old device number and inode belong to another volume.
		other := n.staging("vol-other", "")
		n.stage(other)
		n.ok("record", n.PutStageRecord(t.Context(), s, node.Ready, otherBoot, n.device(other)))
		for _, r := range []node.PublishRequest{p, lost} {
			n.makeTarget(r)
			n.ok("record", n.PutPublishRecord(t.Context(), r, node.Ready, otherBoot, n.device(other)))
		}
		n.restart()
		if c, err := n.Health(t.Context(), s.Volume); err != nil || len(c) != 0 {
			t.Errorf("health after a reboot: %v, %v", c, err)
		}
		n.refused(n.Publish(t.Context(), p), "precondition failed", "stage it again")
		n.up(s, p)
		n.loopCount(2)
		n.down(s, p, lost)

		n.ok("record", n.PutStageRecord(t.Context(), s, node.Ready, otherBoot, n.device(other)))
		n.makeTarget(lost)
		n.ok("record", n.PutPublishRecord(t.Context(), lost, node.Ready, otherBoot, n.device(other)))
		n.restart()
		n.down(s, lost)
		n.loopCount(1)
		n.unstage(other)
		n.loopCount(0)
	}
}

// IsUsed counts what is recorded in this boot or attached, not what an earlier boot
// left in the records.
func TestIsUsed(t *testing.T) {
	n := newNode(t)
	want := func(what string, want bool) {
		t.Helper()
		if used := testkit.Value(n.IsUsed(t.Context()))(t); used != want {
			t.Errorf("%s: used %t, want %t", what, used, want)
		}
	}
	want("nothing", false)
	s := n.staging("vol-used", "")
	p := n.publishOf(s, "target")
	n.ok("record", n.PutStageRecord(t.Context(), s, node.Ready, otherBoot, node.Device{}))
	n.ok("record", n.PutPublishRecord(t.Context(), p, node.Ready, otherBoot, node.Device{}))
	want("records of an earlier boot", false)
	n.ok("record", n.PutPublishRecord(t.Context(), p, node.Ready, n.Boot(), node.Device{}))
	want("a publish of this boot", true)
	n.unpublish(p)
	n.ok("record", n.PutStageRecord(t.Context(), s, node.Creating, n.Boot(), node.Device{}))
	want("a stage of this boot that has no device yet", true)
	n.unstage(s)
	want("after unstage", false)
	n.attached(s)
	want("a device without a record", true)
	n.restart()
	want("after start-up has detached it", false)
}

// Start-up detaches devices without a record, except mounted ones.
func TestOrphans(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-orphan", "")
	n.attached(s)
	removed := n.staging("vol-removed", "")
	n.attached(removed)
	n.ok("remove", os.Remove(n.file(removed.Volume)))
	used := n.staging("vol-used", mkfs.Ext4)
	n.mounted(used)
	owned := n.staging("vol-owned", "")
	n.stage(owned)
	n.loopCount(4)
	n.restart()
	n.loopCount(2)
	if n.mounts(used.Staging) != 1 {
		t.Error("a foreign mount was removed")
	}
	n.unstage(owned)
	n.unstage(used) // known to the kernel only
	n.loopCount(0)
}

// Without its records a node removes or adopts what the kernel has.
func TestLostStore(t *testing.T) {
	n := newNode(t)
	s, b := n.staging("vol-lost", mkfs.Ext4), n.staging("vol-lostblock", "")
	p, q := n.publishOf(s, "target"), n.publishOf(b, "device")
	lose := func() {
		n.ok("close", n.Close())
		n.ok("remove", os.Remove(n.config.Store))
		n.start()
	}
	n.up(s, p)
	lose()
	n.up(s, p)
	if n.mounts(s.Staging) != 1 || n.mounts(p.Target) != 1 {
		t.Error("mounts were stacked or lost")
	}
	n.up(b, q)
	lose()
	n.down(s, p)
	n.unpublish(q)
	n.restart() // detaches an unpublished block device
	n.loopCount(0)
}

// forgetful knows devices, but no longer their volumes.
type forgetful struct{ node.Attacher }

func (f forgetful) Held(ctx context.Context) ([]node.Held, error) {
	held, err := f.Attacher.Held(ctx)
	for i := range held {
		held[i].Volume, held[i].Locator = "", nil
	}
	return held, err
}

func (f forgetful) Detach(ctx context.Context, t node.Target) error {
	held, err := f.Attacher.Held(ctx)
	for _, h := range held {
		if t.Locator == nil && h.Device == t.Device {
			t.Locator = h.Locator
		}
	}
	return errors.Join(err, f.Attacher.Detach(ctx, t))
}

// If the attacher has lost its records too, mounts at the paths of calls
// identify the devices.
func TestLostStoreAndVolumes(t *testing.T) {
	n := newNode(t, func(n *testNode) {
		n.config.Attachers[file.Protocol()] = forgetful{n.config.Attachers[file.Protocol()]}
	})
	s, b, other := n.staging("vol-lost", mkfs.Ext4), n.staging("vol-lostblock", ""), n.staging("vol-other", mkfs.Ext4)
	p, q := n.publishOf(s, "target"), n.publishOf(b, "device")
	n.up(s, p)
	n.up(b, q)
	n.ok("close", n.Close())
	n.ok("remove", os.Remove(n.config.Store))
	n.start()
	n.ok("reconcile", n.Reconcile(t.Context()))
	n.ok("unstage another volume", n.Unstage(t.Context(), node.UnstageRequest{Volume: other.Volume, Staging: other.Staging}))
	err := n.Unstage(t.Context(), node.UnstageRequest{Volume: s.Volume, Staging: s.Staging})
	testkit.WantError(t, "unstage of a published volume", err, errs.Precondition)
	if n.mounts(s.Staging) != 1 || n.mounts(p.Target) != 1 {
		t.Error("mounts were lost")
	}
	n.down(s, p)
	n.down(b, q)
	n.loopCount(0)
}

// absent is an attacher without its storage.
type absent struct{ node.Attacher }

func (absent) Held(context.Context) ([]node.Held, error) {
	return nil, errs.Errorf(errs.Unavailable, "open the pool: %w", os.ErrNotExist)
}

// Without records, a mount can be of storage that is not there now.
func TestLostStoreWithoutStorage(t *testing.T) {
	n := newNode(t)
	s, never := n.staging("vol-lost", mkfs.Ext4), n.staging("vol-never", mkfs.Ext4)
	p := n.publishOf(s, "target")
	n.up(s, p)
	n.ok("close", n.Close())
	n.ok("remove", os.Remove(n.config.Store))
	pool := n.config.Attachers[file.Protocol()]
	n.config.Attachers[file.Protocol()] = absent{pool}
	n.start()
	err := n.Manager.Unpublish(t.Context(), node.UnpublishRequest{Volume: p.Volume, Target: p.Target})
	testkit.WantError(t, "unpublish", err, errs.Unavailable)
	err = n.Manager.Unstage(t.Context(), node.UnstageRequest{Volume: s.Volume, Staging: s.Staging})
	testkit.WantError(t, "unstage", err, errs.Unavailable)
	n.ok("unstage what is not mounted", n.Manager.Unstage(t.Context(), node.UnstageRequest{Volume: never.Volume, Staging: never.Staging}))
	n.ok("close", n.Close())
	n.config.Attachers[file.Protocol()] = pool
	n.start()
	n.down(s, p)
	n.loopCount(0)
}

// barrier blocks Detach until a number of calls is in flight.
type barrier struct {
	node.Attacher
	mu      sync.Mutex
	missing int
	reached chan struct{}
}

func (b *barrier) Detach(ctx context.Context, t node.Target) error {
	b.mu.Lock()
	if b.missing--; b.missing == 0 {
		close(b.reached)
	}
	b.mu.Unlock()
	select {
	case <-b.reached:
		return b.Attacher.Detach(ctx, t)
	case <-ctx.Done():
		return errors.New("the others were not begun meanwhile")
	}
}

// At start-up, volumes held by another mount namespace are awaited in parallel,
// with or without a record.
func TestHeldVolumesAtOnce(t *testing.T) {
	const count = 8
	for _, recorded := range []bool{true, false} {
		t.Run(fmt.Sprintf("recorded %t", recorded), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			var stages []node.StageRequest
			for i := range count {
				s := n.staging(volume.ID(fmt.Sprint("vol-", i)), mkfs.Ext4)
				n.stage(s)
				stages = append(stages, s)
			}
			release := holdMounts(t, n.dir)
			for _, s := range stages {
				n.ok("record", n.PutStageRecord(t.Context(), s, node.Deleting, n.Boot(), n.device(s)))
				if !recorded {
					n.ok("unmount", mount.Unmount(t.Context(), s.Staging))
				}
			}
			n.ok("close", n.Close())
			if !recorded {
				n.ok("remove", os.Remove(n.config.Store))
			}
			b := &barrier{Attacher: file.New(n.pool), missing: count, reached: make(chan struct{})}
			n.config.Attachers = map[string]node.Attacher{file.Protocol(): b}
			n.start()
			if err := n.Reconcile(testkit.Context(t)); err != nil {
				t.Fatalf("reconcile: %v, with %d volumes not begun", err, b.missing)
			}
			n.loopCount(count)
			release()
			n.restart()
			n.loopCount(0)
		})
	}
}
