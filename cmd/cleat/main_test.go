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
