package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/demo"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/spdk"
	testdriver "github.com/cleatproject/cleat/test/driver"
)

// beCleat makes the test binary be cleat, with a demo on which something goes
// wrong: its value says what.
const beCleat = "TEST_BE_CLEAT"

func TestMain(m *testing.M) {
	mishap, ok := os.LookupEnv(beCleat)
	switch {
	case len(os.Args) == 1 || strings.HasPrefix(os.Args[1], "-test."):
		os.Exit(m.Run())
	case ok && os.Args[1] == "demo":
		c := demoCommand(mishaps()[mishap])
		c.SetArgs(os.Args[2:])
		c.SilenceUsage, c.SilenceErrors = true, true
		exit(c.ExecuteContext(context.Background()))
	}
	// Whatever the program starts of itself (the driver, its freeze guards with
	// their empty environment) is never the tests again: that would breed.
	main()
}

// mishaps are what can go wrong after a step, seen from outside.
func mishaps() map[string]func(ctx context.Context, step, dir string) error {
	return map[string]func(context.Context, string, string) error{
		"a bit flips": after("stats", func(_ context.Context, dir string) error {
			return flipBit(filepath.Join(dir, "volumes", "data", "part-1", "file-04"))
		}),
		"the driver crashes":           after("stats", func(_ context.Context, dir string) error { return killed(dir, "driver") }),
		"the host crashes":             after("group", func(_ context.Context, dir string) error { return killed(dir, "host") }),
		"the DPU plugin crashes":       after("dpu-create", func(_ context.Context, dir string) error { return killed(dir, "plugin") }),
		"the double of SNAP crashes":   after("dpu-create", func(_ context.Context, dir string) error { return killed(dir, "double") }),
		"the SR-IOV plugin crashes":    after("sriov-enable", func(_ context.Context, dir string) error { return killed(dir, "sriovPlugin") }),
		"the SR-IOV daemon crashes":    after("sriov-hang", func(_ context.Context, dir string) error { return killed(dir, "sriovDaemon") }),
		"the double of a node crashes": after("sriov-pod", func(_ context.Context, dir string) error { return killed(dir, "node") }),
		"a person interrupts SR-IOV":   after("sriov-pod", interrupted),
		"it is killed while the SR-IOV daemon stands still": after("sriov-pod", func(_ context.Context, dir string) error {
			return errors.Join(signalled(dir, "sriovDaemon", unix.SIGSTOP), unix.Kill(os.Getpid(), unix.SIGKILL))
		}),
		"functions go behind all backs":   after("sriov-pod", goneFunctions),
		"a person interrupts":             after("clone", interrupted),
		"a person interrupts DPU devices": after("dpu-create", interrupted),
		"a mount is left": after("stop", func(ctx context.Context, dir string) error {
			at := filepath.Join(dir, "volumes", "data")
			if err := os.MkdirAll(at, 0o700); err != nil {
				return err
			}
			return mount.Bind(ctx, dir, at, mount.BindOptions{})
		}),
	}
}

