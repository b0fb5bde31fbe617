package markdown

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	tables "github.com/cleatproject/cleat/internal/markdown"
)

var page = strings.ReplaceAll(`# Page

## First

| a | b |
|---|---|
| '§x § y§' | one \| two |
| | three |

text

| c |
|---|
| z |

## Second

1. In a list:

   '''sh
   kubectl get
     deeper
   '''

'''yaml
a: |
  b
'''
`, "'''", "```")

func TestPage(t *testing.T) {
	text := strings.NewReplacer("§", "`").Replace(page)
	if diff := cmp.Diff([]tables.Row{{"a": "'`x ` y`'", "b": "one | two"}, {"a": "", "b": "three"}, {"c": "z"}}, tables.Rows(text)); diff != "" {
		t.Error(diff)
	}
	if got := Section(text, "Second"); !strings.Contains(got, "In a list") || strings.Contains(got, "text") {
		t.Errorf("the second section is %q", got)
	}
	if got := Section(text, "Third"); got != "" {
		t.Errorf("a section that is not there is %q", got)
	}
	if diff := cmp.Diff([]string{"kubectl get\n  deeper\n"}, Blocks(text, "sh")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a: |\n  b\n"}, Blocks(text, "yaml")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"the log of", "says"}, tables.Parts("the log of … says …")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"code", "more"}, tables.Spans("some `code` and `more`")); diff != "" {
		t.Error(diff)
	}
}
