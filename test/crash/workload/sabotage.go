package workload

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// Replacement is a piece of the product's source that a build has otherwise.
type Replacement struct {
	File string // from the root of the tree
	Old  string // what stands in it, once
	New  string
}

// BuildWith builds cleat with the tag crashpoints and the replacements, each in
// a file of its own; the tree stays as it is.
func BuildWith(t testing.TB, replacements ...Replacement) string {
	t.Helper()
	dir := t.TempDir()
	replaced := map[string]string{}
	for i, r := range replacements {
		path := filepath.Join(testkit.Root(t), r.File)
		replaced[path] = filepath.Join(dir, fmt.Sprintf("replaced%d.go", i))
		r.write(t, path, replaced[path])
	}
	description, err := json.Marshal(map[string]map[string]string{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, description, 0o600); err != nil {
		t.Fatal(err)
	}
	return testkit.Build(t, testkit.Cleat, "-tags", "crashpoints", "-overlay", overlay)
}

// write writes a file of the source as the replacement has it.
func (r Replacement) write(t testing.TB, path, to string) {
	t.Helper()
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), r.Old); n != 1 {
		t.Fatalf("%s holds what is to be replaced %d times, want once: mend this test", r.File, n)
	}
	if err := os.WriteFile(to, []byte(strings.Replace(string(source), r.Old, r.New, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}
