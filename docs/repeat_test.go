package docs

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sameWords is the number of consecutive words that make a repetition.
const sameWords = 9

var (
	generatedPart = regexp.MustCompile(`(?s)<!-- made (?:from|by) .*?(?:<!-- end -->|\z)`)
	codeBlock     = regexp.MustCompile("(?ms)^ *```.*?^ *```$|^    .*?$")
	codeSpan      = regexp.MustCompile("`[^`]*`")
	linkTarget    = regexp.MustCompile(`\]\([^)]*\)`)
	wordOfText    = regexp.MustCompile(`[\pL\d]+(?:['.-][\pL\d]+)*`)
	endOfText     = regexp.MustCompile(`\n\s*\n|\n *(?:[-*]|\d+\.) |\|`)
)

// repetitions returns the texts of several words that occur in two places of the
// pages. Places are paragraphs, items of lists and cells of tables; code and
// generated parts do not count.
func repetitions(pages map[string]string) []string {
	type place struct {
		page string
		text int
	}
	first := map[string]place{}
	reported := map[[2]place]bool{}
	var all []string
	for name, page := range pages {
		page = codeBlock.ReplaceAllString(generatedPart.ReplaceAllString(page, ""), "\n\n")
		for i, text := range endOfText.Split(page, -1) {
			here := place{name, i}
			// A message is not a sentence: each of its uses quotes it.
			text = strings.ToLower(linkTarget.ReplaceAllString(codeSpan.ReplaceAllString(text, " § "), "] "))
			for _, part := range strings.Split(text, "§") {
				words := wordOfText.FindAllString(part, -1)
				for end := sameWords; end <= len(words); end++ {
					shingle := strings.Join(words[end-sameWords:end], " ")
					there, seen := first[shingle]
					if !seen {
						first[shingle] = here
						continue
					}
					if pair := [2]place{there, here}; there != here && !reported[pair] {
						reported[pair] = true
						all = append(all, fmt.Sprintf("%s and %s: %q", min(there.page, here.page), max(there.page, here.page), shingle))
					}
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

// Nothing is said twice: who corrects one place does not find the other.
func TestRepetitions(t *testing.T) {
	all := map[string]string{}
	for _, name := range pages(t) {
		if name == "README.md" || strings.HasPrefix(name, "docs/") {
			all[name] = page(t, name)
		}
	}
	for _, text := range repetitions(all) {
		t.Errorf("said twice, link to one of the places instead: %s", text)
	}
}

func TestRepetitionsAreFound(t *testing.T) {
	const said = "a node that does not answer can be alive and still write to its volume"
	for name, c := range map[string]struct {
		pages map[string]string
		want  []string
	}{
		"two pages, other line breaks and links": {
			map[string]string{"a": "# A\n\nNote: " + said, "b": "x\n\n- A [node](c.md#d) that\n  does not answer, can be alive, and still write to its volume."},
			[]string{`a and b: "a node that does not answer can be alive"`},
		},
		"two cells":                {map[string]string{"a": "| x | " + said + " |\n|---|---|\n| " + said + " | y |"}, []string{`a and a: "a node that does not answer can be alive"`}},
		"code blocks":              {map[string]string{"a": "```\n" + said + "\n```\n\n    " + said + "\n\n" + said}, nil},
		"generated parts":          {map[string]string{"a": said + "\n<!-- made from b -->\n" + said + "\n<!-- end -->\n", "b": "<!-- made from c -->\n" + said}, nil},
		"a message that is quoted": {map[string]string{"a": "`" + said + "`", "b": "see `" + said + "`"}, nil},
		"eight words":              {map[string]string{"a": "a node that does not answer can be.", "b": "a node that does not answer can be!"}, nil},
	} {
		if diff := cmp.Diff(c.want, repetitions(c.pages)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}
