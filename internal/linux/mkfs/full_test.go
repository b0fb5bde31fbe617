package mkfs_test

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
)

// TestIsFull: sizes at which there is something to gain, and at which not. That
// the kernel and resize2fs see it so is tested where they grow.
func TestIsFull(t *testing.T) {
	const group = 80 * mib // a fourth of the XFS below
	for fs, sizes := range map[mkfs.Type]map[int64]bool{
		mkfs.Ext4:  {320 * mib: true, 320*mib + 4095: true, 320*mib + 4096: false, 100 * mib: true, 1 << 40: false},
		mkfs.XFS:   {320 * mib: true, 320*mib + 4095: true, 320*mib + 63*4096: true, 320*mib + 64*4096: false, 320*mib + group: false},
		mkfs.Btrfs: {320 * mib: true, 320*mib + 4095: true, 320*mib + 4096: false, 1 << 40: false},
	} {
		path := mkfstest.File(t, t.TempDir(), "volume", 320*mib)
		mkfstest.Make(t, path, fs)
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for size, want := range sizes {
			if got, err := mkfs.IsFull(f, size); err != nil || got != want {
				t.Errorf("%s of 320 MiB on %d bytes: %t, %v; want %t", fs, size, got, err, want)
			}
		}
	}
	if _, err := mkfs.IsFull(bytes.NewReader(make([]byte, mib)), mib); !errors.Is(err, errs.Precondition) {
		t.Errorf("an empty device: %v, want Precondition", err)
	}
}
