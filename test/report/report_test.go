package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

// unsteady is a package whose tests fail the first time, or always. Each leaves
// a file that marks its first run.
const unsteady = `package unsteady

import (
	"os"
	"testing"
)

func first(t *testing.T) bool {
	name := t.Name() + ".ran"
	_, err := os.Stat(name)
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return err != nil
}

func TestListedOnce(t *testing.T) {
	t.Run("part", func(t *testing.T) {})
	if first(t) {
		t.Fatal("the first run of it")
	}
}

func TestUnlistedOnce(t *testing.T) {
	if first(t) {
		t.Fatal("the first run of it")
	}
}

func TestListedAlways(t *testing.T) { t.Fatal("it always fails") }

func TestListedReports(t *testing.T) {
	if first(t) {
		t.Fatal("WARNING: DATA RACE")
	}
}

func TestListedPanic(t *testing.T) {
	if first(t) {
		panic("lost")
	}
}

func TestSteady(t *testing.T) {}
`

func list(rows ...string) string {
	return "text\n\n| test | symptom | suspected cause | since |\n|---|---|---|---|\n" + strings.Join(rows, "\n") + "\n"
}

func listed(test string) string { return "| `unsteady " + test + "` | fails | a test | 2026-11-23 |" }

// TestFlakePolicy runs go test over failing tests: CI passes only with one that
// is listed and fails once.
func TestFlakePolicy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tests  string // expression of -run
		local  bool   // not in CI
		broken bool   // the package does not compile
		want   string // of the error; empty for none
		flaky  bool
	}{
		"listed, fails once":     {tests: "ListedOnce|Steady", flaky: true},
		"listed, fails always":   {tests: "ListedAlways|Steady", want: "unsteady TestListedAlways"},
		"not listed":             {tests: "UnlistedOnce|Steady", want: "unsteady TestUnlistedOnce"},
		"one listed, one not":    {tests: "^TestListedOnce|UnlistedOnce", want: "1 failed: [example.com/m/unsteady TestUnlistedOnce]", flaky: true},
		"listed, with a race":    {tests: "ListedReports|Steady", want: "unsteady TestListedReports"},
		"listed, with a panic":   {tests: "ListedPanic|Steady", want: "unsteady TestListedPanic"},
		"listed, not in CI":      {tests: "ListedOnce|Steady", local: true, want: "unsteady TestListedOnce"},
		"nothing fails":          {tests: "Steady"},
		"no test has that name":  {tests: "Absent", want: "no test ran"},
		"package does not build": {tests: "Steady", broken: true, want: "1 failed: [example.com/m/unsteady]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			source := unsteady
			if c.broken {
				source += "no Go"
			}
			flakes := write(t, dir, "flakes.md", list(listed("TestListedOnce"), listed("TestListedAlways"), listed("TestListedReports"), listed("TestListedPanic")))
			write(t, dir, "go.mod", "module example.com/m\n\ngo 1.26\n")
			write(t, dir, "unsteady/unsteady_test.go", source)
			results := filepath.Join(dir, "results")
			var out bytes.Buffer
			err := run(results, part{name: "unit", dir: dir, flakes: flakes, ci: !c.local, out: &out,
				command: []string{"go", "test", "-vet=off", "-run=" + c.tests, "./..."}})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q\n%s", err, c.want, out.String())
			}
			var closing bytes.Buffer
			if err := printClosing(&closing, results); (err == nil) != (c.want == "") {
				t.Errorf("closing table: %v\n%s", err, closing.String())
			}
			if flaky := strings.Contains(closing.String(), "FLAKY unit: example.com/m/unsteady TestListedOnce") && strings.Contains(closing.String(), "the first run of it"); flaky != c.flaky {
				t.Errorf("closing table says flaky: %v, want %v\n%s", flaky, c.flaky, closing.String())
			}
		})
	}
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func TestFlakesOfThisTree(t *testing.T) {
	if _, err := readFlakes("../flakes.md"); err != nil {
		t.Error(err)
	}
}

