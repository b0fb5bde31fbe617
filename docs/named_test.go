package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// A page that a text of the product or the chart names exists, and so does the
// heading, as in docs/ceph.md#boot-reports or "docs/ceph.md, Restore an image".
var namedPage = regexp.MustCompile(`docs/([a-z0-9-]+\.md)(?:#([a-z0-9_-]+)|, ([A-Z][\w' -]*\w))?`)

func TestNamedPages(t *testing.T) {
	texts := readSource(t).texts
	for _, pattern := range []string{"values.yaml", "README.md", "templates/*", "rules/*"} {
		for _, path := range testkit.Value(filepath.Glob(filepath.Join(testkit.Root(t), "deploy/chart", pattern)))(t) {
			texts = append(texts, string(testkit.Value(os.ReadFile(path))(t)))
		}
	}
	count := 0
	for _, text := range texts {
		for _, found := range namedPage.FindAllStringSubmatch(text, -1) {
			count++
			if _, err := os.Stat(found[1]); err != nil {
				t.Errorf("%q: %v", found[0], err)
				continue
			}
			all := anchors(page(t, "docs/"+found[1]))
			if found[2] != "" && !slices.Contains(all, found[2]) {
				t.Errorf("%q names no heading of the page", found[0])
			}
			// The heading ends where the sentence goes on.
			if words := strings.ReplaceAll(strings.ToLower(found[3]), " ", "-"); words != "" &&
				!slices.ContainsFunc(all, func(a string) bool { return strings.HasPrefix(words, a) || strings.HasPrefix(a, words) }) {
				t.Errorf("%q names no heading of the page", found[0])
			}
		}
	}
	if count < 60 {
		t.Errorf("only %d pages are named", count)
	}
}
