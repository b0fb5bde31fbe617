// Package smoke boots real guests and holds the harness to what it promises.
package smoke

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

func rawDisk(t *testing.T, size int64) vm.File {
	t.Helper()
	d, err := vm.RawFile(filepath.Join(t.TempDir(), "disk"), size)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func run(t *testing.T, g *vm.Guest, argv ...string) string {
	t.Helper()
	out, err := g.Run(t.Context(), argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What a guest wrote before it went down is there when it comes up again.
func TestDiskSurvivesShutdown(t *testing.T) {
	spec := vm.Spec{Disks: []vm.Disk{rawDisk(t, 400*mib)}, Modules: []string{"xfs"}, Tools: image.Filesystems()}
	g := vm.Boot(t, spec)
	run(t, g, "mkfs.xfs", "-q", "/dev/vda")
	run(t, g, "mount", "/dev/vda", "/mnt")
	if err := g.WriteFile(t.Context(), "/mnt/dir/file", []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Run(t.Context(), "true"); err == nil {
		t.Error("a guest that is down ran a program")
	}

	g = vm.Boot(t, spec)
	run(t, g, "xfs_repair", "-n", "/dev/vda")
	run(t, g, "mount", "/dev/vda", "/mnt")
	if got, err := g.ReadFile(t.Context(), "/mnt/dir/file"); string(got) != "kept" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if out := run(t, g, "dmesg"); strings.Contains(out, "Starting recovery") {
		t.Error("the file system was not unmounted by the shutdown")
	}
}

func TestProcesses(t *testing.T) {
	g := vm.Boot(t, vm.Spec{})
	out, err := g.Exec(t.Context(), vm.Command{Argv: []string{"sh", "-c", "cat; echo $NAME; pwd; echo no >&2; exit 3"}, Env: []string{"NAME=value"}, Dir: "/run", Stdin: []byte("in\n")})
	var exit *vm.ExitError
	if out != "in\nvalue\n/run\n" || !errors.As(err, &exit) || exit.Code != 3 || !strings.Contains(exit.Output, "no\n") {
		t.Errorf("printed %q, ended with %v", out, err)
	}
	if _, err := g.Run(t.Context(), "no-such-program"); err == nil || errors.As(err, &exit) && exit.Code != 3 {
		t.Errorf("a program that is not there: %v", err)
	}
	p, err := g.Start(t.Context(), vm.Command{Argv: []string{"sh", "-c", "sleep 1000 & echo $!; wait"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Err(); !errors.As(err, &exit) || exit.Signal != syscall.SIGKILL {
		t.Errorf("a killed process: %v", err)
	}
}
