package store

import (
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

// The copy is a store of its own, follows the commits, and stays when a newer
// one is not possible.
func TestBackup(t *testing.T) {
	fileSystems(t, []string{"ext4"}, func(t *testing.T, dir string) {
		path, o := filepath.Join(dir, "a.db"), options()
		o.Preallocate = 1 << 20
		s := openAt(t, path, o)
		defer s.Close()
		restored := filepath.Join(t.TempDir(), "a.db")
		copied := func(key string) bool {
			t.Helper()
			testkit.Must(t, os.WriteFile(restored, testkit.Value(os.ReadFile(BackupPath(path)))(t), 0o600))
			c := openAt(t, restored, o)
			defer c.Close()
			_, ok := get(t, c, key)
			return ok
		}
		testkit.Must(t, put(t.Context(), s, "first", thing{}), s.KeepBackup(t.Context()))
		if !copied("first") {
			t.Error("not copied at the start")
		}
		for range backupEvery {
			testkit.Must(t, put(t.Context(), s, "second", thing{}))
		}
		if !copied("second") {
			t.Errorf("not copied after %d commits", backupEvery)
		}
		testkit.Must(t, put(t.Context(), s, "third", thing{}))
		ballast := fillUp(t, dir)
		testkit.WantError(t, "a copy on a full file system", s.KeepBackup(t.Context()), unix.ENOSPC)
		testkit.Must(t, os.Remove(ballast), s.db.Update(func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte(things.Name)).Put([]byte("bad"), []byte("{"))
		}))
		testkit.WantError(t, "a copy with a damaged record", s.KeepBackup(t.Context()), ErrDamaged)
		if !copied("second") || copied("third") {
			t.Error("the copy of before did not stay")
		}
		if left, err := filepath.Glob(filepath.Join(dir, ".a.db*")); len(left) > 0 {
			t.Errorf("left over: %q, %v", left, err)
		}
	})
}
