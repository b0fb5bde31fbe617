package testkit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/tree"
)

const (
	// Cleat is the package of the product's program.
	Cleat = "./cmd/cleat"
	// Suite is csi-sanity, a module of its own.
	Suite = "./test/sanity/suite"
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
// (see RunMain).
func BuildTo(ctx context.Context, program, pkg string, flags ...string) error {
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
	if pkg == Suite {
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
