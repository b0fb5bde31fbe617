// Package demo checks that the demo fails when something does not hold, reports
// it, and cleans up. It runs the built program and pauses it after a step to
// inject a fault. `make demo` shows that the demo holds.
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

// fault is injected after a step, and must be noticed by one.
type fault struct {
	name    string
	chapter string
	after   string                              // title of a step
	inject  func(p programs, d directory) error // nil: the user interrupts the demo
	step    string
	message string
}

// faults begin with those that CI runs: changed data, a server that died, a mount
// that stays, an interrupt, a fence that does not hold. The others repeat these
// in each chapter.
func faults() []fault {
	return []fault{
		{"a bit flips", "volumes", "create, attach, write", flipBit, "restore", "file-04 does not hold what was written"},
		{"the driver crashes", "volumes", "create, attach, write", killed("cleat", "csi"), "expand", "the driver ended unexpectedly: signal: killed"},
		{"a mount is left", "volumes", "stop driver and host", mountAgain, "leave", "still holds"},
		{"the user interrupts", "volumes", "clone logs", nil, "blocks", "interrupted"},
		{"the fence is lifted", "fence", "fence a client", unfenced, "fence-kill", "arrived after the fence was answered"},

		{"the host crashes", "volumes", "clone logs", killed("cleat", "host"), "blocks", "the host ended unexpectedly: signal: killed"},
		{"the fence service crashes", "fence", "fence a client", killed("cleat", "fence"), "fence-kill", "the fence service ended unexpectedly: signal: killed"},
		{"the user interrupts fencing", "fence", "fence a client", nil, "fence-kill", "interrupted"},
		{"the DPU plugin crashes", "dpu", "create DPU devices", killed("cleat", "dpu"), "dpu-expose", "the DPU plugin ended unexpectedly: signal: killed"},
		{"the double of SNAP crashes", "dpu", "create DPU devices", killed("cleat-snap-double"), "dpu-expose", "the double of SNAP ended unexpectedly: signal: killed"},
		{"the user interrupts DPU devices", "dpu", "create DPU devices", nil, "dpu-expose", "interrupted"},
		{"the SR-IOV plugin crashes", "sriov", "start the SR-IOV daemon", killed("cleat", "sriov", "plugin"), "sriov-pod", "the SR-IOV plugin ended unexpectedly: signal: killed"},
		{"the SR-IOV daemon crashes", "sriov", "stop the daemon's clock", killed("cleat", "sriov", "daemon"), "sriov-kubelet", "the SR-IOV daemon ended unexpectedly: signal: killed"},
		{"the double of a node crashes", "sriov", "give a pod two functions", killed("cleat-node-double"), "sriov-kill", "the double of a node ended unexpectedly: signal: killed"},
		{"the user interrupts SR-IOV", "sriov", "give a pod two functions", nil, "sriov-kill", "interrupted"},
		{"functions are removed under a pod", "sriov", "give a pod two functions", func(_ programs, d directory) error {
			return os.WriteFile(d.path("sriov/node/sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs"), []byte("0"), 0)
		}, "sriov-kill", "no virtual functions any more"},
	}
}

const inCI = 5

func TestFailsWhenSomethingDoesNotHold(t *testing.T) {
	p := build(t)
	for _, f := range soak.Pick(inCI, faults()) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			dir := newDirectory(t)
			d := p.start(t, dir, "--chapters", f.chapter)
			d.runUntil(f.after)
			if f.inject == nil {
				d.signal(unix.SIGINT)
			} else if err := f.inject(p, dir); err != nil {
				t.Fatal(err)
			}
			r := d.finish()
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

func TestKeepsAndRemoves(t *testing.T) {
	t.Parallel()
	p, dir := build(t).without(t, "cleat-snap-double"), newDirectory(t)
	d := p.start(t, dir, "--keep", "--chapters", "volumes,dpu")
	r := d.finish()
	if d.code != 0 || !r.Held || !r.Kept {
		t.Fatalf("exit code %d, %+v", d.code, r)
	}
	if len(r.LeftOut) != 1 || !strings.Contains(r.LeftOut[0], "no test double of SNAP") || !slices.Contains(d.lines, r.LeftOut[0]) {
		t.Errorf("the demo should say that a chapter is left out: %q, %q", r.LeftOut, d.lines)
	}
	for _, name := range []string{"data", "logs", "logs-copy", "restored", "raw"} {
		if _, mounted, err := mount.At(t.Context(), dir.path("volumes/"+name)); err != nil || !mounted {
			t.Errorf("volume %s is attached: %v, %v", name, mounted, err)
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
		t.Errorf("the driver by its name: %s", list)
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
	if out, err := p.command("cleat-demo", "--remove", string(dir)).CombinedOutput(); err == nil || !strings.Contains(string(out), "not a directory that the demo left") {
		t.Errorf("a second time: %v, %q", err, out)
	}
}

// A demo that is killed leaves its processes, one of which does not respond:
// --remove ends all of them.
func TestKilledDemoIsRemoved(t *testing.T) {
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

func TestInASNAPProcess(t *testing.T) {
	t.Parallel()
	p := build(t)
	socket := p.snapProcess(t)
	for _, c := range soak.Pick(1, []struct {
		name   string
		inject func(programs, directory) error
		step   string
		left   []string
	}{
		{name: "holds"},
		{"fails", killed("cleat", "dpu"), "dpu-delete", []string{"cleat.log"}},
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

func TestRefusesWrongFlags(t *testing.T) {
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
		{[]string{"--keep", "--remove", "/x"}, "--remove goes with neither"},
		{[]string{"--remove", t.TempDir()}, "not a directory that the demo left"},
		{[]string{"more"}, "more"},
		{[]string{"--chapters", "fence,volume"}, `no chapter "volume"`},
		{[]string{"--snap-target", "192.0.2.1:4420,nqn.2024-01.com.example:v"}, "--snap-socket"},
		{[]string{"--snap-socket", "/absent", "--snap-target", "192.0.2.1:4420"}, "write ADDRESS:PORT,NQN"},
	} {
		out, err := p.command("cleat-demo", c.args...).CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte(c.want)) {
			t.Errorf("%q: %v, %s; want an error with %q", c.args, err, out, c.want)
		}
	}
}

// mountAgain mounts the directory below itself.
func mountAgain(_ programs, d directory) error {
	at := d.path("volumes/data")
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	return mount.Bind(context.Background(), string(d), at, mount.BindOptions{})
}
