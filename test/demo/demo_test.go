// Package demo tests that the demo detects and reports faults, and cleans up. It
// runs the built program and pauses it after a step to inject a fault. A demo
// without faults is `make demo`.
package demo

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// fault is injected after one step and must fail another.
type fault struct {
	name    string
	chapter string
	after   string                              // title of the step before the fault
	inject  func(p programs, d directory) error // nil: the user interrupts the demo
	step    string                              // name of the step that fails
	message string
}

// faults lists the inCI faults that CI runs first. The others repeat them in each
// chapter.
func faults() []fault {
	return []fault{
		{"bit flip", "volumes", "create, attach, write", flipBit, "restore", "file-04 differs from the written data"},
		{"interrupt", "volumes", "clone logs", nil, "blocks", "interrupted"},
		{"fence removed", "fence", "fence a client", unfenced, "fence-kill", "arrived after the fence was answered"},

		{"driver crash", "volumes", "create, attach, write", killed("cleat", "csi"), "expand", "the driver ended unexpectedly: signal: killed"},
		{"left-over mount", "volumes", "stop driver and host", mountAgain, "leave", "is left after all volumes were detached"},
		{"host crash", "volumes", "clone logs", killed("cleat", "host"), "blocks", "the host ended unexpectedly: signal: killed"},
		{"fence service crash", "fence", "fence a client", killed("cleat", "fence"), "fence-kill", "the fence service ended unexpectedly: signal: killed"},
		{"interrupt of fencing", "fence", "fence a client", nil, "fence-kill", "interrupted"},
		{"DPU plugin crash", "dpu", "create DPU devices", killed("cleat", "dpu"), "dpu-expose", "the DPU plugin ended unexpectedly: signal: killed"},
		{"SNAP double crash", "dpu", "create DPU devices", killed("cleat-snap-double"), "dpu-expose", "the double of SNAP ended unexpectedly: signal: killed"},
		{"interrupt of DPU devices", "dpu", "create DPU devices", nil, "dpu-expose", "interrupted"},
		{"SR-IOV plugin crash", "sriov", "start the SR-IOV daemon", killed("cleat", "sriov", "plugin"), "sriov-pod", "the SR-IOV plugin ended unexpectedly: signal: killed"},
		{"SR-IOV daemon crash", "sriov", "suspend the SR-IOV daemon", killed("cleat", "sriov", "daemon"), "sriov-kubelet", "the SR-IOV daemon ended unexpectedly: signal: killed"},
		{"node double crash", "sriov", "give a pod two functions", killed("cleat-node-double"), "sriov-kill", "the double of a node ended unexpectedly: signal: killed"},
		{"interrupt of SR-IOV", "sriov", "give a pod two functions", nil, "sriov-kill", "interrupted"},
		{"functions of a pod removed", "sriov", "give a pod two functions", func(_ programs, d directory) error {
			return os.WriteFile(d.path("sriov/node/sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs"), []byte("0"), 0)
		}, "sriov-kill", "no virtual functions any more"},
	}
}

const inCI = 3

func TestDemoDetectsFault(t *testing.T) {
	p := build(t)
	for _, f := range soak.Pick(inCI, faults()) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			dir := newDirectory(t)
			d := p.start(t, dir, "--chapters", f.chapter)
			d.runUntil(f.after)
			end := d.interrupt
			if f.inject != nil {
				testkit.Must(t, f.inject(p, dir))
				end = d.finish
			}
			r := end()
			if d.code == 0 || r.Held || r.Failure == nil {
				t.Fatalf("exit code %d, %+v", d.code, r)
			}
			if r.Failure.Step != f.step || !strings.Contains(r.Failure.Error, f.message) {
				t.Errorf("failed at %s with %q, want at %s with %q", r.Failure.Step, r.Failure.Error, f.step, f.message)
			}
			if len(r.Left) > 0 {
				t.Errorf("not cleaned up: %q", r.Left)
			}
			if r.Failure.Interrupted {
				dir.checkEmpty(t)
				return
			}
			if len(r.Failure.LogLines) == 0 || r.Failure.Log != dir.path("cleat.log") {
				t.Errorf("the log is missing: %+v", r.Failure)
			}
			dir.checkEmpty(t, "cleat.log")
		})
	}
}

