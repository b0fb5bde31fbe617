// Package matrix checks matrix.md: which test shows a behaviour.
package matrix

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

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

// source returns the tests of a package.
func source(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	for _, file := range testkit.Value(filepath.Glob(filepath.Join(testkit.Root(t), dir, "*_test.go")))(t) {
		all.Write(testkit.Value(os.ReadFile(file))(t))
	}
	return all.String()
}
