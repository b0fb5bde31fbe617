package mount

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

// It is written, made read-only and then moved; without the move it is
// unmounted.
func TestCreateIsSeenOnlyAfterMoveTo(t *testing.T) {
	for fsType := range mkfs {
		t.Run(fsType, func(t *testing.T) {
			device, target := newDevice(t, fsType), t.TempDir()
			abandoned := testkit.Value(Create(t.Context(), Spec{Source: device, FSType: fsType}))(t)
			writeFile(t, filepath.Join(abandoned.Path(), "first"))
			if claim, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0); !errors.Is(err, unix.EBUSY) {
				claim.Close()
				t.Errorf("the device of a mounted file system can be claimed: %v", err)
			}
			abandoned.Close()
			claim := testkit.Value(os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0))(t)
			claim.Close()

			tree := testkit.Value(Create(t.Context(), Spec{Source: device, FSType: fsType, Options: []string{"nosuid"}}))(t)
			defer tree.Close()
			writeFile(t, filepath.Join(tree.Path(), "second"))
			testkit.Must(t, tree.SetReadOnly(true))
			if err := os.WriteFile(filepath.Join(tree.Path(), "third"), nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("a write to a read-only file system gives %v", err)
			}
			if e, mounted := mustAt(t, target); mounted {
				t.Errorf("%+v is seen before MoveTo", e)
			}
			testkit.Must(t, tree.MoveTo(target))
			unmountAfter(t, target)
			if e, _ := mustAt(t, target); !e.ReadOnly() || !contains(e.Options, "nosuid") {
				t.Errorf("mounted %+v", e)
			}
			for _, name := range []string{"first", "second"} {
				if _, err := os.Stat(filepath.Join(target, name)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
