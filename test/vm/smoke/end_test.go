// Package smoke boots real guests to test the harness: how they end, and in make
// soak also what they can do, which the tests of other packages use.
package smoke

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A guest that fails to boot returns an error with the reason.
func TestBootFailureReportsItsReason(t *testing.T) {
	for name, c := range map[string]struct {
		spec vm.Spec
		want []string
	}{
		"boot timeout":  {vm.Spec{BootTime: 100 * time.Millisecond}, []string{"was not ready in time", "the console of guest"}},
		"lifetime over": {vm.Spec{Lifetime: 100 * time.Millisecond}, []string{"QEMU exited before the guest was ready", "longer than its Lifetime"}},
		"no module":     {vm.Spec{Modules: []string{"no-such"}}, []string{`this kernel has no module "no_such"`}},
		"no program":    {vm.Spec{Tools: []string{"no-such"}}, []string{"no unpacked package has the program no-such"}},
		"no file":       {vm.Spec{Programs: []string{"/no/such"}}, []string{"file for the guest", "/no/such"}},
		"bad device":    {vm.Spec{Devices: []string{"-device", "no-such"}}, []string{"QEMU output", "no-such"}},
	} {
		g, err := vm.Launch(t.Context(), c.spec, t.Logf)
		if err == nil {
			t.Errorf("%s: the guest booted, want an error", name)
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want an error with %q", name, err, want)
			}
		}
	}
}

// Killing a test kills its guest.
func TestGuestEndsWithItsTest(t *testing.T) {
	scratch := t.TempDir()
	program := filepath.Join(scratch, "run")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../run")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), program, "sh", "-c", "sleep 1000")
	cmd.Env = append(os.Environ(), "TMPDIR="+scratch)
	var said bytes.Buffer
	cmd.Stderr = &said
	testkit.Must(t, cmd.Start())
	qemu, err := waitForQEMU(t.Context(), cmd.Process.Pid)
	if err != nil {
		t.Error(err)
	}
	if err := errors.Join(cmd.Process.Kill(), ignoreKill(cmd.Wait())); err != nil {
		t.Errorf("%v\n%s", err, said.String())
	}
	if qemu == 0 {
		return
	}
	pidfd, err := unix.PidfdOpen(qemu, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	testkit.Must(t, err)
	defer unix.Close(pidfd)
	ended := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(ended, 60_000)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(ended, 60_000)
	}
	if n != 1 || err != nil {
		t.Errorf("QEMU %d still runs after its test was killed: %v", qemu, err)
	}
}

func ignoreKill(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// waitForQEMU waits for a child process of parent that runs QEMU.
func waitForQEMU(ctx context.Context, parent int) (int, error) {
	deadline := time.After(5 * time.Minute) // includes the wait for a guest slot
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
		if err != nil || len(tasks) == 0 {
			return 0, fmt.Errorf("process %d exited: %v", parent, err)
		}
		for _, task := range tasks {
			text, err := os.ReadFile(task)
			if err != nil {
				continue // the thread has exited
			}
			for field := range strings.FieldsSeq(string(text)) {
				name, err := os.ReadFile("/proc/" + field + "/comm")
				var pid int
				if _, bad := fmt.Sscan(field, &pid); err == nil && bad == nil && strings.HasPrefix(string(name), "qemu-system") {
					return pid, nil
				}
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			return 0, fmt.Errorf("process %d did not start QEMU", parent)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
