package testkit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/tree"
)

const (
	// Cleat is the package of the product's program.
	Cleat = "./cmd/cleat"
	// Suite is csi-sanity, and Example a vendor's driver, each a module of its own.
	Suite   = "./test/sanity/suite"
	Example = "./examples/engine"
)

// Root returns the root of the source tree.
func Root(t testing.TB) string {
	t.Helper()
	return Value(tree.Root())(t)
}

// Build builds a package of this tree ("./cmd/cleat") with further flags of go
// build, and returns the path of the program, which is removed when the test
// ends.
func Build(t testing.TB, pkg string, flags ...string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), filepath.Base(pkg))
	Must(t, BuildTo(t.Context(), program, pkg, flags...))
	return program
}

// BuildTo is Build for a TestMain that builds one program for all its tests
// (see RunMain). Test programs that run with the same directory in the environment
// variable CLEAT_PROGRAMS share the programs of this tree: each is linked once.
func BuildTo(ctx context.Context, program, pkg string, flags ...string) error {
	shared := os.Getenv("CLEAT_PROGRAMS")
	if shared == "" || slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, "-overlay") }) {
		return build(ctx, program, pkg, flags)
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%q", append([]string{pkg}, flags...)))
	from := filepath.Join(shared, hex.EncodeToString(key[:8]))
	lock, err := os.Create(from + ".lock")
	if err != nil {
		return err
	}
	defer lock.Close() // unlocks
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(from); err != nil {
		if err := build(ctx, from+".new", pkg, flags); err != nil {
			return err
		}
		if err := os.Rename(from+".new", from); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		return err
	}
	if err := os.Remove(program); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Link(from, program); !errors.Is(err, unix.EXDEV) {
		return err
	}
	return build(ctx, program, pkg, flags)
}

func build(ctx context.Context, program, pkg string, flags []string) error {
	root, err := tree.Root()
	if err != nil {
		return err
	}
	cgo := "CGO_ENABLED=0"
	// The race detector and Ceph's libraries are linked with the C compiler.
	if slices.ContainsFunc(flags, func(f string) bool { return f == "-race" || strings.HasPrefix(f, "ceph,") }) {
		cgo = "CGO_ENABLED=1"
	}
	dir, built := root, pkg
	if pkg == Suite || pkg == Example {
		dir, built = filepath.Join(root, pkg), "."
	}
	// Without debugging information it links in half the time.
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"build", "-ldflags=-s -w", "-o", program}, flags, []string{built})...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// RunMain calls prepare with a temporary directory, runs the tests of a package
// and removes the directory. It returns the exit code for TestMain:
//
//	os.Exit(testkit.RunMain(m, func(dir string) error { ... }))
func RunMain(m interface{ Run() int }, prepare func(dir string) error) (code int) {
	dir, err := os.MkdirTemp("", "cleat-test-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = prepare(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
