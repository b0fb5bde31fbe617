// Package dpu meets cleat dpu as a process over its socket, as the node driver
// does, with a double of SNAP behind it, or a real process (CLEAT_SNAP_SOCKET):
// the contract's own suite, kills between any two steps, a SNAP process that
// restarts, hangs and forgets, targets that are away, and a storm of all of it.
//
// The tests run in namespaces of their own, of mounts and of processes: what
// cleat dpu mounts for SNAP is mounted really, and goes with the test, as the
// processes do, also when it is killed.
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
)

// insideEnvironment tells the test that it is in its own namespaces.
const insideEnvironment = "CLEAT_DPU_TEST_INSIDE"

// The programs under test, built once. Both have crash points, which do nothing
// until a test arms one; raced looks for data races too, and takes longer to
// start.
var plain, raced string

func TestMain(m *testing.M) {
	if os.Getenv(insideEnvironment) == "" {
		os.Exit(inside())
	}
	// Processes that tests start are no tests.
	err := os.Unsetenv(insideEnvironment)
	if err == nil {
		plain, raced, err = programs(os.Getenv(programEnvironment), os.TempDir(), os.Stderr, build)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// inside runs this very test again in namespaces of its own, with a directory for
// all its files, and returns its exit code.
func inside() int {
	runtime.LockOSThread() // whose end the kernel tells the other one
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err == nil {
		err = os.Chmod(dir, 0o755) // tests of other users go through it
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
