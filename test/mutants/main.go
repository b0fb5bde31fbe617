// Command mutants changes one place of the product at a time and runs tests, to
// check that the cases that CI runs detect as much as all cases (make soak):
//
//	go run ./test/mutants -seed 15 -n 20 dpu/plugin=./dpu/plugin fence/enforce=./fence/enforce,./test/fence
//
// Each argument is a package and the packages whose tests are run for it. A
// mutant that survives CI's cases is run with all cases; the exit code is 1 if
// those detect one that CI's do not. The tree is not changed: the go command
// gets the changed file by -overlay.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/test/tree"
)

func main() {
	seed := flag.Uint64("seed", 1, "seed of the choice")
	n := flag.Int("n", 20, "number of mutants")
	flag.Parse()
	missed, err := run(*seed, *n, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	if missed > 0 {
		os.Exit(1)
	}
}

// mutant is a change of one place of a file.
type mutant struct {
	file       string // absolute
	line       int
	begin, end int // bytes
	text       string
	tests      []string
}

func run(seed uint64, n int, args []string) (missed int, err error) {
	root, err := tree.Root()
	if err != nil {
		return 0, err
	}
	var all []mutant
	for _, a := range args {
		dir, tests, ok := strings.Cut(a, "=")
		if !ok {
			return 0, fmt.Errorf("%q: write PACKAGE=TESTS", a)
		}
		found, err := mutantsOf(filepath.Join(root, dir), strings.Split(tests, ","))
		if err != nil {
			return 0, err
		}
		all = append(all, found...)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	fmt.Printf("%d places, trying %d, seed %d\n", len(all), n, seed)
	caught, tried := 0, 0
	for _, m := range all {
		if tried == n {
			break
		}
		verdict, err := m.try(root)
		if err != nil {
			return missed, err
		}
		switch verdict {
		case "":
			continue // it does not compile
		case "soak":
			missed++
		case "CI":
			caught++
		}
		tried++
		rel, _ := filepath.Rel(root, m.file)
		fmt.Printf("%-5s %s:%d: %s\n", verdict, rel, m.line, m.text)
	}
	fmt.Printf("%d mutants: CI detects %d, make soak %d more, %d survive\n", tried, caught, missed, tried-caught-missed)
	return missed, nil
}

// mutantsOf returns all mutants of the files of a package.
func mutantsOf(dir string, tests []string) (all []mutant, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s has no Go files (%v)", dir, err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, source, 0)
		if err != nil {
			return nil, err
		}
		add := func(from, to token.Pos, text string) {
			at := set.Position(from)
			all = append(all, mutant{path, at.Line, at.Offset, set.Position(to).Offset, text, tests})
		}
		ast.Inspect(file, func(node ast.Node) bool {
			mutate(node, source, set, add)
			return true
		})
	}
	return all, nil
}

// opposite has the operators that are exchanged.
var opposite = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.LEQ, token.LEQ: token.LSS,
	token.GTR: token.GEQ, token.GEQ: token.GTR, token.LAND: token.LOR, token.LOR: token.LAND,
}

// mutate adds the mutants of one node: a negated condition, a swapped operator,
// a dropped error, an omitted call.
func mutate(node ast.Node, source []byte, set *token.FileSet, add func(from, to token.Pos, text string)) {
	text := func(n ast.Node) string {
		return string(source[set.Position(n.Pos()).Offset:set.Position(n.End()).Offset])
	}
	switch n := node.(type) {
	case *ast.IfStmt:
		add(n.Cond.Pos(), n.Cond.End(), "!("+text(n.Cond)+")")
	case *ast.BinaryExpr:
		if other, ok := opposite[n.Op]; ok {
			add(n.Pos(), n.End(), text(n.X)+" "+other.String()+" "+text(n.Y))
		}
	case *ast.ReturnStmt:
		if len(n.Results) == 0 {
			return
		}
		last := n.Results[len(n.Results)-1]
		if id, ok := last.(*ast.Ident); ok && id.Name == "err" {
			add(last.Pos(), last.End(), "nil")
		}
	case *ast.ExprStmt:
		if _, ok := n.X.(*ast.CallExpr); ok {
			add(n.Pos(), n.End(), "/* left out: "+strings.ReplaceAll(text(n), "*/", "")+" */")
		}
	}
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^panic: |^FAIL\s`)

// try returns what detects the mutant: CI, soak, none, or "" if the mutant does
// not compile.
func (m mutant) try(root string) (string, error) {
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	changed := slices.Concat(source[:m.begin], []byte(m.text), source[m.end:])
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{m.file: filepath.Join(dir, "changed.go")}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(filepath.Join(dir, "changed.go"), changed, 0o600); err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return "", err
	}
	command := func(args ...string) (string, error) {
		cmd := exec.Command("go", args...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay) // for the programs that tests build, too
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if _, err := command("build", "-o", os.DevNull, "./"+strings.TrimPrefix(filepath.Dir(m.file), root+"/")); err != nil {
		return "", nil
	}
	for _, set := range []struct{ name, tags string }{{"CI", "-tags="}, {"soak", "-tags=soak"}} {
		if out, err := command(slices.Concat([]string{"test", "-vet=off", "-failfast", "-count=1", "-timeout=3m", set.tags}, m.tests)...); err != nil {
			fmt.Printf("      found by %s\n", strings.Join(strings.Fields(failed.FindString(out)), " "))
			return set.name, nil
		}
	}
	return "none", nil
}
