package power

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// tools are the programs that the driver runs and their dependencies.
func tools() []string {
	return []string{"mkfs.ext4", "e2fsck", "e2image", "resize2fs", "mkfs.xfs", "xfs_repair", "mkfs.btrfs", "umount"}
}

// format creates a file system in a sparse file on the host; in the guest it
// would take seconds.
func format(t *testing.T, fsType, path string, size int64) {
	t.Helper()
	f := testkit.Value(os.Create(path))(t)
	defer f.Close()
	testkit.Must(t, f.Truncate(size))
	run(t, "mkfs."+fsType, "-q", path)
}

// checkDisk checks the file system of a cleanly shut down guest.
func (m *machine) checkDisk(ctx context.Context) error {
	if err := m.drive.Close(); err != nil {
		return err
	}
	argv := []string{"e2fsck", "-n", "-f", m.path}
	if m.fsType == "xfs" {
		argv = []string{"xfs_repair", "-n", "-f", m.path}
	}
	if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%q found file system damage: %w\n%s", argv, err, out)
	}
	return nil
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}
