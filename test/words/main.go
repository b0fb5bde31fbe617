// Program words checks the language of the tree against the rules in words.yaml:
// comments, strings and names of Go files, pages, comments of contracts, and the
// comments and texts of scripts and manifests. Arguments limit it to files and
// directories. With -count it prints how many words comments and pages have.
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/test/tree"
)

//go:embed words.yaml
var ruleFile []byte

func main() {
	count := flag.Bool("count", false, "print the number of words of comments and pages")
	flag.Parse()
	root, err := tree.Root()
	if err != nil {
		log.Fatal(err)
	}
	files, err := sources(root, flag.Args())
	if err != nil {
		log.Fatal(err)
	}
	if *count {
		err = printCounts(root, files)
	} else {
		err = check(root, files)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// sources returns the files of the tree that are checked, relative to its root.
func sources(root string, args []string) ([]string, error) {
	out, err := tree.Git(root, append([]string{"ls-files", "-co", "--exclude-standard", "--"}, args...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	return slices.DeleteFunc(strings.Fields(string(out)), func(name string) bool {
		return strings.HasSuffix(name, ".pb.go") || strings.HasPrefix(name, "test/words/") ||
			strings.Contains(name, "/testdata/") || kindOf(name) == other
	}), nil
}

func check(root string, files []string) error {
	rules, err := parseRules(ruleFile)
	if err != nil {
		return fmt.Errorf("words.yaml: %w", err)
	}
	found := 0
	for _, name := range files {
		content, err := read(root, name)
		if err != nil {
			return err
		}
		text := textOf(name, content)
		for _, f := range rules.check(name, text) {
			fmt.Printf("%s:%d: %q: write %s\n", name, lineOf(text, f), f.text, f.write)
			found++
		}
	}
	if found > 0 {
		return fmt.Errorf("%d places use words that test/words/words.yaml refuses", found)
	}
	return nil
}

func lineOf(text string, f finding) int { return 1 + strings.Count(text[:f.at], "\n") }

func printCounts(root string, files []string) error {
	var comments, pages int
	for _, name := range files {
		content, err := read(root, name)
		if err != nil {
			return err
		}
		switch kindOf(name) {
		case page:
			pages += len(strings.Fields(prose(content)))
		case source:
			for _, line := range comment.FindAllString(content, -1) {
				comments += len(strings.Fields(line)) - 1
			}
		}
	}
	fmt.Printf("%d words in comments of Go files, %d in pages\n", comments, pages)
	return nil
}

var comment = regexp.MustCompile(`(?m)(?:^|[ \t])// .*`)

func read(root, name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, name))
	if os.IsNotExist(err) { // deleted, not yet committed
		return "", nil
	}
	return string(data), err
}
