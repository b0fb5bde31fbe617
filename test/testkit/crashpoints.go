package testkit

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// CrashPoints returns the names of crash points (internal/crashpoint) in the
// code of the package under test, or of other directories of the tree ("dpu",
// "*"), sorted.
func CrashPoints(t testing.TB, dir ...string) []string {
	t.Helper()
	hit := regexp.MustCompile(`crashpoint\.Hit\("([^"]+)"\)`)
	found := map[string]bool{}
	files := "*.go"
	if len(dir) > 0 {
		files = filepath.Join(Root(t), filepath.Join(dir...), files)
	}
	for _, name := range Value(filepath.Glob(files))(t) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, m := range hit.FindAllStringSubmatch(string(Value(os.ReadFile(name))(t)), -1) {
			found[m[1]] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
