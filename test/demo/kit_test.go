package demo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
)

// programs is the directory of the demo, cleat and the doubles.
type programs string

var built struct {
	once sync.Once
	dir  programs
	err  error
}

func TestMain(m *testing.M) {
	kernelcall.Main()
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(string(built.dir))
	}
	os.Exit(code)
}

// build builds the programs once for all tests.
func build(t *testing.T) programs {
	t.Helper()
	b := &built
	b.once.Do(func() {
		dir, err := os.MkdirTemp("", "demo-programs-")
		if b.dir, b.err = programs(dir), err; err != nil {
			return
		}
		for name, source := range map[string]string{
			"cleat": "cmd/cleat", "cleat-demo": "demo", "cleat-snap-double": "spdk/spdktest/double", "cleat-node-double": "sriov/plugin/plugintest/double",
		} {
			b.err = errors.Join(b.err, testkit.BuildTo(t.Context(), filepath.Join(dir, name), "./"+source))
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.dir
}

// without returns a copy of the programs without one of them.
func (p programs) without(t *testing.T, name string) programs {
	t.Helper()
	other := testkit.Value(os.MkdirTemp(string(p), ""))(t)
	for _, one := range []string{"cleat", "cleat-demo", "cleat-snap-double", "cleat-node-double"} {
		if one == name {
			continue
		}
		testkit.Must(t, os.Link(filepath.Join(string(p), one), filepath.Join(other, one)))
	}
	return programs(other)
}

func (p programs) command(name string, args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(string(p), name), args...)
}

// report is the output of --output json.
type report struct {
	Held, Kept    bool
	LeftOut, Left []string
	Failure       *struct {
		Step, Error, Log string
		Interrupted      bool
		LogLines         []string
	}
}

// running is a demo that pauses after each step.
type running struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.Writer
	lines  []string // of progress
	next   chan string
	result bytes.Buffer
	code   int
}

func (p programs) start(t *testing.T, d directory, args ...string) *running {
	t.Helper()
	r := &running{t: t, next: make(chan string)}
	r.cmd = p.command("cleat-demo", append([]string{"--dir", string(d), "--size", "3GiB", "--pause", "-o", "json"}, args...)...)
	r.cmd.Stdout = &r.result
	r.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	var err error
	r.in = testkit.Value(r.cmd.StdinPipe())(t)
	progress, err := r.cmd.StderrPipe()
	if err == nil {
		err = r.cmd.Start()
	}
	testkit.Must(t, err)
	ended := make(chan struct{})
	t.Cleanup(func() {
		close(ended)
		_ = r.cmd.Process.Signal(unix.SIGTERM) // if a test failed
		_, _ = r.cmd.Process.Wait()
	})
	go func() {
		defer close(r.next)
		for lines := bufio.NewScanner(progress); lines.Scan(); {
			select {
			case r.next <- lines.Text():
			case <-ended:
			}
		}
	}()
	return r
}

// runUntil resumes the demo until the pause after a step.
func (r *running) runUntil(title string) {
	r.t.Helper()
	for line := range r.next {
		r.lines = append(r.lines, line)
		if strings.Contains(line, "  "+title+"  ") {
			return
		}
		r.resume(line)
	}
	r.t.Fatalf("no step %q:\n%s", title, strings.Join(r.lines, "\n"))
}

// resume ends the pause after a step.
func (r *running) resume(line string) {
	number, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	if _, err := strconv.Atoi(number); err == nil {
		_, _ = io.WriteString(r.in, "\n") // fails if the demo has ended
	}
}

// finish resumes the demo to its end and returns its report.
func (r *running) finish() report {
	r.t.Helper()
	_, _ = io.WriteString(r.in, "\n")
	return r.end()
}

// interrupt interrupts the demo in a pause, which this ends.
func (r *running) interrupt() report {
	r.t.Helper()
	r.signal(unix.SIGINT)
	return r.end()
}

func (r *running) end() (out report) {
	r.t.Helper()
	for line := range r.next {
		r.lines = append(r.lines, line)
		r.resume(line)
	}
	r.wait()
	if err := json.Unmarshal(r.result.Bytes(), &out); err != nil {
		r.t.Fatalf("%v: %s\n%s", err, r.result.Bytes(), strings.Join(r.lines, "\n"))
	}
	if out.Held != (r.code == 0) {
		r.t.Errorf("exit code %d of %+v", r.code, out)
	}
	return out
}

func (r *running) signal(s unix.Signal) {
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Error(err)
	}
}

