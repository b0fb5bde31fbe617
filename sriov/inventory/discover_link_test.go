package inventory

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
	"github.com/cleatproject/cleat/test/testkit"
)

// The links in /proc/PID/ns of a process with more capabilities can be listed, but
// not read.
func TestUnreadableLink(t *testing.T) {
	process := exec.CommandContext(t.Context(), "sleep", "infinity")
	testkit.Must(t, process.Start())
	t.Cleanup(func() { _ = process.Wait() }) // after the end of the context
	dir := t.TempDir()
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "class"), 0o755),
		os.Symlink(fmt.Sprintf("/proc/%d/ns", process.Process.Pid), filepath.Join(dir, "class", "net")))
	s := scan{root: testkit.Value(sysfs.Open(dir))(t)}
	defer s.root.Close()
	testkit.WithoutCapabilities(t, func() {
		s.eachDevice("class/net", 2, func(_ sysfs.Dir, name string, _ devicePath) { t.Errorf("%s was read", name) })
	})
	if len(s.problems) == 0 || s.problems[0].What != "class/net" || !errors.Is(s.problems[0].Err, unix.EACCES) {
		t.Errorf("problems %v, want that of a link that cannot be read", s.problems)
	}
}
