// Package demo checks that the demo fails when something does not hold, says
// what, and cleans up: it runs the demo in this process, with the built program
// as its servers. That the demo holds is shown by `make demo`.
package demo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/demo"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/soak"
)

// fault is something that goes wrong after a step of the demo, and the step
// that must notice it.
type fault struct {
	name    string
	after   string
	inject  func(d directory) error // nil: the user interrupts the demo
	step    string
	message string
	dpu     bool // it needs the chapter on DPU devices
	sriov   bool // it needs the chapter on SR-IOV functions
}

// faults begin with those that CI runs: data that changed, a server that died, a
// mount that stays, the user's Ctrl-C. The others repeat these in each chapter.
func faults() []fault {
	return []fault{
		{name: "a bit flips", after: "stats", inject: func(d directory) error { return d.flipBit("volumes/data/part-1/file-04") },
			step: "restore", message: "file-04 does not hold what was written"},
		{name: "the driver crashes", after: "stats", inject: killed("driver"), step: "snapshot", message: "the driver ended unasked: signal: killed"},
		{name: "a mount is left", after: "stop", inject: directory.mountAgain, step: "leave", message: "still holds"},
		{name: "the user interrupts", after: "clone", step: "clone", message: "interrupted"},

		{name: "the host crashes", after: "group", inject: killed("host"), step: "health", message: "the host ended unasked: signal: killed"},
		{name: "the DPU plugin crashes", dpu: true, after: "dpu-create", inject: killed("plugin"), step: "dpu-kill", message: "the DPU plugin ended unasked: signal: killed"},
		{name: "the double of SNAP crashes", dpu: true, after: "dpu-create", inject: killed("double"), step: "dpu-kill", message: "the double of SNAP ended unasked: signal: killed"},
		{name: "the user interrupts DPU devices", dpu: true, after: "dpu-create", step: "dpu-create", message: "interrupted"},
		{name: "the SR-IOV plugin crashes", sriov: true, after: "sriov-enable", inject: killed("sriovPlugin"), step: "sriov-pod", message: "the SR-IOV plugin ended unasked: signal: killed"},
		{name: "the SR-IOV daemon crashes", sriov: true, after: "sriov-hang", inject: killed("sriovDaemon"), step: "sriov-kubelet", message: "the SR-IOV daemon ended unasked: signal: killed"},
		{name: "the double of a node crashes", sriov: true, after: "sriov-pod", inject: killed("node"), step: "sriov-kill", message: "the double of a node ended unasked: signal: killed"},
		{name: "the user interrupts SR-IOV", sriov: true, after: "sriov-pod", step: "sriov-pod", message: "interrupted"},
		{name: "functions are removed under a pod", sriov: true, after: "sriov-pod", inject: func(d directory) error {
			return os.WriteFile(d.path("sriov/node/sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs"), []byte("0"), 0)
		}, step: "sriov-kill", message: "no virtual functions any more"},
	}
}

const inCI = 4

func TestFailsWhenSomethingDoesNotHold(t *testing.T) {
	b := build(t)
	for _, f := range soak.Pick(inCI, faults()) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			dir := newDirectory(t)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			config := b.config(dir)
			if f.dpu {
				config.DPU.Double = b.snap
			}
			if f.sriov {
				config.SRIOV.Double = b.node
			}
			config.After = func(step context.Context, name, _ string) error {
				switch {
				case name != f.after:
					return nil
				case f.inject == nil:
					interrupt()
					<-step.Done()
					return step.Err()
				}
				return f.inject(dir)
			}
			report, err := demo.Run(ctx, config)
			if !errors.Is(err, demo.ErrFailed) || report.Held || report.Failure == nil {
				t.Fatalf("got %v, %+v", err, report)
			}
			if report.Failure.Step != f.step || !strings.Contains(report.Failure.Error, f.message) {
				t.Errorf("failed at %s with %q, want at %s with %q", report.Failure.Step, report.Failure.Error, f.step, f.message)
			}
			if report.Failure.Interrupted {
				dir.checkEmpty(t)
				return
			}
			if len(report.Failure.Lines) == 0 || report.Failure.Log != dir.path("cleat.log") {
				t.Errorf("the log is missing: %+v", report.Failure)
			}
			dir.checkEmpty(t, "cleat.log")
		})
	}
}

