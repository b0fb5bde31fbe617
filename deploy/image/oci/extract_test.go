package oci

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestExtract(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "root")
	testkit.Must(t, Extract(dir, base()))
	for name, want := range map[string]fs.FileMode{"tmp": fs.ModeDir | fs.ModeSticky | 0o777, "etc": fs.ModeDir | 0o755, "etc/empty": 0o600, "usr/bin/tool": 0o755} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", name, info, err, want)
		}
	}
	if data, err := os.ReadFile(filepath.Join(dir, "bin/tool")); err != nil || string(data) != "program" {
		t.Errorf("read through a link: %q, %v", data, err)
	}
	// A second layer can use the same directories, but not overwrite files.
	if err := Extract(dir, FileLayer(File{Path: "/usr/bin/second", Mode: 0o755})); err != nil {
		t.Error(err)
	}
	if err := Extract(dir, FileLayer(File{Path: "/usr/bin/tool"})); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "usr/bin/tool") {
		t.Errorf("existing file: got error %v", err)
	}
	outside := t.TempDir()
	if err := Extract(dir, FileLayer(File{Path: "/out", Link: outside})); err != nil {
		t.Error(err)
	}
	if err := Extract(dir, FileLayer(File{Path: "/out/x"})); err == nil {
		t.Error("a file was written outside of the directory through a link")
	}
	if names, err := os.ReadDir(outside); err != nil || len(names) > 0 {
		t.Errorf("files outside of the directory: %v, %v", names, err)
	}
	if err := Extract(dir, FileLayer(File{Path: "/in", Content: HostFile(filepath.Join(outside, "absent"))})); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unreadable layer: got error %v", err)
	}
}
