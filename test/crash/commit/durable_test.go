package commit

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/internal/durable"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
	"github.com/cleatproject/cleat/test/vm/disk"
)

// A repeat of a call of internal/durable that failed says OK only if its effect
// survives a power loss.
func TestRepeatedDurableCalls(t *testing.T) {
	for _, fstype := range []string{"ext4", "xfs", "btrfs"} {
		for name, fault := range map[string]disk.Fault{"writes": {Writes: true}, "flushes": {Flushes: true}} {
			t.Run(fstype+"/"+name, func(t *testing.T) {
				r := newDisk(t, fstype)
				old, created := filepath.Join(r.dir, "old"), filepath.Join(r.dir, "dir", "file")
				testkit.Must(t, durable.Write(old, []byte("text")))
				restore := r.disk.Fail(fault)
				if durable.Remove(old) == nil || durable.Write(created, []byte("text")) == nil {
					t.Error("a call succeeded on a disk that fails")
				}
				restore()
				removed, written := durable.Remove(old), durable.Write(created, []byte("text"))
				testkit.Must(t, r.disk.LosePower())
				r.restart()
				if _, err := os.Stat(old); removed == nil && !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("a removed file is there again: %v", err)
				}
				if text, err := os.ReadFile(created); written == nil && string(text) != "text" {
					t.Errorf("a written file has %q, %v", text, err)
				}
				t.Logf("remove: %v; write: %v", removed, written)
			})
		}
	}
}

// restart mounts the file system on the disk that had lost its power.
func (r *rig) restart() {
	testkit.Unmount(r, r.dir)
	testkit.Must(r, r.disk.PowerOn())
	scratchfs.MountImage(r, r.fstype, r.image, r.dir)
}
