// Package tree finds the source tree that a test or tool runs in, and
// distinguishes test folders from product folders.
package tree

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Root returns the directory of the module's go.mod, at or above the working
// directory: go test runs each test in its package's directory.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(text, []byte("module github.com/cleatproject/cleat\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not below the source tree of cleat: run it there", start)
		}
	}
}

// Git returns a git command in the tree. Tests run as root in a checkout of
// another user, which git refuses without safe.directory.
func Git(root string, args ...string) *exec.Cmd {
	return exec.Command("git", append([]string{"-C", root, "-c", "safe.directory=*"}, args...)...)
}

// IsTest reports whether a folder of the tree, such as "spdk/spdktest/double",
// holds code that the product must not link: everything in test and demo, and
// folders named ...test, testkit or double with all below them.
func IsTest(dir string) bool {
	parts := strings.Split(filepath.ToSlash(dir), "/")
	return parts[0] == "demo" || slices.ContainsFunc(parts, func(name string) bool {
		return strings.HasSuffix(name, "test") || name == "testkit" || name == "double"
	})
}
