package rig

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// roleEnvironment selects another role of a test binary.
const roleEnvironment = "CLEAT_FENCE_ROLE"

// IsRole reports whether this process has another role than the tests, which Main
// runs.
func IsRole() bool { return os.Getenv(roleEnvironment) != "" }

// Main is the TestMain of packages that use the rig. Processes of the rig are
// the same binary in another role: its own, or one of roles, by name. Scratch
// directories of all tests are in one that is removed with the test.
func Main(m goleak.TestingM, roles map[string]func() int, prepare func() error) {
	role := os.Getenv(roleEnvironment)
	_ = os.Unsetenv(roleEnvironment) // of this process, not inherited by its children
	switch role {
	case "":
	case "agent":
		os.Exit(runAgent())
	case "guardian":
		os.Exit(runGuardian(os.Args[1]))
	default:
		run := roles[role]
		if run == nil {
			fmt.Fprintf(os.Stderr, "no role %q in this test\n", role)
			os.Exit(2)
		}
		os.Exit(run())
	}
	leave, err := scratch()
	if err == nil {
		err = prepare()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if leave != nil {
			leave()
		}
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { leave(); os.Exit(code) }))
}

// As returns the command of this binary in another role, and its environment.
func As(role string, args ...string) (argv, env []string, err error) {
	self, err := os.Executable()
	return append([]string{self}, args...), []string{roleEnvironment + "=" + role}, err
}

// scratch creates the directory for all files of the tests, and starts the
// guardian, which removes it.
func scratch() (leave func(), err error) {
	dir, err := os.MkdirTemp("", "cleat-fence-")
	if err != nil {
		return nil, err
	}
	argv, env, err := As("guardian", dir)
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true} // survives a kill of the test's process group
	var held io.WriteCloser
	if held, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	err = os.Setenv("TMPDIR", dir)
	return func() {
		_ = held.Close()
		_ = cmd.Wait()
	}, err
}

// Dir creates a directory with a short name, for UNIX sockets, removed when the
// test ends.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Clean(dir)
}
