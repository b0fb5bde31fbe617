package main

import (
	"os"
	"strings"
	"testing"
)

// TestMain lets the test binary be cleat: tests start it as a server.
func TestMain(m *testing.M) {
	if len(os.Args) == 1 || strings.HasPrefix(os.Args[1], "-test.") {
		os.Exit(m.Run())
	}
	main()
}

// shortDir is a directory in which paths of sockets do not become too long,
// however long the test's name is.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cleat-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
