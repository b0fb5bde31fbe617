// Program lines prints the lines, statements and packages of the tree, product
// and tests separately, without generated code. -compare DIRECTORY adds the
// difference from another checkout ("git worktree add").
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/test/tree"
)

// row has the lines, statements and packages of a top-level folder, first
// those of the product, then those of tests.
type row [6]int

func main() {
	other := flag.String("compare", "", "a checkout to print the difference from")
	flag.Parse()
	var before map[string]row
	now, err := measure(".")
	if err == nil && *other != "" {
		before, err = measure(*other)
	}
	if err != nil {
		log.Fatal(err)
	}
	write(os.Stdout, now, before)
}

// measure returns the rows of a checkout by folder. A package counts as a test
// package if all its files are tests.
func measure(dir string) (map[string]row, error) {
	rows, firsts := map[string]row{}, map[string]int{}
	add := func(file string, first int, sizes ...int) {
		folder, _, _ := strings.Cut(file, "/")
		for _, name := range []string{folder, "total"} {
			r := rows[name]
			for i, n := range sizes {
				r[first+i] += n
			}
			rows[name] = r
		}
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil { // then e can be nil
			return err
		}
		switch name := e.Name(); {
		case e.IsDir() && path != dir && (name == "testdata" || name == "bin" || strings.HasPrefix(name, ".")):
			return filepath.SkipDir
		case e.IsDir() || filepath.Ext(name) != ".go":
			return nil
		}
		set := token.NewFileSet()
		syntax, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil || ast.IsGenerated(syntax) {
			return err
		}
		file, err := filepath.Rel(dir, path)
		first, pkg := 0, filepath.Dir(file)
		if strings.HasSuffix(file, "_test.go") || tree.IsTest(pkg) {
			first = 3
		}
		if known, found := firsts[pkg]; !found || first < known {
			firsts[pkg] = first
		}
		add(file, first, set.File(syntax.FileStart).LineCount(), statements(syntax))
		return err
	})
	for pkg, first := range firsts {
		add(pkg, first, 0, 0, 1)
	}
	return rows, err
}

func statements(file *ast.File) (count int) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause, *ast.EmptyStmt, *ast.LabeledStmt:
		case ast.Stmt:
			count++
		}
		return true
	})
	return count
}

func write(out io.Writer, now, before map[string]row) {
	all := maps.Clone(now)
	maps.Copy(all, before)
	delete(all, "total")
	fmt.Fprintf(out, "%-8s%16s%16s%16s%16s%16s%16s\n", "", "product lines", "statements", "packages", "test lines", "statements", "packages")
	for _, name := range append(slices.Sorted(maps.Keys(all)), "total") {
		fmt.Fprintf(out, "%-8s", name)
		for i, n := range now[name] {
			cell := fmt.Sprint(n)
			if before != nil {
				cell += fmt.Sprintf(" %+d", n-before[name][i])
			}
			fmt.Fprintf(out, "%16s", cell)
		}
		fmt.Fprintln(out)
	}
}
