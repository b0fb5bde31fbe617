package local

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/scratchfs"
	"github.com/cleatproject/cleat/volume"
)

// loseData ends a mounted XFS or ext4 as a power cut may: its journal reaches
// the disk, what was written to files and not synced does not.
func loseData(t *testing.T, dir string) {
	t.Helper()
	const (
		goingDown = 0x8004587d // XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN
		flushLog  = 1
	)
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := unix.IoctlSetPointerInt(int(d.Fd()), goingDown, flushLog); err != nil {
		t.Fatalf("shut %s down: %v", dir, err)
	}
}

// A power cut soon after the first start must not leave a note that keeps the
// pool from ever being opened again.
func TestTheNoteOutlivesAPowerCut(t *testing.T) {
	for _, fsType := range []string{"xfs", "ext4"} {
		t.Run(fsType, func(t *testing.T) {
			image, dir := filepath.Join(t.TempDir(), "disk"), t.TempDir()
			if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, scratchfs.Size)); err != nil {
				t.Fatal(err)
			}
			scratchfs.Run(t, "mkfs."+fsType, "-q", map[string]string{"xfs": "-ssize=4096", "ext4": "-b4096"}[fsType], image)
			scratchfs.MountImage(t, fsType, image, dir)
			t.Cleanup(func() { scratchfs.Run(t, "umount", dir) })
			c := config(filepath.Join(dir, "pool"))
			c.StateDir = filepath.Join(dir, "state")
			e := open(t, c)
			v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
			closeEngine(t, e)
			loseData(t, dir)
			scratchfs.Run(t, "umount", dir)
			scratchfs.MountImage(t, fsType, image, dir)

			e = open(t, c)
			if _, err := e.Get(t.Context(), v.ID); err != nil {
				t.Errorf("the volume behind the power cut: %v", err)
			}
			closeEngine(t, e)
		})
	}
}
