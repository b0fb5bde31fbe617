package docs

import (
	"path/filepath"
	"testing"
)

// mostWords is how long the documentation is allowed to be, so that a reader finds
// things: a page that grows replaces something.
const mostWords = 56_500

// Code, targets of links and generated parts do not count.
func TestBudget(t *testing.T) {
	total := 0
	for _, name := range append(pages(t), filepath.FromSlash("deploy/chart/README.md")) {
		n := words(page(t, name))
		t.Logf("%6d %s", n, name)
		total += n
	}
	t.Logf("%6d words", total)
	if total > mostWords {
		t.Errorf("the documentation has %d words, at most %d are allowed: say things once, and leave out history and internals", total, mostWords)
	}
}

func words(page string) int {
	page = codeBlock.ReplaceAllString(generatedPart.ReplaceAllString(page, ""), "\n\n")
	return len(wordOfText.FindAllString(linkTarget.ReplaceAllString(codeSpan.ReplaceAllString(page, " § "), "] "), -1))
}

func TestWords(t *testing.T) {
	const page = "# A [link](b.md#c), `code`\n\n| two | cells |\n\n```\nfour more words here\n```\n<!-- made from d -->\nnot this\n<!-- end -->\n"
	if n := words(page); n != 4 {
		t.Errorf("%d words, want 4", n)
	}
}
