package image

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// The host's shell is a dynamic program, and / serves as unpacked root.
func TestLibrariesOfProgram(t *testing.T) {
	got := testkit.Value(libraries("/", []string{"bin/sh"}))(t)
	for _, want := range []string{"libc.so.6", "ld-linux-x86-64.so.2"} {
		if !slices.ContainsFunc(got, func(file string) bool { return filepath.Base(file) == want }) {
			t.Errorf("%s is not in %v", want, got)
		}
	}
	for _, file := range got {
		if _, err := os.Stat(filepath.Join("/", file)); err != nil || filepath.IsAbs(file) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestLibrariesOfAnIncompleteRoot(t *testing.T) {
	root := t.TempDir()
	shell := testkit.Value(os.ReadFile("/bin/sh"))(t)
	for name, data := range map[string][]byte{"sh": shell, "script": []byte("#!/bin/sh\n"), "truncated": shell[:32], "empty": nil} {
		testkit.Must(t, os.WriteFile(filepath.Join(root, name), data, 0o755))
	}
	if _, err := libraries(root, []string{"sh"}); err == nil || !strings.Contains(err.Error(), "no unpacked package has the library libc.so.6") {
		t.Errorf("program without its library: got %v", err)
	}
	if got, err := libraries(root, []string{"script"}); len(got) > 0 || err != nil {
		t.Errorf("libraries of a script: got %v, %v", got, err)
	}
	for _, name := range []string{"truncated", "absent"} {
		if got, err := libraries(root, []string{name}); err == nil {
			t.Errorf("%s: got libraries %v, want an error", name, got)
		}
	}
}
