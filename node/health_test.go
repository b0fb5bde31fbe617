package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

func (n *testNode) sick(id volume.ID, want ...string) {
	n.t.Helper()
	all, err := n.Health(n.t.Context(), id)
	n.ok("health", err)
	var got []string
	for _, c := range all {
		got = append(got, string(c.Severity)+" "+c.Reason)
		if c.Message != fromEngine {
			enginetest.CheckMessage(n.t, c, "")
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("health (-want +got):\n%s%v", diff, all)
	}
}

// The volume's file is deleted while staged: it has its own condition, and the
// remedy works.
func TestDeletedFile(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-gone", mkfs.Ext4)
	p := n.publishOf(s, "target")
	n.up(s, p)
	n.write(filepath.Join(p.Target, "a"), "alive")
	n.ok("remove", os.Remove(n.file(s.Volume)))
	n.sick(s.Volume, "DATA_LOSS BackingFileDeleted")
	n.refused(n.Stage(t.Context(), s), errs.Precondition, "deleted or replaced")
	n.restart()
	n.volume(s.Volume, mkfs.Ext4) // of the same name
	n.sick(s.Volume, "DATA_LOSS BackingFileDeleted")
	n.refused(n.Stage(t.Context(), s), errs.Precondition, "deleted or replaced")
	n.reads(filepath.Join(p.Target, "a"), "alive")
	n.down(s, p)
	n.loopCount(0)
	n.stage(s)
	n.gone(filepath.Join(s.Staging, "a"))
	n.unstage(s)
}

func TestDeletedBlockFile(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-gone", "")
	p := n.publishOf(s, "device")
	n.up(s, p)
	n.ok("remove", os.Remove(n.file(s.Volume)))
	n.sick(s.Volume, "DATA_LOSS BackingFileDeleted")
	_, err := n.Stats(t.Context(), node.StatsRequest{Volume: s.Volume, Path: p.Target})
	n.refused(err, errs.Precondition, "usage of volume")
	n.down(s, p)
	n.loopCount(0)
	n.refused(n.Stage(t.Context(), s), errs.NotFound, "volumes/vol-gone")
}

func TestLostMounts(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-lost", mkfs.Ext4)
	p := n.publishOf(s, "target")
	n.up(s, p)
	n.ok("unmount", mount.Unmount(t.Context(), s.Staging))
	n.sick(s.Volume, "INACCESSIBLE Unmounted")
	n.refused(n.Publish(t.Context(), n.publishOf(s, "other")), errs.Precondition, "stage it again")
	n.stage(s) // the publish stays
	n.sick(s.Volume)
	n.loopCount(1)
	n.ok("unmount", mount.Unmount(t.Context(), p.Target))
	n.sick(s.Volume, "INACCESSIBLE Unmounted")
	n.publish(p)
	n.sick(s.Volume)
	n.ok("remount", mkfstest.Remount(t.Context(), s.Staging, true))
	n.sick(s.Volume, "DEGRADED RemountedReadOnly")
	n.ok("remount", mkfstest.Remount(t.Context(), s.Staging, false))
	n.down(s, p)
}

// ext4 with errors=remount-ro refuses writes after an error; since Linux 6.12
// its mount still shows rw.
func TestEmergencyReadOnly(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-emergency", mkfs.Ext4)
	s.Capability.MountFlags = []string{"errors=remount-ro"}
	n.stage(s)
	table, err := mount.Table(t.Context())
	n.ok("mounts", err)
	for _, e := range table {
		if e.Target == s.Staging {
			n.ok("an error", os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(e.Source), "trigger_fs_error"), []byte("an error for a test"), 0))
		}
	}
	if err := os.WriteFile(filepath.Join(s.Staging, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Fatalf("after an error a file can be made: %v", err)
	}
	all, err := n.Health(t.Context(), s.Volume)
	n.ok("health", err)
	if !slices.ContainsFunc(all, func(c volume.Condition) bool { return c.Reason == volume.ReasonRemountedReadOnly }) {
		t.Errorf("a read-only volume: %v", all)
	}
	n.unstage(s)
}

func TestPoolGone(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-pool", mkfs.Ext4)
	n.stage(s)
	away := n.path("away", false)
	n.ok("move the pool away", os.Rename(n.pool, away))
	n.sick(s.Volume, "INACCESSIBLE StorageUnreachable")
	got, err := n.StorageHealth(t.Context())
	n.ok("storage health", err)
	if len(got) != 1 || got[0].Severity != volume.Inaccessible || got[0].Reason != volume.ReasonStorageUnreachable {
		t.Errorf("storage health without the pool: %v", got)
	}
	n.unstage(s) // the device is known anyway
	n.loopCount(0)
	n.refused(n.Stage(t.Context(), s), errs.Precondition, "is not on this machine")
	n.ok("move it back", os.Rename(away, n.pool))
	if got, err := n.StorageHealth(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("storage health with the pool: %v, %v", got, err)
	}
}

const fromEngine = "from the engine"

type engineHealth struct{}

func (engineHealth) VolumeHealth(_ context.Context, id volume.ID) ([]volume.Condition, error) {
	if id != "vol-engine" {
		return nil, errs.Errorf(errs.NotFound, "no volume %s", id)
	}
	return []volume.Condition{{Severity: volume.Degraded, Reason: "Copying", Message: fromEngine}}, nil
}

func (engineHealth) StorageHealth(context.Context) ([]volume.Condition, error) {
	return []volume.Condition{{Severity: volume.Degraded, Reason: "PoolNearlyFull", Message: fromEngine}}, nil
}

func TestHealthOfTheEngine(t *testing.T) {
	n := newNode(t, func(n *testNode) { n.config.Health = engineHealth{} })
	n.sick("vol-engine", "DEGRADED Copying") // never staged here
	_, err := n.Health(t.Context(), "vol-none")
	n.refused(err, errs.NotFound)
	s := n.staging("vol-here", mkfs.Ext4)
	n.stage(s)
	n.sick(s.Volume) // unknown to the engine
	n.unstage(s)
	if got, err := n.StorageHealth(t.Context()); err != nil || len(got) != 1 {
		t.Errorf("storage health: %v, %v", got, err)
	}
}

func TestHealthOfUnknown(t *testing.T) {
	n := newNode(t)
	_, err := n.Health(t.Context(), "vol-none")
	n.refused(err, errs.NotFound, "vol-none")
}
