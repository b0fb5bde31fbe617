package image

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

// small returns a tree of two packages without linked programs.
func small() tree {
	return tree{
		"/usr/sbin/tool.real":               {mode: 0o755, data: []byte("x"), from: "tools"},
		"/usr/sbin/tool":                    {mode: fs.ModeSymlink | 0o777, link: "tool.real", from: "tools"},
		"/usr/bin/other":                    {mode: fs.ModeSymlink | 0o777, link: "/sbin/tool", from: "tools"},
		"/usr/sbin/unused":                  {mode: 0o755, from: "tools"},
		"/usr/sbin/script":                  {mode: 0o755, data: []byte("#!/bin/sh\n"), from: "tools"},
		"/usr/sbin/rights":                  {mode: fs.ModeSetuid | 0o755, from: "tools"},
		"/usr/sbin/broken":                  {mode: fs.ModeSymlink | 0o777, link: "absent", from: "tools"},
		"/usr/sbin/elf":                     {mode: 0o755, data: []byte("\x7fELF"), from: "tools"},
		"/etc/a":                            {mode: 0o644, from: "settings"},
		"/etc/d/1":                          {mode: 0o644, from: "settings"},
		"/etc/d/2":                          {mode: 0o600, from: "settings"},
		"/etc/dd":                           {mode: 0o644, from: "settings"},
		"/usr/share/doc/tools":              {mode: fs.ModeSymlink | 0o777, link: "settings", from: "tools"},
		"/usr/share/doc/settings/copyright": {mode: 0o644, from: "settings"},
		"/usr/share/doc/settings/README":    {mode: 0o644, from: "settings"},
		"/usr/share/doc/idle/copyright":     {mode: 0o644, from: "idle"},
		"/usr/share/man/man8/tool.8.gz":     {mode: 0o644, from: "tools"},
	}
}

func TestChoose(t *testing.T) {
	c := testkit.Value(choose(small(), []string{"settings", "tools"}, contents{programs: []string{"other"}, configuration: []string{"/etc/a", "/etc/d/"}}))(t)
	var got []string
	for _, f := range c.files() {
		got = append(got, f.Path+" "+f.Link)
	}
	want := []string{"/etc/a ", "/etc/d/1 ", "/etc/d/2 ", "/usr/bin/other /sbin/tool", "/usr/sbin/tool tool.real", "/usr/sbin/tool.real ",
		"/usr/share/doc/settings/copyright ", "/usr/share/doc/tools settings"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestChooseRejects(t *testing.T) {
	for _, c := range []struct{ packages, programs, configuration, want string }{
		{"settings tools", "absent", "", "program absent: not in any package of the list"},
		{"settings tools", "script", "", "is a script"},
		{"settings tools", "rights", "", "setuid and setgid files are not allowed"},
		{"settings tools", "broken", "", "/usr/sbin/absent is not in any package"},
		{"settings tools", "elf", "", "/usr/sbin/elf: "},
		{"settings tools", "tool", "/etc/absent", "/etc/absent is not in any package"},
		{"settings tools idle", "tool", "/etc/a", "uses nothing of package idle"},
		{"tools other", "tool", "", "uses nothing of package other"},
	} {
		_, err := choose(small(), strings.Fields(c.packages), contents{programs: strings.Fields(c.programs), configuration: strings.Fields(c.configuration)})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got error %v", c, err)
		}
	}
	bare := small()
	delete(bare, "/usr/share/doc/settings/copyright")
	if _, err := choose(bare, []string{"settings"}, contents{configuration: []string{"/etc/a"}}); err == nil || !strings.Contains(err.Error(), "licence of package settings") {
		t.Errorf("package without licence: got error %v", err)
	}
}

func TestMerged(t *testing.T) {
	for in, want := range map[string]string{"./sbin/mke2fs": "/usr/sbin/mke2fs", "./bin": "/bin", "/lib64/l": "/usr/lib64/l", "./usr/bin/../bin/y": "/usr/bin/y",
		"./library/x": "/library/x", "../../etc/x": "/etc/x"} {
		if got := merged(in); got != want {
			t.Errorf("merged(%q) is %q, want %q", in, got, want)
		}
	}
}

func TestParsePackages(t *testing.T) {
	got, err := parsePackages("# why\n\nlibc6\n g++ \n")
	if diff := cmp.Diff([]string{"libc6", "g++"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	for text, want := range map[string]string{"": "empty", "# a\n": "empty", "a b\n": `"a b" is not the name`, "-o=x\n": "is not the name", "libc6\nlibc6\n": "libc6 is listed twice"} {
		if got, err := parsePackages(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
}