func (r *running) wait() {
	for range r.next {
	}
	_ = r.cmd.Wait()
	r.code = r.cmd.ProcessState.ExitCode()
}

// directory is the working directory of one demo.
type directory string

func (d directory) path(name string) string { return filepath.Join(string(d), name) }

// newDirectory creates a directory with a path short enough for sockets.
func newDirectory(t *testing.T) directory {
	t.Helper()
	dir := testkit.Value(os.MkdirTemp("", "demo-"))(t)
	t.Cleanup(func() {
		driver.Sweep(t, dir)
		_ = os.RemoveAll(dir)
	})
	return directory(dir)
}

// checkEmpty fails if a mount, loop device, process or file of the demo is left,
// except for the files in but.
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
	if left := d.processes(); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// processes returns the processes with these first arguments and a path in the
// directory in any argument.
func (d directory) processes(args ...string) (pids []int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		line, _ := os.ReadFile(path)
		first := strings.Join(append(args, ""), "\x00")
		if strings.HasPrefix(string(line), first) && bytes.Contains(line, []byte(string(d)+"/")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

func (d directory) signal(s unix.Signal, args ...string) error {
	pids := d.processes(args...)
	if len(pids) != 1 {
		return fmt.Errorf("%d processes %q in %s, want one", len(pids), args, d)
	}
	return unix.Kill(pids[0], s)
}

// killed kills a process of the demo and waits until it has ended.
func killed(args ...string) func(programs, directory) error {
	return func(_ programs, d directory) error {
		if err := d.signal(unix.SIGKILL, args...); err != nil {
			return err
		}
		for len(d.processes(args...)) > 0 {
			time.Sleep(time.Millisecond) // until the demo reaps the process
		}
		return nil
	}
}

// flipBit flips a bit in a file of a volume.
func flipBit(_ programs, d directory) error {
	f, err := os.OpenFile(d.path("volumes/data/part-1/file-04"), os.O_RDWR, 0)
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

// unfenced removes the fence of the demo.
func unfenced(p programs, d directory) error {
	out, err := p.command("cleat", "fence", "rm", "192.0.2.2", "--endpoint", d.path("fence/run/fence.sock")).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// snapProcess starts a double of SNAP that outlives the demo.
func (p programs) snapProcess(t *testing.T) (socket string) {
	t.Helper()
	dir := newDirectory(t)
	socket = dir.path("snap.sock")
	scene := dir.path("scene.json")
	testkit.Must(t, os.WriteFile(scene, []byte(`{"subsystems": [{"nqn": "nqn.2026-01.example:theirs", "addresses": ["TCP,192.0.2.77,4420"],
		"namespaces": [{"nsid": 1, "uuid": "e33a8f79-5f83-40cc-b7d5-cc0aab47b95d", "bytes": 1048576}]}]}`), 0o600))
	cmd := p.command("cleat-snap-double", "-socket", socket, "-quick", "-scene", scene)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	output := testkit.Value(cmd.StdoutPipe())(t)
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(unix.SIGTERM), cmd.Wait()); err != nil {
			t.Errorf("the double: %v", err)
		}
	})
	if !bufio.NewScanner(output).Scan() { // the first line is printed when it listens
		t.Fatal("the double of SNAP did not start")
	}
	go func() { _, _ = io.Copy(io.Discard, output) }()
	return socket
}

// checkEmptySNAP fails if a SNAP process has any object.
func checkEmptySNAP(t *testing.T, socket string) {
	t.Helper()
	c := testkit.Value(spdk.Open(spdk.Config{Socket: socket}))(t)
	defer c.Close()
	bdevs, err := c.Bdevs(t.Context())
	controllers, controllersErr := c.NVMeControllers(t.Context())
	if err := errors.Join(err, controllersErr); err != nil || len(bdevs)+len(controllers) > 0 {
		t.Errorf("SNAP is left with %+v and %+v: %v", bdevs, controllers, err)
	}
}
