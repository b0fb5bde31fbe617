//go:build soak

package smoke

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"fmt"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
)

const mib = 1 << 20

func rawDisk(t *testing.T, size int64) vm.File {
	t.Helper()
	d := testkit.Value(vm.RawFile(filepath.Join(t.TempDir(), "disk"), size))(t)
	return d
}

func run(t *testing.T, g *vm.Guest, argv ...string) string {
	t.Helper()
	out := testkit.Value(g.Run(t.Context(), argv...))(t)
	return strings.TrimSpace(out)
}

// eventually runs a program until its output is want.
func eventually(t *testing.T, g *vm.Guest, want string, argv ...string) {
	t.Helper()
	testkit.EventuallyNil(t, fmt.Sprint(argv), func() error {
		if got := run(t, g, argv...); got != want {
			return fmt.Errorf("output %q, want %q", got, want)
		}
		return nil
	})
}

// TestGuest boots one guest for all subtests, and again to verify that its disk
// kept the data. The second one panics.
func TestGuest(t *testing.T) {
	t.Parallel()
	spec := vm.Spec{Disks: []vm.Disk{rawDisk(t, 400*mib)}, Modules: []string{"xfs"}, Tools: image.Filesystems()}
	g := vm.Boot(t, spec)
	t.Run("processes", func(t *testing.T) { testProcesses(t, g) })
	t.Run("orphans", func(t *testing.T) {
		run(t, g, "sh", "-c", "(sleep 0.2 &)")
		eventually(t, g, "0", "sh", "-c", "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l")
	})
	if clock := run(t, g, "cat", "/sys/devices/system/clocksource/clocksource0/current_clocksource"); clock != "hpet" {
		t.Errorf("the guest's clock is %s, want hpet: others are measured, wrongly beside a busy machine", clock)
	}
	t.Run("files", func(t *testing.T) { testFiles(t, g) })
	t.Run("sockets", func(t *testing.T) { testSockets(t, g) })
	t.Run("random numbers", func(t *testing.T) {
		if got := run(t, g, "cat", "/sys/class/misc/hw_random/rng_current"); got != "virtio_rng.0" {
			t.Errorf("got random number source %q", got)
		}
	})
	t.Run("short-lived programs", func(t *testing.T) { testShortPrograms(t, g) })
	t.Run("go test", func(t *testing.T) { vm.GoTest(t, g, "./test/vm/wire", "-test.run=TestInvalidRequestsAreRejected|Fuzz") })
	run(t, g, "mkfs.xfs", "-q", "/dev/vda")
	run(t, g, "mount", "/dev/vda", "/mnt")
	testkit.Must(t, g.WriteFile(t.Context(), "/mnt/dir/file", []byte("kept"), 0o600))
	testkit.Must(t, g.Shutdown(t.Context()))
	if _, err := g.Run(t.Context(), "true"); err == nil {
		t.Error("a powered-off guest ran a program")
	}

	g = vm.Boot(t, spec)
	run(t, g, "xfs_repair", "-n", "/dev/vda")
	run(t, g, "mount", "/dev/vda", "/mnt")
	if got, err := g.ReadFile(t.Context(), "/mnt/dir/file"); string(got) != "kept" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if strings.Contains(run(t, g, "dmesg"), "Starting recovery") {
		t.Error("the file system was not unmounted by the shutdown")
	}
	// The disk can be resized while the guest runs.
	resize := map[string]any{"node-name": vm.DiskNode(0), "size": 500 * mib}
	testkit.Value(g.Monitor(t.Context(), "block_resize", resize))(t)
	eventually(t, g, "1024000", "cat", "/sys/block/vda/size")
	_, err := g.Run(t.Context(), "sh", "-c", "echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger; sleep 100")
	if err == nil || !strings.Contains(err.Error(), "sysrq triggered crash") {
		t.Errorf("the error after a panic lacks the console: %v", err)
	}
	testkit.Must(t, g.Close())
	if console := g.Console(); strings.HasPrefix(console, "no console") {
		t.Errorf("console after Close: got %q", console)
	}
}

