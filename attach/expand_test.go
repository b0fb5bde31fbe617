package attach_test

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/attach"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/internal/linux/xattr"
	"github.com/cleatproject/cleat/volume"
)

func TestExpandInUse(t *testing.T) {
	for _, fs := range mkfs.Types() {
		t.Run(string(fs), func(t *testing.T) {
			n := newNode(t, withGrower)
			s := n.staging("vol-grow", fs)
			p := n.publishOf(s, "target")
			p.ReadOnly = true // the staging path is where it grows
			n.stage(s)
			want := 2 * size[fs]
			expand := func(path string) error {
				got, err := n.Expand(t.Context(), attach.ExpandRequest{Volume: s.Volume, Path: path, Size: volume.SizeRange{Required: want}})
				if err == nil && got != want {
					t.Errorf("expand at %s: %d, want %d", path, got, want)
				}
				return err
			}
			err := expand(s.Staging)
			n.publish(p)
			if fs == mkfs.Ext4 && !mkfstest.HasSysResource(t) {
				n.refused(err, errs.Precondition, "next stage", "CAP_SYS_RESOURCE")
				n.unpublish(p)
				n.unstage(s)
				n.stage(s)
				n.publish(p)
			} else if err != nil {
				t.Fatal(err)
			}
			n.ok("expand again", expand(s.Staging))
			n.ok("expand by the target", expand(p.Target))
			st, err := n.Stats(t.Context(), attach.StatsRequest{Volume: s.Volume, Path: p.Target})
			if err != nil || st.Bytes.Total < want*3/4 {
				t.Errorf("after the growth to %d: %+v, %v", want, st, err)
			}
			wrong := volume.Capability{Block: true}
			_, err = n.Expand(t.Context(), attach.ExpandRequest{Volume: s.Volume, Path: p.Target, Capability: &wrong})
			n.refused(err, errs.Invalid, "block device")
			n.unpublish(p)
			n.unstage(s)
		})
	}
}

// TestStageGrows: what the controller made larger fills its size when staged.
func TestStageGrows(t *testing.T) {
	for _, fs := range mkfs.Types() {
		t.Run(string(fs), func(t *testing.T) {
			n := newNode(t)
			s := n.staging("vol-grown", fs)
			n.ok("truncate", os.Truncate(n.file(s.Volume), 2*size[fs]))
			n.stage(s)
			st, err := n.Stats(t.Context(), attach.StatsRequest{Volume: s.Volume, Path: s.Staging})
			if err != nil || st.Bytes.Total < 2*size[fs]*3/4 {
				t.Errorf("after the growth to %d: %+v, %v", 2*size[fs], st, err)
			}
			_, err = n.Expand(t.Context(), attach.ExpandRequest{Volume: s.Volume, Path: s.Staging, Size: volume.SizeRange{Required: 4 * size[fs]}})
			n.refused(err, errs.Precondition, "ControllerExpandVolume first")
			n.unstage(s)
		})
	}
}

func (n *node) attribute(id volume.ID, name, value string) {
	n.t.Helper()
	f, err := os.OpenFile(n.file(id), os.O_RDWR, 0)
	n.ok("open", err)
	defer f.Close()
	n.ok("set attribute", xattr.Set(f, xattr.Prefix+name, value))
}

// TestTrimDue: free blocks go back when the interval has passed, and only then.
func TestTrimDue(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-trim", mkfs.Ext4)
	n.attribute(s.Volume, "trim-interval", "1h")
	n.stage(s)
	fill := func() {
		f, err := os.Create(s.Staging + "/fill")
		n.ok("create", err)
		_, err = f.Write(make([]byte, 8*mib))
		n.ok("write", err)
		n.ok("sync", f.Sync())
		n.ok("close", f.Close())
		n.ok("remove", os.Remove(f.Name()))
		dir, err := os.Open(s.Staging)
		n.ok("open", err)
		n.ok("sync", unix.Syncfs(int(dir.Fd()))) // only then the blocks are free
		n.ok("close", dir.Close())
	}
	fill()
	before := mkfstest.Allocated(t, n.file(s.Volume))
	n.ok("trim", n.TrimDue(t.Context()))
	if got := mkfstest.Allocated(t, n.file(s.Volume)); got < before {
		t.Errorf("trimmed before its time: %d bytes, before %d", got, before)
	}
	n.attribute(s.Volume, "trim-interval", "1ns") // changed while it is staged
	n.ok("trim", n.TrimDue(t.Context()))
	if got := mkfstest.Allocated(t, n.file(s.Volume)); got > before-7*mib {
		t.Errorf("after the trim the file takes %d bytes, before %d", got, before)
	}
	n.unstage(s)
	if _, err := n.Trim(t.Context(), s.Volume); err == nil {
		t.Error("a volume that is not mounted was trimmed")
	}
}

// TestRunTrims: the loop trims, and ends with its context.
func TestRunTrims(t *testing.T) {
	n := newNode(t, func(n *node) { n.config.TrimCheck = time.Millisecond })
	s := n.staging("vol-run", mkfs.Ext4)
	n.attribute(s.Volume, "trim-interval", "1ns")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx) }()
	for range 5 { // the calls get their turn beside the trims
		n.stage(s)
		n.unstage(s)
	}
	cancel()
	n.ok("run", <-done)
}
