// Package markdown reads the sections and code blocks of pages for tests. Tables are
// read by internal/markdown.
package markdown

import (
	"regexp"
	"strings"
)

// Section returns the text below a second-level heading, up to the next one, or
// "" without such a heading.
func Section(page, heading string) string {
	_, after, ok := strings.Cut("\n"+page, "\n## "+heading+"\n")
	if !ok {
		return ""
	}
	text, _, _ := strings.Cut(after, "\n## ")
	return text
}

var fence = regexp.MustCompile("(?ms)^( *)```([a-z]*)\n(.*?)^ *```$")

// Blocks returns the code blocks of one language in their order, without the
// indentation of a list.
func Blocks(page, language string) []string {
	var all []string
	for _, found := range fence.FindAllStringSubmatch(page, -1) {
		if found[2] != language {
			continue
		}
		var text strings.Builder
		for line := range strings.Lines(found[3]) {
			text.WriteString(strings.TrimPrefix(line, found[1]))
		}
		all = append(all, text.String())
	}
	return all
}
