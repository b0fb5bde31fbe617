package holders

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestBelow(t *testing.T) {
	for path, want := range map[string]bool{
		"/a": true, "/a/b": true, "/a (deleted)": true, "/a/b (deleted)": true,
		"/ab": false, "/": false, "/b/a": false, "socket:[1]": false, "": false,
	} {
		if got := below(path, "/a"); got != want {
			t.Errorf("%q is below /a: %t, want %t", path, got, want)
		}
	}
}

func TestOfMountNamesProcesses(t *testing.T) {
	dir := t.TempDir()
	if text := OfMount(t.Context(), dir); text != "nothing that /proc shows" {
		t.Errorf("of an unused directory: %q", text)
	}
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("sleep", "60")
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	text := OfMount(t.Context(), dir)
	for _, want := range []string{"this process, whose open file is " + f.Name(), "(sleep), whose working directory is " + dir} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
}

func TestSearchEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if text := OfMount(ctx, dir); strings.Contains(text, "this process") {
		t.Errorf("a search that was called off found %q", text)
	}
}

func TestTextNamesAFewOnly(t *testing.T) {
	dir := t.TempDir()
	for range 2 * most {
		cmd := exec.Command("sleep", "60")
		cmd.Dir = dir
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	if text := OfMount(t.Context(), dir); strings.Count(text, "(sleep)") != most {
		t.Errorf("%q names %d of %d processes, want %d", text, strings.Count(text, "(sleep)"), 2*most, most)
	}
}
