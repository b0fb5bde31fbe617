package docs

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// Each diagram was drawn from its text as it is now, and is on a page.
func TestDiagrams(t *testing.T) {
	texts := testkit.Value(filepath.Glob("diagrams/*.dot"))(t)
	drawn := testkit.Value(filepath.Glob("diagrams/*.svg"))(t)
	if len(texts) < 6 || len(texts) != len(drawn) {
		t.Errorf("%d texts and %d diagrams", len(texts), len(drawn))
	}
	shown := ""
	for _, name := range pages(t) {
		shown += page(t, name)
	}
	for _, text := range texts {
		svg := strings.TrimSuffix(text, ".dot") + ".svg"
		digest := fmt.Sprintf("%x", sha256.Sum256(testkit.Value(os.ReadFile(text))(t)))
		if drawing := string(testkit.Value(os.ReadFile(svg))(t)); !strings.Contains(drawing, digest) || !strings.Contains(drawing, "</svg>") {
			t.Errorf("docs/%s was not drawn from docs/%s: make diagrams", svg, text)
		}
		if !strings.Contains(shown, "]("+svg+")") && !strings.Contains(shown, "](docs/"+svg+")") {
			t.Errorf("no page shows docs/%s", svg)
		}
	}
}
