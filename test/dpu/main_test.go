// Package dpu tests cleat dpu as a process over its socket, as the node driver
// uses it, with a double of SNAP or a real process (CLEAT_SNAP_SOCKET): the
// contract's suite, kills between any two steps, a SNAP process that restarts,
// hangs and loses state, unreachable targets, and all of it under load.
//
// The tests run in their own mount and PID namespaces: mounts and processes of
// cleat dpu end with the test, even if it is killed.
package dpu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/testkit/mountns"
)

// insideEnvironment marks the test that runs in its own namespaces.
const insideEnvironment = "CLEAT_DPU_TEST_INSIDE"

// The programs under test, built once. Both have crash points, which are inert
// until a test arms one; raced also has the race detector, and starts more
// slowly.
var plain, raced string

func TestMain(m *testing.M) {
	kernelcall.Main()
	if os.Getenv(insideEnvironment) == "" {
		os.Exit(inside())
	}
	// Processes that tests start are not tests.
	err := errors.Join(os.Unsetenv(insideEnvironment), mountns.DropCopies()) // of volumes of tests that run beside these
	if err == nil {
		plain, raced, err = programs(os.Getenv(programEnvironment), os.TempDir(), os.Stderr, build)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// inside runs this test binary in new namespaces, with a directory for all its
// files, and returns its exit code.
func inside() int {
	runtime.LockOSThread() // the child gets Pdeathsig when this thread ends
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err == nil {
		err = os.Chmod(dir, 0o755) // tests as other users need access
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnvironment+"=1", "TMPDIR="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Go makes the mounts of the new namespace private. In a PID namespace all
	// processes end with the first one.
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err = cmd.Run()
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(1, ended.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
