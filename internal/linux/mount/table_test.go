package mount

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestTopmost(t *testing.T) {
	entries := []Entry{
		{ID: 20, Parent: 1, Target: "/"},
		{ID: 31, Parent: 30, Target: "/a"}, // on 30, but listed first
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
		if e, ok := topmost(entries, path); ok != (want != 0) || ok && e.ID != want {
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
		testkit.Must(t, unix.Mount("", target, "", flag, ""))
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
		if e, ok, err := At(t.Context(), target); err != nil || !ok || e.Target != filepath.Clean(target) {
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
		testkit.Must(t, os.Symlink(to, filepath.Join(dir, link)))
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

func TestSplitOptions(t *testing.T) {
	for _, c := range []struct {
		name                 string
		flags                []string
		perMount, superblock []string
	}{
		{name: "none"},
		{"each by itself", []string{"noatime", "discard"}, []string{"noatime"}, []string{"discard"}},
		{"in one string", []string{"ro,discard,nosuid", "logbsize=64k"}, []string{"ro", "nosuid"}, []string{"discard", "logbsize=64k"}},
		{"empty parts", []string{"", ",,ro,,", ","}, []string{"ro"}, nil},
		{"words for fstab", []string{"defaults,nofail,_netdev,auto,noauto,x-systemd.automount,x-a=b"}, nil, nil},
		{"order stays", []string{"noatime", "b=2", "strictatime", "a=1"}, []string{"noatime", "strictatime"}, []string{"b=2", "a=1"}},
		{"comma in quotes", []string{`context="system_u:object_r:t:s0:c1,c2",noexec`}, []string{"noexec"}, []string{`context="system_u:object_r:t:s0:c1,c2"`}},
		{"equals in the value", []string{"x=a=b"}, nil, []string{"x=a=b"}},
		{"an error that stops the file system alone", []string{"errors=remount-ro,errors=continue", "fatal_errors=bug"}, nil, []string{"errors=remount-ro", "errors=continue", "fatal_errors=bug"}},
		{"empty value", []string{"barrier="}, nil, []string{"barrier="}},
		{"a value makes it no option of a mount", []string{"ro=1"}, nil, []string{"ro=1"}},
		{"4 KiB", []string{strings.Repeat("a", 255), strings.Repeat("ro,", 1279)}, slices.Repeat([]string{"ro"}, 1279), []string{strings.Repeat("a", 255)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			perMount, superblock, err := SplitOptions(c.flags)
			testkit.Must(t, err)
			testkit.Diff(t, "of the mount", c.perMount, perMount, cmpopts.EquateEmpty())
			testkit.Diff(t, "of the file system", c.superblock, superblock, cmpopts.EquateEmpty())
		})
	}
}

func TestSplitOptionsRefuses(t *testing.T) {
	for _, c := range []struct{ flag, word string }{
		{"bind", "bind"}, {"ro,rbind", "rbind"}, {"move", "move"}, {"remount,rw", "remount"},
		{"loop", "loop"}, {"loop=/dev/loop3", "loop"}, {"offset=4096", "offset"}, {"sizelimit=1", "sizelimit"},
		{"rshared", "rshared"}, {"private", "private"}, {"unbindable", "unbindable"},
		{"source=/dev/sda", "source"}, {"device=/dev/sda", "device"}, {"logdev=/dev/sda", "logdev"},
		{"rtdev=/dev/sda", "rtdev"}, {"journal_dev=8", "journal_dev"}, {"journal_path=/dev/sda", "journal_path"},
		{"X-mount.mkdir", "X-mount.mkdir"},
		{"errors=panic", "errors=panic"}, {`noatime,errors="panic"`, "errors=panic"}, {"fatal_errors=panic", "fatal_errors=panic"},
		{"sb=32768", "sb"}, {"debug", "debug"}, {"abort", "abort"}, {"degraded", "degraded"},
		{"noload", "noload"}, {"ro,norecovery", "norecovery"}, {"nologreplay", "nologreplay"}, {"rescue=all", "rescue"},
		{"rescue=usebackuproot", "rescue"}, {"usebackuproot", "usebackuproot"}, {"recovery", "recovery"},
		{"a\x00b", "control"}, {"a\nb", "control"}, {"a=\x7f", "control"}, {"\"\x01\"", "control"},
		{`context="a,b`, "quote"}, {`a="b"c`, "quotes"}, {`"ro"`, "name"},
		{"=x", "name"}, {"a b", "name"}, {"/etc", "name"}, {"ä", "name"},
		{strings.Repeat("a", 256), "name"}, {"a=" + strings.Repeat("b", 256), "255"},
		{strings.Repeat("ro,", 1366), "4096"},
	} {
		if _, _, err := SplitOptions([]string{c.flag}); !errors.Is(err, errs.Invalid) {
			t.Errorf("%.40q: err %v, want %v", c.flag, err, errs.Invalid)
		} else if !strings.Contains(err.Error(), c.word) {
			t.Errorf("%.40q: %q does not say %q", c.flag, err, c.word)
		}
	}
}

func FuzzSplitOptions(f *testing.F) {
	f.Add("ro,noatime", "discard")
	f.Add(`context="a,b",x-y`, "loop")
	f.Add("a=b\x00c", `"`)
	f.Fuzz(func(t *testing.T, a, b string) {
		perMount, superblock, err := SplitOptions([]string{a, b})
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Fatalf("err %v is not %v", err, errs.Invalid)
			}
			return
		}
		if _, err := attributesOf(perMount, false); err != nil {
			t.Errorf("an option of the mount was not accepted: %v", err)
		}
		for _, option := range append(slices.Clone(perMount), superblock...) {
			name, value, _ := parseOption(option)
			if name == "" || forbidden(name, value) != "" || strings.ContainsAny(name, ", \x00") || strings.ContainsAny(value, "\x00\n\"") {
				t.Errorf("%q came through", option)
			}
		}
		perMount2, superblock2, err := SplitOptions(append(slices.Clone(perMount), superblock...))
		if err != nil || !slices.Equal(perMount, perMount2) || !slices.Equal(superblock, superblock2) {
			t.Errorf("again: %q %q (err %v), want %q %q", perMount2, superblock2, err, perMount, superblock)
		}
	})
}

func TestAttributesOf(t *testing.T) {
	for _, c := range []struct {
		options  []string
		readOnly bool
		want     attributes
	}{
		{want: attributes{}},
		{options: []string{"nosuid", "nodev"}, want: attributes{set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}},
		{options: []string{"ro", "rw"}, want: attributes{clear: unix.MOUNT_ATTR_RDONLY}},
		{options: []string{"rw"}, readOnly: true, want: attributes{set: unix.MOUNT_ATTR_RDONLY}},
		{options: []string{"noatime", "strictatime"}, want: attributes{set: unix.MOUNT_ATTR_STRICTATIME, clear: unix.MOUNT_ATTR__ATIME}},
		{options: []string{"noatime", "relatime", "nosuid"}, want: attributes{set: unix.MOUNT_ATTR_NOSUID, clear: unix.MOUNT_ATTR__ATIME}},
	} {
		if got, err := attributesOf(c.options, c.readOnly); err != nil || got != c.want {
			t.Errorf("%q, read-only %t: %+v (err %v), want %+v", c.options, c.readOnly, got, err, c.want)
		}
	}
	testkit.WantError(t, "discard as an option of a mount", testkit.Err(attributesOf([]string{"discard"}, false)), errs.Invalid)
}

func TestKernelLogRecords(t *testing.T) {
	if got := recordText("3,811,1520,-;XFS (loop3): Filesystem has duplicate UUID\n SUBSYSTEM=block\n"); got != "XFS (loop3): Filesystem has duplicate UUID" {
		t.Errorf("text of the record is %q", got)
	}
	for text, want := range map[string]bool{
		"XFS (loop3): bad": true, "BTRFS error (device loop3): bad": true, "/dev/loop3: bad": true, "BTRFS error (device loop3 state E): bad": true,
		"XFS (loop31): bad": false, "loop: module loaded": false,
	} {
		if got := mentions(text, "loop3"); got != want {
			t.Errorf("%q names loop3: %t, want %t", text, got, want)
		}
	}
}
