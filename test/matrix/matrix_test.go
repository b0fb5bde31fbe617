// Package matrix checks matrix.md: which test shows a behaviour.
package matrix

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/docs"
	"github.com/cleatproject/cleat/internal/markdown"
	"github.com/cleatproject/cleat/test/testkit"
)

// reference is a test in matrix.md: `PACKAGE TEST`, where TEST is a test or the
// function of a subtest.
var reference = regexp.MustCompile("`([a-z0-9/]+) ([tT]est\\w+)`")

func TestNamedTestsExist(t *testing.T) {
	text := testkit.Value(os.ReadFile("matrix.md"))(t)
	found := reference.FindAllStringSubmatch(string(text), -1)
	if len(found) < 50 {
		t.Fatalf("matrix.md names only %d tests", len(found))
	}
	sources := map[string]string{}
	for _, m := range found {
		dir, name := m[1], m[2]
		if sources[dir] == "" {
			sources[dir] = source(t, dir)
		}
		if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + name + `\(`).MatchString(sources[dir]) {
			t.Errorf("matrix.md names %s %s, which does not exist", dir, name)
		}
	}
}

// The failures that kubectl cleat why explains are rows of the page, of each
// section about a pod or a claim that waits.
func TestFailuresAreOnThePage(t *testing.T) {
	sections := map[string][]markdown.Row{}
	for text := range strings.SplitSeq(docs.Troubleshooting, "\n## ") {
		title, _, _ := strings.Cut(text, "\n")
		sections[title] = markdown.Rows(text)
	}
	found, count := map[string]bool{}, 0
	for _, row := range markdown.Rows(string(testkit.Value(os.ReadFile("matrix.md"))(t))) {
		section, quoted := row["section"], row["row"]
		if quoted == "" {
			continue
		}
		found[section], count = true, count+1
		if !slices.ContainsFunc(sections[section], func(r markdown.Row) bool { return strings.Contains(r["message"]+r["what you see"], quoted) }) {
			t.Errorf("section %q of docs/troubleshooting.md has no row %s", section, quoted)
		}
		if !reference.MatchString(row["provoked by"]) {
			t.Errorf("%s: no test provokes it", quoted)
		}
	}
	if count < 20 {
		t.Errorf("matrix.md has %d failures, want 20", count)
	}
	for title, rows := range sections {
		switch title {
		case "Where to look", "A volume of an SPDK target", "A fence fails", "Helm refuses": // of no pod or claim, or of one engine
		default:
			if len(rows) > 0 && !found[title] {
				t.Errorf("no failure of section %q of docs/troubleshooting.md is provoked", title)
			}
		}
	}
}

// source returns the tests of a package.
func source(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	for _, file := range testkit.Value(filepath.Glob(filepath.Join(testkit.Root(t), dir, "*_test.go")))(t) {
		all.Write(testkit.Value(os.ReadFile(file))(t))
	}
	return all.String()
}
