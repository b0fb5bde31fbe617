package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/demo"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/volume/access"
)

// programs are the paths of cleat and of the doubles of SNAP and of a node.
type programs struct{ cleat, snap, node string }

var built struct {
	once sync.Once
	dir  string
	programs
	err error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// build builds the programs, once for all tests.
func build(t *testing.T) programs {
	t.Helper()
	b := &built
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "demo-programs-"); b.err != nil {
			return
		}
		for path, source := range map[*string]string{&b.cleat: "cmd/cleat", &b.snap: "spdk/spdktest/double", &b.node: "sriov/plugin/plugintest/double"} {
			*path = filepath.Join(b.dir, strings.ReplaceAll(source, "/", "-"))
			cmd := exec.Command("go", "build", "-o", *path, "./"+source)
			cmd.Dir = driver.Root(t)
			if out, err := cmd.CombinedOutput(); err != nil {
				b.err = errors.Join(b.err, fmt.Errorf("go build ./%s: %w: %s", source, err, out))
			}
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.programs
}

func (b programs) config(d directory) demo.Config {
	return demo.Config{Program: b.cleat, Dir: string(d), Size: 3 << 30}
}

func (b programs) command(args ...string) *exec.Cmd { return exec.Command(b.cleat, args...) }

// directory is where one demo works.
type directory string

// path is a file below it.
func (d directory) path(name string) string { return filepath.Join(string(d), name) }

// newDirectory makes a directory whose path is short, since it holds sockets,
// and unmounts what a failed demo leaves there.
func newDirectory(t *testing.T) directory {
	t.Helper()
	dir, err := os.MkdirTemp("", "demo-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		driver.Sweep(t, dir)
		_ = os.RemoveAll(dir)
	})
	return directory(dir)
}

// checkEmpty fails when a mount, a loop device, a process or a file of the demo
// is left, but for the named files.
func (d directory) checkEmpty(t *testing.T, but ...string) {
	t.Helper()
	driver.CheckNothingLeft(t, string(d))
	entries, err := os.ReadDir(string(d))
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, but) {
		t.Errorf("files are left: %v, want %v", names, but)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		if line, err := os.ReadFile(path); err == nil && bytes.Contains(line, []byte(string(d)+"/")) {
			t.Errorf("a process is left: %q", line)
		}
	}
}

// killed kills a process of the demo, by its name in demo.json, and waits until
// it has ended.
func killed(process string) func(directory) error {
	return func(d directory) error {
		pid, err := d.pid(process)
		if err == nil {
			err = unix.Kill(pid, unix.SIGKILL)
		}
		for err == nil {
			if err = unix.Kill(pid, 0); err == nil {
				time.Sleep(time.Millisecond) // the demo reaps it
			}
		}
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return err
	}
}

func (d directory) signal(process string, s unix.Signal) error {
	pid, err := d.pid(process)
	if err != nil {
		return err
	}
	return unix.Kill(pid, s)
}

func (d directory) pid(process string) (int, error) {
	text, err := os.ReadFile(d.path("demo.json"))
	if err != nil {
		return 0, err
	}
	var processes map[string]any
	if err := json.Unmarshal(text, &processes); err != nil {
		return 0, err
	}
	pid, ok := processes[process].(float64)
	if !ok {
		return 0, fmt.Errorf("demo.json names no %s: %s", process, text)
	}
	return int(pid), nil
}

// flipBit changes a file as it is on the disk.
func (d directory) flipBit(name string) error {
	f, err := os.OpenFile(d.path(name), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	var b [1]byte
	_, err = f.ReadAt(b[:], 4321)
	if err == nil {
		_, err = f.WriteAt([]byte{b[0] ^ 4}, 4321)
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// mountAgain mounts the directory on the target of a volume.
func (d directory) mountAgain() error {
	at := d.path("volumes/data")
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	return mount.Bind(context.Background(), string(d), at, mount.BindOptions{})
}

// waitForLine reads until a line holds the text, and lets the rest be read.
func waitForLine(t *testing.T, r io.Reader, text string) {
	t.Helper()
	lines := bufio.NewScanner(r)
	var all []string
	for lines.Scan() {
		all = append(all, lines.Text())
		if strings.Contains(lines.Text(), text) {
			go func() { _, _ = io.Copy(io.Discard, r) }() // until the process ends
			return
		}
	}
	t.Fatalf("no line with %q: %v\n%s", text, lines.Err(), strings.Join(all, "\n"))
}

// target is the subsystem that snapProcess offers.
func target() *access.NVMe {
	return &access.NVMe{Transport: "tcp", Paths: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.77:4420")}, NQN: "nqn.2026-01.example:theirs"}
}

// snapProcess starts a double that stands in for a SNAP process which runs
// before the demo and after it.
func snapProcess(t *testing.T, double string) (socket string) {
	t.Helper()
	dir := newDirectory(t)
	socket = dir.path("snap.sock")
	scene := dir.path("scene.json")
	if err := os.WriteFile(scene, []byte(`{"subsystems": [{"nqn": "nqn.2026-01.example:theirs", "addresses": ["TCP,192.0.2.77,4420"],
		"namespaces": [{"nsid": 1, "uuid": "e33a8f79-5f83-40cc-b7d5-cc0aab47b95d", "bytes": 1048576}]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(double, "-socket", socket, "-quick", "-scene", scene)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(unix.SIGTERM), cmd.Wait()); err != nil {
			t.Errorf("the double: %v", err)
		}
	})
	waitForLine(t, said, "")
	return socket
}

// checkEmptySNAP fails when a process of SNAP holds anything.
func checkEmptySNAP(t *testing.T, socket string) {
	t.Helper()
	c, err := spdk.Open(spdk.Config{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	bdevs, err := c.Bdevs(t.Context())
	controllers, controllersErr := c.NVMeControllers(t.Context())
	if err := errors.Join(err, controllersErr); err != nil || len(bdevs)+len(controllers) > 0 {
		t.Errorf("SNAP is left with %+v and %+v: %v", bdevs, controllers, err)
	}
}
