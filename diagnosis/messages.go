package diagnosis

import (
	"regexp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/docs"
	"github.com/cleatproject/cleat/internal/markdown"
)

// message is a row of docs/troubleshooting.md.
type message struct {
	section string
	texts   []string // any of them; "…" stands for any text
	who     string   // component that writes it
	cause   string
	advice  string
}

// messages returns the rows that quote a message.
func messages() []message {
	var all []message
	for section := range strings.SplitSeq(docs.Troubleshooting, "\n## ") {
		title, _, _ := strings.Cut(section, "\n")
		for _, row := range markdown.Rows(section) {
			if texts := markdown.Spans(row["message"]); len(texts) > 0 {
				all = append(all, message{section: title, texts: texts, who: row["who"], cause: plain(row["cause"]), advice: plain(row["what to do"])})
			}
		}
	}
	return all
}

// first returns the messages with those of a section at the beginning: another
// section can have the same one with another cause.
func first(all []message, section string) []message {
	return slices.SortedStableFunc(slices.Values(all), func(a, b message) int {
		return -compareBool(a.section == section, b.section == section)
	})
}

var link = regexp.MustCompile(`\[([^\]]*)\]\(([^)]*)\)`)

// plain returns the text of a cell, with the page that a link leads to.
func plain(cell string) string {
	cell = link.ReplaceAllStringFunc(cell, func(l string) string {
		of := link.FindStringSubmatch(l)
		target := of[2]
		if strings.HasPrefix(target, "#") {
			target = "troubleshooting.md" + target
		}
		return of[1] + " (docs/" + target + ")"
	})
	return strings.NewReplacer("**", "", "`", "").Replace(cell)
}

// find returns the row with the longest message that the text contains, of equal
// ones the first; nil without one.
func find(all []message, text string) *message {
	var best *message
	longest := 0
	for i := range all {
		for _, quoted := range all[i].texts {
			if n := contains(text, quoted); n > longest {
				best, longest = &all[i], n
			}
		}
	}
	return best
}

// contains returns the length of the quoted parts if the text has all of them in
// their order, else 0.
func contains(text, quoted string) int {
	n := 0
	for _, part := range markdown.Parts(quoted) {
		_, after, found := strings.Cut(text, part)
		if !found {
			return 0
		}
		text, n = after, n+len(part)
	}
	return n
}