func TestKeepAndRemove(t *testing.T) {
	t.Parallel()
	p, dir := build(t).without(t, "cleat-snap-double"), newDirectory(t)
	d := p.start(t, dir, "--keep", "--chapters", "volumes,dpu")
	r := d.finish()
	if d.code != 0 || !r.Held || !r.Kept {
		t.Fatalf("exit code %d, %+v", d.code, r)
	}
	if len(r.LeftOut) != 1 || !strings.Contains(r.LeftOut[0], "no test double of SNAP") || !slices.Contains(d.lines, r.LeftOut[0]) {
		t.Errorf("got left-out chapters %q and output %q, want the reason in both", r.LeftOut, d.lines)
	}
	for _, name := range []string{"data", "logs", "logs-copy", "restored", "raw"} {
		if _, mounted, err := mount.At(t.Context(), dir.path("volumes/"+name)); err != nil || !mounted {
			t.Errorf("volume %s is not attached: %v, %v", name, mounted, err)
		}
	}
	at := []string{"--driver", "csi.cleat.dev", "--host", "unix://" + dir.path("host/host.sock"), "--state-dir", dir.path("client")}
	cleat := func(args ...string) string {
		out, err := p.command("cleat", append(args, at...)...).CombinedOutput()
		if err != nil {
			t.Errorf("cleat %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	if list := cleat("volume", "list"); !strings.Contains(list, dir.path("volumes/logs")) {
		t.Errorf("list by driver name: %s", list)
	}
	// The user attaches volumes elsewhere.
	elsewhere := newDirectory(t)
	cleat("volume", "detach", "logs-copy")
	cleat("volume", "attach", "logs-copy", elsewhere.path("directory"))
	cleat("volume", "detach", "raw")
	cleat("volume", "attach", "raw", elsewhere.path("device"))
	if out, err := p.command("cleat-demo", "--remove", string(dir)).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	dir.checkEmpty(t)
	for _, name := range []string{"directory", "device"} {
		if _, mounted, err := mount.At(t.Context(), elsewhere.path(name)); err != nil || mounted {
			t.Errorf("%s is still mounted: %v, %v", name, mounted, err)
		}
	}
	if out, err := p.command("cleat-demo", "--remove", string(dir)).CombinedOutput(); err == nil || !strings.Contains(string(out), "not a directory of the demo") {
		t.Errorf("second --remove: %v, %q", err, out)
	}
}

// TestRemoveAfterKill: --remove ends all processes of a killed demo, also a stopped
// one.
func TestRemoveAfterKill(t *testing.T) {
	t.Parallel()
	p, dir := build(t), newDirectory(t)
	d := p.start(t, dir, "--keep", "--chapters", "volumes,fence")
	d.runUntil("fence a client")
	testkit.Must(t, dir.signal(unix.SIGSTOP, "cleat", "fence"))
	d.signal(unix.SIGKILL)
	d.wait()
	if out, err := p.command("cleat-demo", "--remove", string(dir)).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	dir.checkEmpty(t)
}

func TestExistingSNAPProcess(t *testing.T) {
	t.Parallel()
	p := build(t)
	socket := p.snapProcess(t)
	for _, c := range soak.Pick(1, []struct {
		name   string
		inject func(programs, directory) error
		step   string
		left   []string
	}{
		{name: "no fault"},
		{"plugin crash", killed("cleat", "dpu"), "dpu-delete", []string{"cleat.log"}},
	}) {
		t.Run(c.name, func(t *testing.T) {
			dir := newDirectory(t)
			d := p.start(t, dir, "--chapters", "dpu", "--snap-socket", socket, "--snap-target", "192.0.2.77:4420,nqn.2026-01.example:theirs")
			if c.inject != nil {
				d.runUntil("create DPU devices")
				testkit.Must(t, c.inject(p, dir))
			}
			r := d.finish()
			if (d.code == 0) != (c.step == "") || r.Failure != nil && r.Failure.Step != c.step || len(r.Left) > 0 {
				t.Errorf("exit code %d, %+v, %+v", d.code, r, r.Failure)
			}
			dir.checkEmpty(t, c.left...)
			checkEmptySNAP(t, socket)
		})
	}
}

func TestInvalidFlags(t *testing.T) {
	p := build(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-o", "xml"}, "use text or json"},
		{[]string{"--size", "1GiB"}, "at least 2GiB"},
		{[]string{"--size", "1GiBB"}, "--size"},
		{[]string{"--dir", "/proc"}, "not empty"},
		{[]string{"--dir", "/proc/self/exe"}, "--dir"},
		{[]string{"--keep", "--remove", "/x"}, "--remove cannot be combined"},
		{[]string{"--remove", t.TempDir()}, "not a directory of the demo"},
		{[]string{"more"}, "more"},
		{[]string{"--chapters", "fence,volume"}, `unknown chapter "volume"`},
		{[]string{"--snap-target", "192.0.2.1:4420,nqn.2024-01.com.example:v"}, "--snap-socket"},
		{[]string{"--snap-socket", "/absent", "--snap-target", "192.0.2.1:4420"}, "write ADDRESS:PORT,NQN"},
	} {
		out, err := p.command("cleat-demo", c.args...).CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte(c.want)) {
			t.Errorf("%q: %v, %s; want an error with %q", c.args, err, out, c.want)
		}
	}
}

// mountAgain bind-mounts the directory below itself.
func mountAgain(_ programs, d directory) error {
	at := d.path("volumes/data")
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	return mount.Bind(context.Background(), string(d), at, mount.BindOptions{})
}
