package mount

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

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
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.perMount, perMount, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("of the mount (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.superblock, superblock, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("of the file system (-want +got):\n%s", diff)
			}
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
		_, _, err := SplitOptions([]string{c.flag})
		if !errors.Is(err, errs.Invalid) {
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
			t.Errorf("an option of the mount is none: %v", err)
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
	if _, err := attributesOf([]string{"discard"}, false); !errors.Is(err, errs.Invalid) {
		t.Errorf("discard as an option of a mount: err %v, want %v", err, errs.Invalid)
	}
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
