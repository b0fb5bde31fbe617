package workload

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// Replacement is a change of the product's source for one build.
type Replacement struct {
	File string // relative to the root of the tree
	Old  string // must occur once
	New  string
}

// BuildWith builds cleat with the tag crashpoints and the replacements.
func BuildWith(t testing.TB, replacements ...Replacement) string {
	t.Helper()
	return testkit.Build(t, testkit.Cleat, "-tags", "crashpoints", Overlay(t, replacements...))
}

// Overlay returns the flag for a build, or a test, with the replacements; the
// tree is not changed.
func Overlay(t testing.TB, replacements ...Replacement) (flag string) {
	t.Helper()
	dir := t.TempDir()
	replaced := map[string]string{}
	for i, r := range replacements {
		path := filepath.Join(testkit.Root(t), r.File)
		to := filepath.Join(dir, fmt.Sprintf("replaced%d.go", i))
		r.write(t, cmp.Or(replaced[path], path), to)
		replaced[path] = to
	}
	description, err := json.Marshal(map[string]map[string]string{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, description, 0o600); err != nil {
		t.Fatal(err)
	}
	return "-overlay=" + overlay
}

// write writes a source file with the replacement applied.
func (r Replacement) write(t testing.TB, path, to string) {
	t.Helper()
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), r.Old); n != 1 {
		t.Fatalf("%s contains the text to replace %d times, want once: fix this test", r.File, n)
	}
	if err := os.WriteFile(to, []byte(strings.Replace(string(source), r.Old, r.New, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}
