package workload

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/driver"
)

// Replacement is a piece of the product's source that a build has otherwise.
type Replacement struct {
	File string // from the root of the tree
	Old  string // what stands in it, once
	New  string
}

// BuildWith builds cleat with the tag crashpoints and the replacement; the tree
// stays as it is.
func BuildWith(t testing.TB, r Replacement) string {
	t.Helper()
	path := filepath.Join(driver.Root(t), r.File)
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), r.Old); n != 1 {
		t.Fatalf("%s holds what is to be replaced %d times, want once: mend this test", r.File, n)
	}
	dir := t.TempDir()
	copied := filepath.Join(dir, "replaced.go")
	if err := os.WriteFile(copied, []byte(strings.Replace(string(source), r.Old, r.New, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	description, err := json.Marshal(map[string]map[string]string{"Replace": {path: copied}})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, description, 0o600); err != nil {
		t.Fatal(err)
	}
	return driver.Build(t, "-tags", "crashpoints", "-overlay", overlay)
}