func interrupted(ctx context.Context, _ string) error {
	if err := unix.Kill(os.Getpid(), unix.SIGINT); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// goneFunctions is somebody who takes the functions away without a word, under a
// pod that has two.
func goneFunctions(_ context.Context, dir string) error {
	return os.WriteFile(filepath.Join(dir, "sriov", "node", "sys", "bus", "pci", "devices", "0000:3b:00.0", "sriov_numvfs"), []byte("0"), 0)
}

func killed(dir, which string) error { return signalled(dir, which, unix.SIGKILL) }

func signalled(dir, which string, signal unix.Signal) error {
	text, err := os.ReadFile(filepath.Join(dir, "demo.json"))
	if err != nil {
		return err
	}
	var mark map[string]any
	if err := json.Unmarshal(text, &mark); err != nil {
		return err
	}
	pid, ok := mark[which].(float64)
	if !ok {
		return fmt.Errorf("demo.json names no %s: %s", which, text)
	}
	if err := unix.Kill(int(pid), signal); err != nil || signal != unix.SIGKILL {
		return err
	}
	for unix.Kill(int(pid), 0) == nil { // until the demo has seen it: the next step may not need it
		time.Sleep(time.Millisecond)
	}
	return nil
}

func after(name string, do func(context.Context, string) error) func(context.Context, string, string) error {
	return func(ctx context.Context, step, dir string) error {
		if step != name {
			return nil
		}
		return do(ctx, dir)
	}
}

// flipBit changes the file as it is on the disk.
func flipBit(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
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

// runDemo runs a cleat demo -o json in dir and returns its exit code and what
// it reported. What the demo leaves is swept away when the test ends.
func runDemo(t *testing.T, cleat, mishap, dir string, args ...string) (code int, report demo.Report, stderr string) {
	t.Helper()
	t.Cleanup(func() { testdriver.Sweep(t, dir) })
	cmd := exec.CommandContext(t.Context(), cleat, append([]string{"demo", "--dir", dir, "--size", "3GiB", "-o", "json"}, args...)...)
	cmd.Env = os.Environ()
	if mishap != "" {
		cmd.Env = append(cmd.Env, beCleat+"="+mishap)
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields()
	if err := d.Decode(&report); err != nil || d.More() {
		t.Fatalf("the report is not one JSON document: %v\n%s", err, said.String())
	}
	return cmd.ProcessState.ExitCode(), report, said.String()
}

// shortDir is a directory in which paths of sockets do not become too long,
// however long the test's name is.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "demo-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// checkGone wants no mount, loop device, process or file of the demo, but for
// the named files.
func checkGone(t *testing.T, dir string, but ...string) {
	t.Helper()
	testdriver.CheckNothingLeft(t, dir)
	entries, err := os.ReadDir(dir)
	if err != nil && !(len(but) == 0 && os.IsNotExist(err)) {
		t.Error(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if fmt.Sprint(names) != fmt.Sprint(but) {
		t.Errorf("files are left: %v, want %v", names, but)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		if line, err := os.ReadFile(path); err == nil && bytes.Contains(line, []byte(dir+"/")) {
			t.Errorf("a process is left: %q", line)
		}
	}
}

func TestDemoHoldsAndLeavesNothing(t *testing.T) {
	cleat := testdriver.Build(t)
	buildDouble(t, filepath.Join(filepath.Dir(cleat), "cleat-snap-double")) // where they are found
	buildNodeDouble(t, filepath.Join(filepath.Dir(cleat), "cleat-node-double"))
	dir := filepath.Join(shortDir(t), "demo")
	code, report, said := runDemo(t, cleat, "", dir)
	if code != 0 || !report.Held || report.Failure != nil || len(report.Left) > 0 {
		t.Fatalf("exit code %d, %+v, %+v\n%s", code, report, report.Failure, said)
	}
	if len(report.Steps) < 15 || len(report.Proved) < 8 || report.Driver == "" {
		t.Errorf("that is no whole demo: %+v", report)
	}
	for _, s := range report.Steps {
		if s.State != demo.Held || s.Proved == "" || s.Seconds <= 0 || !strings.Contains(said, s.Title) {
			t.Errorf("step %+v; progress was:\n%s", s, said)
		}
	}
	checkGone(t, dir)
	const against = "the test double of SNAP"
	if got, want := stepsAgainst(report, against), []string{"dpu-start", "dpu-create", "dpu-expose", "dpu-kill", "dpu-restart", "dpu-delete"}; !slices.Equal(got, want) {
		t.Errorf("the chapter on DPU devices has the steps %q, want %q", got, want)
	}
	if n := strings.Count(strings.Join(report.Proved, "\n"), "against "+against+": "); n < 4 || !strings.Contains(said, "DPU devices, against "+against) || report.LeftOut != "" {
		t.Errorf("the chapter on DPU devices should say that it is %s: %q, left out %q, progress:\n%s", against, report.Proved, report.LeftOut, said)
	}
	checkSRIOVChapter(t, report, said)
}

// checkSRIOVChapter wants the chapter on SR-IOV functions to be whole, and to say
// everywhere what it was walked against.
func checkSRIOVChapter(t *testing.T, report demo.Report, said string) {
	t.Helper()
	const against = "a machine of files and a double of the kubelet"
	want := []string{"sriov-check", "sriov-start", "sriov-enable", "sriov-pod", "sriov-kill", "sriov-hang", "sriov-kubelet", "sriov-change", "sriov-stop"}
	if got := stepsAgainst(report, against); !slices.Equal(got, want) {
		t.Errorf("the chapter on SR-IOV functions has the steps %q, want %q", got, want)
	}
	if n := strings.Count(strings.Join(report.Proved, "\n"), "against "+against+": "); n != len(want) || !strings.Contains(said, "SR-IOV functions, against "+against) {
		t.Errorf("the chapter on SR-IOV functions should say that it is against %s: %q, progress:\n%s", against, report.Proved, said)
	}
}

// stepsAgainst are the names of the steps that were walked against something.
func stepsAgainst(r demo.Report, what string) (names []string) {
	for _, s := range r.Steps {
		if s.Against == what {
			names = append(names, s.Name)
		}
	}
	return names
}

func buildDouble(t *testing.T, path string) {
	t.Helper()
	buildProgram(t, path, "./spdk/spdktest/double")
}

func buildNodeDouble(t *testing.T, path string) {
	t.Helper()
	buildProgram(t, path, "./sriov/plugin/plugintest/double")
}

func buildProgram(t *testing.T, path, source string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, source)
	cmd.Dir = testdriver.Root(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// snapProcess starts a double that stands in for a SNAP process which is there
// before the demo and after it.
func snapProcess(t *testing.T, double string) (socket string) {
	t.Helper()
	dir := shortDir(t)
	socket = filepath.Join(dir, "snap.sock")
	scene := filepath.Join(dir, "scene.json")
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
	if _, err := bufio.NewReader(said).ReadString('\n'); err != nil {
		t.Fatalf("the double has not started: %v", err)
	}
	return socket
}

// checkEmptySNAP wants a process to hold nothing.
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

func TestDemoInASNAPProcess(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	double := filepath.Join(t.TempDir(), "double")
	buildDouble(t, double)
	socket := snapProcess(t, double)
	there := []string{"--snap-socket", socket, "--snap-target", "192.0.2.77:4420,nqn.2026-01.example:theirs"}
	t.Run("holds", func(t *testing.T) {
		dir := filepath.Join(shortDir(t), "demo")
		code, report, said := runDemo(t, self, "nothing", dir, there...)
		if code != 0 || !report.Held {
			t.Fatalf("exit code %d, %+v, %+v\n%s", code, report, report.Failure, said)
		}
		against := "the SNAP process on " + socket
		if got, want := stepsAgainst(report, against), []string{"dpu-start", "dpu-create", "dpu-delete"}; !slices.Equal(got, want) {
			t.Errorf("in a SNAP process that is not the demo's the steps are %q, want %q", got, want)
		}
		if strings.Contains(said, "test double") || !strings.Contains(said, against) || !strings.Contains(said, "an NVMe namespace, a file, a directory") {
			t.Errorf("progress was:\n%s", said)
		}
		checkGone(t, dir)
		checkEmptySNAP(t, socket)
	})
	t.Run("fails and leaves nothing there", func(t *testing.T) {
		dir := filepath.Join(shortDir(t), "demo")
		code, report, said := runDemo(t, self, "the DPU plugin crashes", dir, there...)
		if code != 1 || report.Failure == nil || report.Failure.Step != "dpu-delete" || len(report.Left) > 0 {
			t.Errorf("exit code %d, %+v, %+v\n%s", code, report, report.Failure, said)
		}
		checkGone(t, dir, "cleat.log")
		checkEmptySNAP(t, socket)
	})
}

func TestDemoFailsWhenSomethingDoesNotHold(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	double := filepath.Join(t.TempDir(), "double")
	buildDouble(t, double)
	node := filepath.Join(t.TempDir(), "node")
	buildNodeDouble(t, node)
	for mishap, want := range map[string]struct{ step, word string }{
		"the DPU plugin crashes":          {"dpu-expose", "the DPU plugin ended unasked: signal: killed"},
		"the double of SNAP crashes":      {"dpu-expose", "the double of SNAP ended unasked: signal: killed"},
		"a person interrupts DPU devices": {"dpu-create", "interrupted"},
		"the SR-IOV plugin crashes":       {"sriov-pod", "the SR-IOV plugin ended unasked: signal: killed"},
		"the SR-IOV daemon crashes":       {"sriov-kubelet", "the SR-IOV daemon ended unasked: signal: killed"},
		"the double of a node crashes":    {"sriov-kill", "the double of a node ended unasked: signal: killed"},
		"a person interrupts SR-IOV":      {"sriov-pod", "interrupted"},
		"functions go behind all backs":   {"sriov-kill", "no virtual functions any more"},
		"a bit flips":                     {"restore", "file-04 does not hold what was written"},
		"the driver crashes":              {"snapshot", "the driver ended unasked: signal: killed"},
		"the host crashes":                {"health", "the host ended unasked: signal: killed"},
		"a mount is left":                 {"leave", "still holds"},
		"a person interrupts":             {"clone", "interrupted"},
	} {
		t.Run(mishap, func(t *testing.T) {
			dir := filepath.Join(shortDir(t), "demo")
			code, report, said := runDemo(t, self, mishap, dir, doubleOf(mishap, double, node)...)
			if code != 1 || report.Held || report.Failure == nil {
				t.Fatalf("exit code %d, %+v\n%s", code, report, said)
			}
			if report.Failure.Step != want.step || !strings.Contains(report.Failure.Error, want.word) {
				t.Errorf("failed at %s with %q, want at %s with %q", report.Failure.Step, report.Failure.Error, want.step, want.word)
			}
			if report.Failure.Interrupted {
				checkGone(t, dir)
				return
			}
			if len(report.Failure.Lines) == 0 || report.Failure.Log != filepath.Join(dir, "cleat.log") {
				t.Errorf("the log is missing: %+v", report.Failure)
			}
			checkGone(t, dir, "cleat.log")
		})
	}
}

func TestDemoKeepsAndRemoves(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() // which was there before, and stays
	remove := func() (string, error) {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), self, "demo", "--remove", dir)
		cmd.Env = append(os.Environ(), beCleat+"=nothing")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	code, report, said := runDemo(t, self, "nothing", dir, "--keep")
	t.Cleanup(func() { _, _ = remove() }) // no directory of a demo any more when all went well
	if code != 0 || !report.Held || report.Kept == nil {
		t.Fatalf("exit code %d, %+v\n%s", code, report, said)
	}
	// There are no doubles beside the tests.
	for _, missing := range []string{"there is no test double of SNAP at", "there is no double of a node at"} {
		if !strings.Contains(report.LeftOut, missing) || !strings.Contains(said, report.LeftOut+"\n") {
			t.Errorf("it should say in a line that a chapter is left out, since %s: %q\n%s", missing, report.LeftOut, said)
		}
	}
	for _, name := range []string{"data", "logs", "logs-copy", "restored", "raw"} {
		if _, mounted, err := mount.At(t.Context(), filepath.Join(dir, "volumes", name)); err != nil || !mounted {
			t.Errorf("volume %s is attached: %v, %v", name, mounted, err)
		}
	}
	for _, pid := range []int{report.Kept.PID, report.Kept.HostPID} {
		if err := unix.Kill(pid, 0); pid == 0 || err != nil {
			t.Errorf("process %d should run: %v", pid, err)
		}
	}
	byName := exec.CommandContext(t.Context(), self, "volume", "list", "--driver", report.Kept.Driver, "--host", report.Kept.Host, "--state-dir", report.Kept.StateDir)
	if out, err := byName.CombinedOutput(); err != nil || !bytes.Contains(out, []byte(filepath.Join(dir, "volumes", "logs"))) {
		t.Errorf("the driver by its name: %v: %s", err, out)
	}
	if out, err := remove(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	checkGone(t, dir)
	if out, err := remove(); err == nil || !strings.Contains(out, "no directory that cleat demo --keep has left") {
		t.Errorf("a second time: %v, %q", err, out)
	}
}

func TestDemoRefusesWrongWords(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-o", "xml"}, "use text or json"},
		{[]string{"--size", "1GiB"}, "at least 2 GiB"},
		{[]string{"--size", "1GiBB"}, "--size"},
		{[]string{"--dir", "/proc"}, "not empty"},
		{[]string{"--keep", "--remove", "/x"}, "keep remove"},
		{[]string{"more"}, "more"},
		{[]string{"--snap-double", "/absent"}, "--snap-double /absent"},
		{[]string{"--node-double", "/absent"}, "--node-double /absent"},
		{[]string{"--snap-target", "192.0.2.1:4420,nqn.2024-01.com.example:v"}, "--snap-socket"},
		{[]string{"--snap-socket", "/absent", "--snap-target", "192.0.2.1:4420"}, "write ADDRESS:PORT,NQN"},
		{[]string{"--snap-socket", "/absent", "--snap-double", "/absent"}, "snap-double snap-socket"},
	} {
		cmd := newDemoCommand()
		cmd.SetArgs(c.args)
		cmd.SetOut(new(bytes.Buffer))
		cmd.SetErr(new(bytes.Buffer))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want an error with %q", c.args, err, c.want)
		}
	}
}

// doubleOf is the flag for the double that a mishap needs: a chapter that comes
// before it would only take time.
func doubleOf(mishap, snap, node string) []string {
	switch {
	case strings.Contains(mishap, "SR-IOV"), strings.Contains(mishap, "node"), strings.Contains(mishap, "functions"):
		return []string{"--node-double", node}
	case strings.Contains(mishap, "DPU"), strings.Contains(mishap, "SNAP"):
		return []string{"--snap-double", snap}
	}
	return nil
}

func TestDemoKilledWithSRIOVIsRemoved(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(t.TempDir(), "node")
	buildNodeDouble(t, node)
	dir := filepath.Join(shortDir(t), "demo")
	t.Cleanup(func() { testdriver.Sweep(t, dir) })
	cmd := exec.CommandContext(t.Context(), self, "demo", "--dir", dir, "--size", "3GiB", "-o", "json", "--node-double", node)
	cmd.Env = append(os.Environ(), beCleat+"=it is killed while the SR-IOV daemon stands still")
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Fatalf("the demo should have been killed: %v\n%s", err, said.String())
	}
	remove := exec.CommandContext(t.Context(), self, "demo", "--remove", dir)
	remove.Env = append(os.Environ(), beCleat+"=nothing")
	if out, err := remove.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	checkGone(t, dir)
}
