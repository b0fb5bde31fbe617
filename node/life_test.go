package node_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
)

// All calls are repeated.
func TestMountedVolumeLifecycle(t *testing.T) {
	for _, fs := range mkfs.Types() {
		t.Run(string(fs), func(t *testing.T) {
			n := newNode(t)
			s := n.staging("vol-life", fs)
			p := n.publishOf(s, "target")
			n.stage(s)
			n.up(s, p, p)
			if got := n.mounts(s.Staging); got != 1 {
				t.Errorf("%d mounts at the staging path, want 1", got)
			}
			if got := n.mounts(p.Target); got != 1 {
				t.Errorf("%d mounts at the target, want 1", got)
			}
			n.loopCount(1)
			n.write(filepath.Join(p.Target, "a"), "kept")
			n.checkStats(s, p)
			if c, err := n.Health(t.Context(), s.Volume); err != nil || len(c) != 0 {
				t.Errorf("health of an intact volume: %v, %v", c, err)
			}
			n.down(s, p, p)
			n.unstage(s)
			n.loopCount(0)
			n.stage(s)
			n.reads(filepath.Join(s.Staging, "a"), "kept")
			n.unstage(s)
			if known, err := n.IsRecorded(t.Context(), s.Volume); err != nil || known {
				t.Errorf("recorded after the end: %t, %v", known, err)
			}
		})
	}
}

func (n *testNode) checkStats(s node.StageRequest, p node.PublishRequest) {
	n.t.Helper()
	for _, path := range []string{s.Staging, p.Target} {
		st, err := n.Stats(n.t.Context(), node.StatsRequest{Volume: s.Volume, Path: path})
		n.ok("stats", err)
		if st.Block || st.Bytes.Total < 8*mib || st.Bytes.Total > size[mkfs.Type(s.Capability.FSType)] || st.Bytes.Available <= 0 {
			n.t.Errorf("stats at %s: %+v", path, st)
		}
	}
	for _, path := range []string{n.dir, "relative", "/no/such/path", s.Staging + "/lost+found", ""} {
		_, err := n.Stats(n.t.Context(), node.StatsRequest{Volume: s.Volume, Path: path})
		n.refused(err, errs.NotFound)
	}
	_, err := n.Stats(n.t.Context(), node.StatsRequest{Volume: "vol-other", Path: p.Target})
	n.refused(err, errs.NotFound)
}

func TestBlockVolumeLifecycle(t *testing.T) {
	n := newNode(t, withGrower)
	s := n.staging("vol-block", "")
	p := n.publishOf(s, "device")
	n.stage(s)
	n.stage(s)
	n.loopCount(1)
	n.publish(p)
	n.publish(p)
	if got := n.mounts(p.Target); got != 1 {
		t.Errorf("%d mounts at the target, want 1", got)
	}
	n.writeDevice(p.Target, "block data")
	st, err := n.Stats(t.Context(), node.StatsRequest{Volume: s.Volume, Path: p.Target})
	n.ok("stats", err)
	if !st.Block || st.Bytes.Total != 16*mib || st.Bytes.Used == 0 || st.Bytes.Used+st.Bytes.Available != 16*mib {
		t.Errorf("stats of a block volume: %+v", st)
	}
	for _, path := range []string{s.Staging, p.Target, p.Target} {
		got, err := n.Expand(t.Context(), node.ExpandRequest{Volume: s.Volume, Path: path, Size: volume.SizeRange{Required: 32 * mib}})
		if err != nil || got != 32*mib {
			t.Errorf("expand at %s: %d, %v", path, got, err)
		}
	}
	_, err = n.Expand(t.Context(), node.ExpandRequest{Volume: s.Volume, Path: n.dir})
	n.refused(err, errs.NotFound)
	_, err = n.Expand(t.Context(), node.ExpandRequest{Volume: s.Volume, Path: p.Target, Size: volume.SizeRange{Limit: 16 * mib}})
	n.refused(err, errs.OutOfRange, "33554432")
	n.down(s, p, p)
	n.unstage(s)
	n.loopCount(0)
	n.fileBegins(s.Volume, "block data")
}

func (n *testNode) writeDevice(path, text string) {
	n.t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	n.ok("open the device", err)
	defer f.Close()
	_, err = f.WriteAt([]byte(text), 0)
	n.ok("write the device", err)
	n.ok("sync the device", f.Sync())
}

func (n *testNode) fileBegins(id volume.ID, want string) {
	n.t.Helper()
	f, err := os.Open(n.file(id))
	n.ok("open the file", err)
	defer f.Close()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(f, got); err != nil || string(got) != want {
		n.t.Errorf("the file begins with %q, %v; want %q", got, err, want)
	}
}

// Calls for one volume decode no record of another: with the records of a full
// node each call would take longer than its own work.
func TestOtherRecordsAreNotDecoded(t *testing.T) {
	n := newNode(t)
	s, block := n.staging("vol-one", mkfs.Ext4), n.staging("vol-two", "")
	all := []node.PublishRequest{n.publishOf(s, "a"), n.publishOf(block, "b")}
	n.up(s)
	n.up(block)
	n.publish(all[0])
	n.restart() // the publish is found again
	n.ok("damage", n.PutDamagedRecords(t.Context()))
	for _, p := range all {
		n.publish(p)
	}
	n.refused(n.Unstage(t.Context(), node.UnstageRequest{Volume: s.Volume, Staging: s.Staging}), errs.Precondition, all[0].Target)
	for range 2 {
		for _, p := range all {
			n.unpublish(p)
		}
	}
	n.unstage(s)
	n.unstage(block)
	if _, err := n.Volumes(t.Context()); err == nil {
		t.Error("all records can be decoded, so that the test shows nothing")
	}
}