func TestKeepsAndRemoves(t *testing.T) {
	t.Parallel()
	b, dir := build(t), newDirectory(t)
	config := b.config(dir)
	config.Keep, config.DPU.LeftOut = true, "for a reason"
	var progress bytes.Buffer
	config.Progress = &progress
	report, err := demo.Run(t.Context(), config)
	if err != nil || !report.Held || report.Kept == nil {
		t.Fatalf("%v, %+v\n%s", err, report, progress.String())
	}
	if !strings.Contains(progress.String(), report.LeftOut) || !strings.Contains(report.LeftOut, "for a reason") {
		t.Errorf("the demo should say which chapter is left out: %q\n%s", report.LeftOut, progress.String())
	}
	for _, name := range []string{"data", "logs", "logs-copy", "restored", "raw"} {
		if _, mounted, err := mount.At(t.Context(), dir.path("volumes/"+name)); err != nil || !mounted {
			t.Errorf("volume %s is attached: %v, %v", name, mounted, err)
		}
	}
	for _, pid := range []int{report.Kept.PID, report.Kept.HostPID} {
		if err := unix.Kill(pid, 0); pid == 0 || err != nil {
			t.Errorf("process %d should run: %v", pid, err)
		}
	}
	list := b.command("volume", "list", "--driver", report.Kept.Driver, "--host", report.Kept.Host, "--state-dir", report.Kept.StateDir)
	if out, err := list.CombinedOutput(); err != nil || !bytes.Contains(out, []byte(dir.path("volumes/logs"))) {
		t.Errorf("the driver by its name: %v: %s", err, out)
	}
	if out, err := b.command("demo", "--remove", string(dir)).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	dir.checkEmpty(t)
	if out, err := b.command("demo", "--remove", string(dir)).CombinedOutput(); err == nil || !strings.Contains(string(out), "no directory that cleat demo --keep has left") {
		t.Errorf("a second time: %v, %q", err, out)
	}
}

// A demo that is killed leaves its processes, one of which does not answer:
// demo --remove ends all of them.
func TestKilledDemoIsRemoved(t *testing.T) {
	t.Parallel()
	b, dir := build(t), newDirectory(t)
	cmd := b.command("demo", "--dir", string(dir), "--size", "3GiB", "--node-double", b.node)
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitForLine(t, said, "give a pod two functions")
	if err := errors.Join(dir.signal("sriovDaemon", unix.SIGSTOP), cmd.Process.Kill()); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // it was killed
	if out, err := b.command("demo", "--remove", string(dir)).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	dir.checkEmpty(t)
}

func TestInASNAPProcess(t *testing.T) {
	t.Parallel()
	b := build(t)
	socket := snapProcess(t, b.snap)
	for _, c := range soak.Pick(1, []struct {
		name   string
		inject func(directory) error
		step   string
		left   []string
	}{
		{name: "holds"},
		{"fails", killed("plugin"), "dpu-delete", []string{"cleat.log"}},
	}) {
		t.Run(c.name, func(t *testing.T) {
			dir := newDirectory(t)
			config := b.config(dir)
			config.DPU = demo.DPU{Socket: socket, Target: target()}
			config.After = func(_ context.Context, step, _ string) error {
				if c.inject == nil || step != "dpu-create" {
					return nil
				}
				return c.inject(dir)
			}
			report, err := demo.Run(t.Context(), config)
			if (err == nil) != (c.step == "") || report.Failure != nil && report.Failure.Step != c.step || len(report.Left) > 0 {
				t.Errorf("%v, %+v, %+v", err, report, report.Failure)
			}
			dir.checkEmpty(t, c.left...)
			checkEmptySNAP(t, socket)
		})
	}
}
