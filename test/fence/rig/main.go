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

// roleEnvironment makes a test binary be something else than the test.
const roleEnvironment = "CLEAT_FENCE_ROLE"

func selfPID() int { return os.Getpid() }

// Main is the TestMain of packages that use the rig. A process of the rig is
// the same binary in another role: its own, or one of roles, by name. Scratch
// directories of all tests lie in one that goes with the test.
func Main(m *testing.M, roles map[string]func() int, prepare func() error) {
	role := os.Getenv(roleEnvironment)
	_ = os.Unsetenv(roleEnvironment) // of this process, and not of those that it starts
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

// As returns the command of this binary in another role, to be started with the
// environment that comes with it.
func As(role string, args ...string) (argv, env []string, err error) {
	self, err := os.Executable()
	return append([]string{self}, args...), []string{roleEnvironment + "=" + role}, err
}

// scratch makes the directory of all that tests keep in files, and starts the
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
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true} // outlives what ends the test's group
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

// Dir makes a directory with a short name, as UNIX sockets need, which ends
// with the test.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Clean(dir)
}