func TestReadFlakesRefuses(t *testing.T) {
	var eleven []string
	for range 11 {
		eleven = append(eleven, listed("TestX"))
	}
	for name, c := range map[string]struct{ text, want string }{
		"a row without a date":  {list("| `unsteady TestX` | fails | a test | soon |"), "YYYY-MM-DD"},
		"too many":              {list(eleven...), "at most 10"},
		"a test of the crash":   {list("| `test/crash TestX` | fails | a test | 2026-11-23 |"), "fix it"},
		"a test of fences":      {list("| `fence/nft TestX` | fails | a test | 2026-11-23 |"), "fix it"},
		"a test of the gate":    {list("| `sriov/gate TestX` | fails | a test | 2026-11-23 |"), "fix it"},
		"a sabotage":            {list(listed("TestSabotageTurnsRed")), "fix it"},
		"a kill":                {list(listed("TestKilledBetweenSteps")), "fix it"},
		"a model":               {list(listed("TestModel")), "fix it"},
		"a file that is absent": {"", "no such file"},
	} {
		path := filepath.Join(t.TempDir(), "flakes.md")
		if c.text != "" {
			write(t, filepath.Dir(path), "flakes.md", c.text)
		}
		if _, err := readFlakes(path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestClosingTable(t *testing.T) {
	results := filepath.Join(t.TempDir(), "results")
	at := func(s int) time.Time { return time.Unix(1_800_000_000+int64(s), 0) }
	for _, r := range []row{
		{Part: "lint", Start: at(0), End: at(100), OK: true},
		{Part: "unit", Start: at(100), End: at(400), CPU: 500 * time.Second, OK: true, Passed: 7, Skipped: 3, LeftOut: []outcome{
			{Test: modulePath + "node/nvme TestA", Output: "nvme-target is absent: the kernel has none; guests have"}, {Test: modulePath + "node/nvme TestB", Output: "nvme-target is absent: the kernel has none; guests have"},
			{Test: "p TestY", Output: "p_test.go:3: no root"},
		}},
		{Part: "vm", Start: at(300), End: at(500), Passed: 3, Failed: 1, Failures: []outcome{{
			Test: "p TestX", Output: "the cause\n" + strings.Repeat("more\n", 50) + "    x_test.go:7: wrong\n" + strings.Repeat("more\n", 49) + "the end\n", Machine: "load 9",
		}}},
	} {
		testkit.Must(t, appendRow(results, r))
	}
	var out bytes.Buffer
	if err := printClosing(&out, results); err == nil || !strings.Contains(err.Error(), "failed: vm") {
		t.Errorf("got error %v, want one that names vm", err)
	}
	for _, line := range []string{
		"lint                        0      100        0       0       0       0 ok      \n",
		"unit                      100      300      500       7       0       3 ok      vm\n",
		"vm                        300      200        0       3       1       0 FAILED  unit\n",
		"all                         0      500      500\n",
		"FAILED vm: p TestX\nthe cause\nmore\n",
		"more\n... 42 lines ...\nmore\n",
		"more\nthe end\nleft out",
		"nvme-target is absent         2  the kernel has none; guests have (node/nvme TestA, node/nvme TestB)\n",
		"p_test.go:3                   1  no root (p TestY)\n",
		"FAILED vm: p TestX: x_test.go:7: wrong\n    meanwhile: load 9\n10 passed, 1 failed, 3 skipped\n",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("the table lacks %q:\n%s", line, out.String())
		}
	}
}

// The last lines explain also what is no test: a command, or a run of go test
// without one.
func TestFailedCommand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		command []string
		want    string
	}{
		{[]string{"sh", "-c", "echo begun; echo no space left >&2; exit 3"}, "echo no space left >&2; exit 3: no space left"},
		{[]string{"go", "test", "-run=Absent", "."}, "FAILED x: x: no test ran"},
	} {
		results := filepath.Join(t.TempDir(), "results")
		if err := run(results, part{name: "x", dir: ".", flakes: "../flakes.md", command: c.command, out: io.Discard}); err == nil {
			t.Errorf("%q: no error", c.command)
		}
		var out bytes.Buffer
		_ = printClosing(&out, results)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		last := lines[max(0, len(lines)-3):]
		if !strings.HasSuffix(last[0], c.want) || !regexp.MustCompile(`meanwhile: load [0-9.]+ on \d+ processors, [0-9.]+ of [0-9.]+ GiB of memory available, [0-9.]+ GiB free below /`).MatchString(last[1]) {
			t.Errorf("%q: the last lines are %q, want %q and the state of the machine", c.command, last, c.want)
		}
	}
}