// The exit status of a program that exits without reading its input is
// reported.
func testShortPrograms(t *testing.T, g *vm.Guest) {
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for n := range 50 {
				if out, err := g.Exec(t.Context(), vm.Command{Argv: []string{"echo", "done"}, Stdin: make([]byte, n<<10)}); err != nil || out != "done\n" {
					t.Errorf("program with %d KiB of unread input: got output %q, error %v", n, out, err)
				}
			}
		})
	}
	all.Wait()
}

func testProcesses(t *testing.T, g *vm.Guest) {
	out, err := g.Exec(t.Context(), vm.Command{
		Argv: []string{"sh", "-c", "cat; echo $NAME; pwd; echo no >&2; exit 3"}, Env: []string{"NAME=value"}, Dir: "/run", Stdin: []byte("in\n"),
	})
	var exit *vm.ExitError
	if out != "in\nvalue\n/run\n" || !errors.As(err, &exit) || exit.Code != 3 || !strings.Contains(exit.Output, "no\n") {
		t.Errorf("got output %q, error %v", out, err)
	}
	if _, err := g.Run(t.Context(), "no-such-program"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("missing program: got %v", err)
	}
	p := testkit.Value(g.Start(t.Context(), vm.Command{Argv: []string{"sh", "-c", "sleep 1000 & echo $!; wait"}}))(t)
	testkit.Must(t, p.Kill(t.Context()))
	if err := p.Err(); !errors.As(err, &exit) || exit.Signal != syscall.SIGKILL {
		t.Errorf("killed process: got %v", err)
	}
	eventually(t, g, "0", "sh", "-c", "pgrep -f ^sleep.1000$ | wc -l") // its child is in the same process group
	// A daemon that keeps the output open does not block Run.
	run(t, g, "sh", "-c", "sleep 10 & exit 0")
}

func testFiles(t *testing.T, g *vm.Guest) {
	dir := t.TempDir()
	there, back := filepath.Join(dir, "there"), filepath.Join(dir, "back")
	data := make([]byte, 3*mib+1)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	testkit.Must(t, os.WriteFile(there, data, 0o644))
	testkit.Must(t, g.Push(t.Context(), there, "/run/a/b", 0o751))
	if got := run(t, g, "stat", "-c", "%a %s", "/run/a/b"); got != "751 3145729" {
		t.Errorf("got mode and size %s", got)
	}
	testkit.Must(t, g.Pull(t.Context(), "/run/a/b", back))
	if got, err := os.ReadFile(back); string(got) != string(data) || err != nil {
		t.Errorf("pull: got %d bytes, want the %d pushed ones: %v", len(got), len(data), err)
	}
	if _, err := g.ReadFile(t.Context(), "/run/a"); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("pull of a directory: got %v", err)
	}
	if err := g.WriteFile(t.Context(), "/run/a/b/c", nil, 0o600); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("push below a regular file: got %v", err)
	}
}

// Both directions of a connection carry data, and closing one direction reaches
// the peer.
func testSockets(t *testing.T, g *vm.Guest) {
	testkit.Value(g.Start(t.Context(), vm.Command{Argv: []string{"nc", "-l", "-p", "7000", "-e", "wc", "-c"}}))(t)
	eventually(t, g, "1", "sh", "-c", "netstat -ltn | grep -c :7000")
	conn := testkit.Value(g.Dial(t.Context(), "tcp", "127.0.0.1:7000"))(t)
	defer conn.Close()
	testkit.Value(conn.Write(make([]byte, 12345)))(t)
	testkit.Must(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	if got, err := io.ReadAll(conn); strings.TrimSpace(string(got)) != "12345" || err != nil {
		t.Errorf("the guest counted %q bytes, error %v", got, err)
	}
	if conn, err := g.Dial(t.Context(), "unix", "/run/none.sock"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("missing socket: got %v, %v", conn, err)
	}
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	testkit.Must(t, err)
	var accepted sync.WaitGroup
	accepted.Go(func() {
		conn, err := listener.Accept()
		if err != nil {
			return // the guest did not connect
		}
		if _, err := io.WriteString(conn, "from the host"); err != nil {
			t.Error(err)
		}
		conn.Close()
	})
	if got := run(t, g, "nc", "10.0.2.2", port); got != "from the host" {
		t.Errorf("the guest received %q", got)
	}
	listener.Close()
	accepted.Wait()
}
