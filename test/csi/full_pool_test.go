package csi_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// fillAll allocates all free space of the pool's file system.
func (r *rig) fillAll() {
	r.Helper()
	f := testkit.Value(os.Create(filepath.Join(r.pool, "ballast")))(r)
	defer f.Close()
	for at, chunk := int64(0), int64(1<<30); chunk >= 4096; {
		switch err := unix.Fallocate(int(f.Fd()), 0, at, chunk); {
		case err == nil:
			at += chunk
		case errors.Is(err, unix.ENOSPC):
			chunk /= 2
		default:
			r.Fatal(err)
		}
	}
}

// TestNoSpace: with no byte left volumes are detached and deleted, and the
// driver restarts. A volume that cannot be mounted says why.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	for _, fsType := range soak.Pick(1, []mkfs.Type{mkfs.XFS, mkfs.Btrfs}) {
		t.Run(string(fsType), func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, fsType, "--overprovision-ratio", "20")
			d, idle := r.create("used", mounted("ext4")).attach(), r.create("idle", mounted("ext4"))
			snap := idle.snapshot("before") // shares all blocks of the volume
			d.writeFile("kept", 1, 4096)
			r.fillAll()
			r.refused(idle.stage(), codes.ResourceExhausted, "is full")
			d.detach()
			r.restart()
			r.dropSnapshots(snap.GetSnapshotId())
			testkit.Must(r, d.remove(), idle.remove())
			list, err := r.controller().ListVolumes(t.Context(), &csi.ListVolumesRequest{})
			if err != nil || len(list.GetEntries()) != 0 {
				t.Errorf("left: %v, %v", list, err)
			}
		})
	}
}
