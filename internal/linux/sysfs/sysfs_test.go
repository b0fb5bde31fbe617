package sysfs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func open4(t *testing.T) (Dir, string) {
	t.Helper()
	path := t.TempDir()
	d := testkit.Value(Open(path))(t)
	t.Cleanup(d.Close)
	return d, path
}

func put(t *testing.T, path, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestText(t *testing.T) {
	d, path := open4(t)
	put(t, filepath.Join(path, "vendor"), " 0x8086 \n")
	put(t, filepath.Join(path, "page"), strings.Repeat("x", most))
	put(t, filepath.Join(path, "more"), strings.Repeat("x", most+1))
	if text, err := d.Text("vendor"); text != "0x8086" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := d.Text("page"); len(text) != most || err != nil {
		t.Errorf("a full page: %d bytes, %v", len(text), err)
	}
	testkit.WantError(t, "more than a page", testkit.Err(d.Text("more")), nil, path+"/more")
	if _, err := d.Text("none"); !IsAbsent(err) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := d.Text("."); err == nil || IsAbsent(err) {
		t.Errorf("a directory: %v", err)
	}
}

func TestTextDoesNotWait(t *testing.T) {
	d, path := open4(t)
	testkit.Must(t, unix.Mkfifo(filepath.Join(path, "fifo"), 0o600))
	if text, err := d.Text("fifo"); text != "" || err != nil {
		t.Errorf("a FIFO without a writer: %q, %v", text, err)
	}
}

func TestLinksAndNames(t *testing.T) {
	d, path := open4(t)
	put(t, filepath.Join(path, "b"), "")
	for name, to := range map[string]string{"a": "../devices/x", "loop": "loop"} {
		testkit.Must(t, os.Symlink(to, filepath.Join(path, name)))
	}
	if to, err := d.Link("a"); to != "../devices/x" || err != nil {
		t.Errorf("%q, %v", to, err)
	}
	if _, err := d.Link("b"); err == nil || IsAbsent(err) {
		t.Errorf("a file as a link: %v", err)
	}
	if _, err := d.Open("loop"); err == nil || IsAbsent(err) {
		t.Errorf("a link to itself: %v", err)
	}
	if names, err := d.Names(); !slices.Equal(names, []string{"a", "b", "loop"}) || err != nil {
		t.Errorf("%q, %v", names, err)
	}
	if !d.Has("b") || d.Has("c") {
		t.Error("Has is wrong")
	}
}

// A new directory of the same name is not confused with the removed one.
func TestRemovedDirectory(t *testing.T) {
	d, path := open4(t)
	inner := filepath.Join(path, "device")
	make := func() {
		testkit.Must(t, os.Mkdir(inner, 0o700))
		put(t, filepath.Join(inner, "vendor"), "1")
	}
	make()
	old := testkit.Value(d.Open("device"))(t)
	defer old.Close()
	testkit.Must(t, os.RemoveAll(inner))
	make()
	if _, err := old.Text("vendor"); !IsAbsent(err) {
		t.Errorf("a file of the other: %v", err)
	}
	if old.Has("vendor") {
		t.Error("the directory that went has what the other has")
	}
}

// More than one result of getdents64.
func TestManyNames(t *testing.T) {
	d, path := open4(t)
	var want []string
	for i := range 1000 {
		name := fmt.Sprintf("%04d-%s", i, strings.Repeat("x", 100))
		put(t, filepath.Join(path, name), "")
		want = append(want, name)
	}
	if names, err := d.Names(); !slices.Equal(names, want) || err != nil {
		t.Errorf("%d names of %d, %v", len(names), len(want), err)
	}
	testkit.Must(t, os.RemoveAll(path))
	if _, err := d.Names(); !IsAbsent(err) {
		t.Errorf("a directory that went: %v", err)
	}
}
