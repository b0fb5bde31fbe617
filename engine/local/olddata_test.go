package local

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// The pool has no space for two volumes, so a new one has blocks of the deleted
// one, which are not discarded by xfs and ext4. It reads as zeros nevertheless: it
// has holes and unwritten extents.
func TestNewVolumesShowNoOldData(t *testing.T) {
	for fsType, c := range map[string]struct {
		pool func(testing.TB) string
		size int64 // of more than half of the free space, but for the reserve
	}{"xfs": {onXFS, 112 * mib}, "ext4": {onExt4, 124 * mib}} {
		for _, provisioning := range []string{"thin", thick} {
			t.Run(fsType+"/"+provisioning, func(t *testing.T) {
				e := open(t, config(c.pool(t)))
				var space unix.Statfs_t
				testkit.Must(t, unix.Statfs(e.pool.path, &space))
				if free := int64(space.Bavail) * space.Bsize; free >= 2*c.size {
					t.Fatalf("%d bytes are free: two volumes fit, and a new one need not have blocks of the deleted one", free)
				}
				request := func(name string) volume.CreateRequest {
					return volume.CreateRequest{Name: name, Size: volume.SizeRange{Required: c.size}, Parameters: map[string]string{keyProvisioning: provisioning}}
				}
				old := create(t, e, request("old"))
				overwrite(t, file(e, old), bytes.Repeat([]byte("old data"), mib/8))
				testkit.Must(t, e.Delete(t.Context(), old.ID))
				v := create(t, e, request("new"))
				showsZeros(t, file(e, v), c.size, 0)
				block := bytes.Repeat([]byte{1}, 4096)
				d, release := attach(t, e, v)
				overwrite(t, d.Path, block)
				showsZeros(t, d.Path, c.size, len(block))
				release()
			})
		}
	}
}

// overwrite writes data at the begin of each MiB, for all of a file or device.
func overwrite(t testing.TB, path string, data []byte) {
	t.Helper()
	f := testkit.Value(os.OpenFile(path, os.O_RDWR, 0))(t)
	end := testkit.Value(f.Seek(0, io.SeekEnd))(t)
	for offset := int64(0); offset < end; offset += mib {
		testkit.Value(f.WriteAt(data, offset))(t)
	}
	testkit.Must(t, f.Sync(), f.Close())
}

// showsZeros reads a file or device, but for the first bytes of each MiB.
func showsZeros(t testing.TB, path string, size int64, skip int) {
	t.Helper()
	f := testkit.Value(os.Open(path))(t)
	defer f.Close()
	b := make([]byte, mib)
	for offset := int64(0); offset < size; offset += mib {
		if _, err := f.ReadAt(b, offset); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if n := bytes.Count(b[skip:], []byte{0}); n < len(b)-skip {
			t.Fatalf("%s: %d bytes are not zero in the MiB at %d", path, len(b)-skip-n, offset)
		}
	}
}
