package holders

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
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

// sleepIn starts a process that works in a directory until the test ends. Start
// returns a moment before the process has its own name.
func sleepIn(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	named := func() bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		return err == nil && string(name) == "sleep\n"
	}
	for late := time.Now().Add(time.Minute); !named(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the process gets no name")
		}
	}
}

// searched is OfMount until it had the time to look at everything.
func searched(t *testing.T, dir string) string {
	t.Helper()
	for late := time.Now().Add(time.Minute); ; {
		text := OfMount(t.Context(), dir)
		if !strings.Contains(text, "not found in time") || time.Now().After(late) {
			return text
		}
	}
}

// The text tells when there may be more, and only then.
func TestSearchThatIsLate(t *testing.T) {
	for name, c := range map[string]struct {
		found []string
		late  bool // when it was looked at the last one
		want  string
	}{
		"nothing, late": {nil, true, "something that was not found in time"},
		"some, late":    {[]string{"a", "b"}, true, "a; b; and maybe more that was not found in time"},
		"some":          {[]string{"a", "b"}, false, "a; b"},
		"enough, late":  {[]string{"1", "2", "3", "4", "5"}, true, "1; 2; 3; 4; 5"},
		"nothing":       {nil, false, "nothing that /proc shows"},
	} {
		s := newSearch(t.Context())
		s.found = c.found
		if c.late {
			s.deadline = time.Now().Add(-time.Second)
		}
		s.over()
		s.deadline = time.Now().Add(-time.Second) // all have been looked at by then
		if got := s.text(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestOfMountNamesProcesses(t *testing.T) {
	dir := t.TempDir()
	if text := searched(t, dir); text != "nothing that /proc shows" {
		t.Errorf("of an unused directory: %q", text)
	}
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sleepIn(t, dir)
	text := searched(t, dir)
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
	if text := OfMount(ctx, dir); text != "something that was not found in time" {
		t.Errorf("a search that was called off found %q", text)
	}
}

func TestTextNamesAFewOnly(t *testing.T) {
	dir := t.TempDir()
	for range 2 * most {
		sleepIn(t, dir)
	}
	if text := searched(t, dir); strings.Count(text, "(sleep)") != most {
		t.Errorf("%q names %d of %d processes, want %d", text, strings.Count(text, "(sleep)"), 2*most, most)
	}
}
