package mountns_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	os.Exit(m.Run())
}

// The program sees no mount of a loop device but that of TMPDIR, keeps other
// mounts, and none that it makes is seen here.
func TestRun(t *testing.T) {
	run := testkit.Build(t, "./test/testkit/mountns/run")
	loop, scratch, tmpfs := scratchfs.Mount(t, "ext4"), scratchfs.Mount(t, "ext4"), t.TempDir()
	testkit.Must(t, unix.Mount("test", tmpfs, "tmpfs", 0, ""))
	defer testkit.Unmount(t, tmpfs)
	own := t.TempDir()
	cmd := exec.Command(run, "/bin/sh", "-c", `mount -t tmpfs own "$1" && cat /proc/self/mountinfo`, "sh", own)
	cmd.Env = append(os.Environ(), "TMPDIR="+scratch)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for dir, want := range map[string]bool{loop: false, scratch: true, tmpfs: true, own: true} {
		if got := strings.Contains(string(out), " "+dir+" "); got != want {
			t.Errorf("mount at %s seen in the namespace: %t, want %t", filepath.Base(dir), got, want)
		}
	}
	if here := testkit.Value(os.ReadFile("/proc/self/mountinfo"))(t); bytes.Contains(here, []byte(" "+own+" ")) {
		t.Errorf("the mount of the program is seen outside")
	}
}
