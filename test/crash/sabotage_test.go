package crash

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/driver"
)

// sabotage is one durable write left out, and the instant at which that must
// show.
type sabotage struct {
	name string
	file string
	// old stands in the file once; it is replaced by new in the build under
	// test, never in the tree.
	old, new string
	point    string
	symptom  string // of what the crash test must complain
}

var sabotages = []sabotage{
	{
		name: "no mark before a volume's file is removed",
		file: "engine/local/delete.go",
		old:  "if err := e.putVolume(ctx, id, r); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tif was == copying {",
		new:  "if was == copying {",

		point: "delete.removed", symptom: "the pool lacks volumes/",
	},
	{
		name: "no intent before an inline volume is made",
		file: "attach/ephemeral.go",
		old:  "if err := m.records.putPublish(ctx, r.Target, rec); err != nil {\n\t\treturn err\n\t}\n\tdefer func() {",
		new:  "defer func() {",

		point: "publish.ephemeral-created", symptom: "which nobody owns",
	},
}

// A build that leaves out one durable write must turn the crash test red:
// otherwise the crash test proves nothing.
func TestSabotageTurnsRed(t *testing.T) {
	for i, s := range sabotages {
		t.Run(s.name, func(t *testing.T) {
			cleat := driver.Build(t, "-tags", "crashpoints", "-overlay", s.overlay(t))
			st := newStation(t, cleat, "sabotaged", uint64(i)+1, true, "--pool-image", "2GiB")
			for round := range 40 {
				_, err := st.round(t.Context(), s.point+"=1", patience)
				if err == nil {
					err = st.settle(t.Context())
				}
				if err == nil {
					continue
				}
				if !strings.Contains(err.Error(), s.symptom) {
					t.Fatalf("red, but not for %q: %v", s.symptom, err)
				}
				t.Logf("red after %d kills, as it must be: %s", round+1, s.symptom)
				return
			}
			t.Error("a build without this durable write passed the crash test")
		})
	}
}

// overlay writes the sabotaged copy of the file and the description of it that
// go build reads.
func (s sabotage) overlay(t *testing.T) string {
	t.Helper()
	path := filepath.Join(driver.Root(t), s.file)
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), s.old); n != 1 {
		t.Fatalf("%s holds what is to be sabotaged %d times, want once: mend this test", s.file, n)
	}
	dir := t.TempDir()
	copied := filepath.Join(dir, "sabotaged.go")
	if err := os.WriteFile(copied, []byte(strings.Replace(string(source), s.old, s.new, 1)), 0o600); err != nil {
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
	return overlay
}
