package mount

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTopmost(t *testing.T) {
	entries := []Entry{
		{ID: 20, Parent: 1, Target: "/"},
		{ID: 31, Parent: 30, Target: "/a"}, // on 30, though it stands first
		{ID: 30, Parent: 20, Target: "/a"},
		{ID: 40, Parent: 20, Target: "/b/c"},
		{ID: 41, Parent: 20, Target: "/b"}, // hides 40
		{ID: 50, Parent: 31, Target: "/a/x"},
		{ID: 51, Parent: 30, Target: "/a/hidden"}, // 31 hides it
	}
	for path, want := range map[string]int{
		"/": 20, "/a": 31, "/a/x": 50, "/b": 41,
		"/b/c": 0, "/a/hidden": 0, "/a/": 0, "/ab": 0, "/c": 0, "/a/x/y": 0,
	} {
		e, ok := topmost(entries, path)
		if ok != (want != 0) || ok && e.ID != want {
			t.Errorf("at %s: mount %d (%t), want %d", path, e.ID, ok, want)
		}
	}
	if _, ok := topmost([]Entry{{ID: 7, Parent: 7, Target: "/"}}, "/"); !ok {
		t.Error("a root that is its own parent was not found")
	}
	if e, ok := topmost([]Entry{{ID: 9, Parent: 5, Target: "/x"}}, "/x"); !ok || e.ID != 9 {
		t.Error("a mount in a root that is no mount was not found")
	}
}

func TestHolding(t *testing.T) {
	entries := []Entry{
		{ID: 20, Parent: 1, Target: "/"},
		{ID: 30, Parent: 20, Target: "/a"},
		{ID: 31, Parent: 30, Target: "/a"},
		{ID: 40, Parent: 20, Target: "/b/c"},
		{ID: 41, Parent: 20, Target: "/b"}, // hides 40
		{ID: 50, Parent: 31, Target: "/a/x"},
	}
	for path, want := range map[string]int{
		"/": 20, "/c": 20, "/a": 31, "/a/b/c": 31, "/ab": 20, "/a/x": 50, "/a/x/y": 50, "/a/xy": 31, "/b": 41, "/b/c": 41, "/b/c/d": 41,
	} {
		if e, ok := Holding(entries, path); !ok || e.ID != want {
			t.Errorf("%s lies in mount %d (%t), want %d", path, e.ID, ok, want)
		}
	}
	if e, ok := Holding(nil, "/a"); ok {
		t.Errorf("a path lies in %+v of an empty table", e)
	}
}

func TestShared(t *testing.T) {
	target := t.TempDir()
	mustBind(t, t.TempDir(), target, BindOptions{})
	defer mustUnmount(t, target)
	for flag, want := range map[uintptr]bool{unix.MS_SHARED: true, unix.MS_PRIVATE: false, unix.MS_UNBINDABLE: false} {
		if err := unix.Mount("", target, "", flag, ""); err != nil {
			t.Fatal(err)
		}
		if e, ok, err := At(t.Context(), target); err != nil || !ok || e.Shared != want {
			t.Errorf("propagation %#x: %+v, %t (err %v), want a shared one: %t", flag, e, ok, err, want)
		}
	}
}

func TestAtFindsOddNames(t *testing.T) {
	source := t.TempDir()
	for _, name := range []string{"a b", "tab\tand\nline", `back\040slash`, "#hash", "grün", "comma,comma", "x (deleted)", "x//deleted"} {
		target := filepath.Join(t.TempDir(), name)
		mkdir(t, target)
		mustBind(t, source, target, BindOptions{})
		e, ok, err := At(t.Context(), target)
		if err != nil || !ok || e.Target != filepath.Clean(target) {
			t.Errorf("at %q: %+v, %t (err %v)", target, e, ok, err)
		}
		mustUnmount(t, target)
	}
}

func TestAtFollowsLinksInTheParentOnly(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "real", "target")
	mkdir(t, target)
	for link, to := range map[string]string{"parent": "real", "last": "real/target"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	mustBind(t, t.TempDir(), target, BindOptions{})
	for path, want := range map[string]bool{
		target: true, target + "/": true, filepath.Join(dir, "parent", "target"): true,
		filepath.Join(dir, "last"): false, filepath.Join(dir, "real"): false,
		filepath.Join(dir, "nothing"): false, filepath.Join(dir, "nothing", "below"): false, "/proc/version/x": false,
	} {
		if _, got, err := At(t.Context(), path); err != nil || got != want {
			t.Errorf("at %s: %t (err %v), want %t", path, got, err, want)
		}
	}
	if _, _, err := At(t.Context(), "relative"); err == nil {
		t.Error("a relative path was taken")
	}
}
