package main

import (
	"bytes"
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
	dir, err := os.MkdirTemp("", "demo-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestDemoRefusesWrongWords(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-o", "xml"}, "use text or json"},
		{[]string{"--size", "1GiB"}, "at least 2 GiB"},
		{[]string{"--size", "1GiBB"}, "--size"},
		{[]string{"--dir", "/proc"}, "not empty"},
		{[]string{"--keep", "--remove", "/x"}, "keep remove"},
		{[]string{"more"}, "more"},
		{[]string{"--snap-double", "/absent"}, "--snap-double /absent"},
		{[]string{"--node-double", "/absent"}, "--node-double /absent"},
		{[]string{"--snap-target", "192.0.2.1:4420,nqn.2024-01.com.example:v"}, "--snap-socket"},
		{[]string{"--snap-socket", "/absent", "--snap-target", "192.0.2.1:4420"}, "write ADDRESS:PORT,NQN"},
		{[]string{"--snap-socket", "/absent", "--snap-double", "/absent"}, "snap-double snap-socket"},
	} {
		cmd := newDemoCommand()
		cmd.SetArgs(c.args)
		cmd.SetOut(new(bytes.Buffer))
		cmd.SetErr(new(bytes.Buffer))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want an error with %q", c.args, err, c.want)
		}
	}
}
