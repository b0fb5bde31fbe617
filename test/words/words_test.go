package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRules(t *testing.T) {
	if _, err := parseRules(ruleFile); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{
		"rules: [{refuse: anew, write: again, example: again}]", // the example is not refused
		"rules: [{refuse: anew, example: anew}]",
		"rules: [{refuse: '(', write: a, example: a}]",
		"exceptions: [{allow: power cut}]",
		"words: []",
	} {
		if _, err := parseRules([]byte(bad)); err == nil {
			t.Errorf("accepted: %s", bad)
		}
	}
}

func TestCheck(t *testing.T) {
	rules, err := parseRules([]byte(`
rules:
- {refuse: anew|once more, write: again, example: anew}
exceptions:
- {allow: once more unto the breach, below: [test/plays], because: a quotation}
`))
	if err != nil {
		t.Fatal(err)
	}
	const source = `// Package p starts ` + `anew.
package p

// Start tries once
// more.
func startAnew() error { return errors.New("begun Anew") }

type renewed struct { // no word of the rule
	at string ` + "`json:\"anew\"`" + ` // a key
}
`
	for _, test := range []struct {
		name, file, content string
		want                []int // lines
	}{
		{"comment, name and string of Go", "a.go", source, []int{1, 4, 6, 6}},
		{"page without its code", "a.md", "It starts\nanew.\n`anew`\n\n```\nanew\n```\nanew", []int{2, 8}},
		{"manifest", "chart/values.yaml", "a: b\n# anew\ntext: anew\n", []int{2, 3}},
		{"comments of a contract", "api/a.proto", "import \"a/anew.proto\";\n// once\n// more\nstring anew = 1; // anew\n", []int{2, 4}},
		{"exception", "test/plays/henry.md", "Once more unto\nthe breach", nil},
		{"exception of another directory", "docs/a.md", "Once more unto the breach", []int{1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []int
			text := textOf(test.file, test.content)
			for _, f := range rules.check(test.file, text) {
				got = append(got, lineOf(text, f))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}
