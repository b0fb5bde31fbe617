package holders

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

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

// Start returns before the process has its own name.
func sleepIn(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.Dir = dir
	child := testkit.Start(t, cmd)
	testkit.Eventually(t, "the process has its name", func() bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child.PID()))
		return err == nil && string(name) == "sleep\n"
	})
}

// searched repeats a search that timed out.
func searched(t *testing.T, dir string) (text string) {
	t.Helper()
	testkit.Eventually(t, "a whole search", func() bool {
		text = OfMount(t.Context(), dir)
		return !strings.Contains(text, "not found in time")
	})
	return text
}

// The text mentions a timeout if and only if the search timed out.
func TestSearchThatIsLate(t *testing.T) {
	for name, c := range map[string]struct {
		found []string
		late  bool // when the last one was inspected
		want  string
	}{
		"nothing, late": {nil, true, "users that were not found in time"},
		"some, late":    {[]string{"a", "b"}, true, "a; b; possibly more that were not found in time"},
		"some":          {[]string{"a", "b"}, false, "a; b"},
		"enough, late":  {[]string{"1", "2", "3", "4", "5"}, true, "1; 2; 3; 4; 5"},
		"nothing":       {nil, false, "no users visible in /proc"},
	} {
		s := newSearch(t.Context(), bound)
		s.found = c.found
		if c.late {
			s.deadline = time.Now().Add(-time.Second)
		}
		s.over()
		s.deadline = time.Now().Add(-time.Second) // all have been inspected
		if got := s.text(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestOfMountNamesProcesses(t *testing.T) {
	dir := t.TempDir()
	if text := searched(t, dir); text != "no users visible in /proc" {
		t.Errorf("of an unused directory: %q", text)
	}
	f := testkit.Open(os.Create(filepath.Join(dir, "file")))(t)
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
	f := testkit.Value(os.Create(filepath.Join(dir, "file")))(t)
	defer f.Close()
	ctx := testkit.Canceled(t)
	if text := OfMount(ctx, dir); text != "users that were not found in time" {
		t.Errorf("a search that was called off found %q", text)
	}
}

func TestTextNamesAFewOnly(t *testing.T) {
	dir := t.TempDir()
	for range 2 * maxHolders {
		sleepIn(t, dir)
	}
	if text := searched(t, dir); strings.Count(text, "(sleep)") != maxHolders {
		t.Errorf("%q names %d of %d processes, want %d", text, strings.Count(text, "(sleep)"), 2*maxHolders, maxHolders)
	}
}
