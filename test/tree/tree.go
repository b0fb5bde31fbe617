// Package tree finds the source tree that a test or a tool of it runs in.
package tree

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
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
