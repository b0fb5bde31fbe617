// Program words checks the language of the tree against the rules in words.yaml:
// comments, string literals and declared names of Go files, pages, and the
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
		return strings.HasSuffix(name, ".pb.go") || strings.HasPrefix(name, "test/words/") || strings.HasPrefix(name, "api/") ||
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
		texts, err := read(root, name)
		if err != nil {
			return err
		}
		for _, t := range texts {
			for _, f := range rules.check(name, t.text) {
				fmt.Printf("%s:%d: %q: write %s\n", name, lineOf(t, f), f.text, f.write)
				found++
			}
		}
	}
	if found > 0 {
		return fmt.Errorf("%d places use words that test/words/words.yaml refuses", found)
	}
	return nil
}

func lineOf(t text, f finding) int { return t.line + strings.Count(t.text[:f.at], "\n") }

func printCounts(root string, files []string) error {
	var comments, pages int
	for _, name := range files {
		texts, err := read(root, name)
		if err != nil {
			return err
		}
		for _, t := range texts {
			switch n := len(strings.Fields(t.text)); {
			case kindOf(name) == page:
				pages += n
			case t.comment && kindOf(name) == source:
				comments += n
			}
		}
	}
	fmt.Printf("%d words in comments of Go files, %d in pages\n", comments, pages)
	return nil
}

func read(root, name string) ([]text, error) {
	data, err := os.ReadFile(filepath.Join(root, name))
	if os.IsNotExist(err) { // deleted, not yet committed
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	texts, err := textsOf(name, string(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return texts, nil
}
