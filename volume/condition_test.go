package volume

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// maxAction leaves an object of 64 bytes whole in CSI's 128, such as the file
// of a volume.
const maxAction = 60

// Every reason has an action that stays whole, with the object, in the part of a
// message that CSI passes on.
func TestActions(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "condition.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if ok && strings.HasPrefix(spec.Names[0].Name, "Reason") {
			reason, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil || reasons[reason] {
				t.Errorf("constant %s: %q, %v; want a unique string", spec.Names[0].Name, reason, err)
			}
			reasons[reason] = true
		}
		return true
	})
	if len(reasons) < 40 {
		t.Fatalf("found only %d reasons", len(reasons))
	}
	for reason, action := range actions() {
		if !reasons[reason] {
			t.Errorf("%s is no reason", reason)
		}
		if len(action) > maxAction || strings.ContainsAny(action, ":;.") && !strings.Contains(action, ".md") {
			t.Errorf("the action of %s has %d bytes, at most %d are allowed, and one clause: %q", reason, len(action), maxAction, action)
		}
	}
	for reason := range reasons {
		if actions()[reason] == "" {
			t.Errorf("%s has no action", reason)
		}
	}
}

// Conditions of the product have a message of NewCondition. A client passes on
// those of other drivers.
func TestConditionsAreMadeInOnePlace(t *testing.T) {
	literal := regexp.MustCompile(`Condition\{[^}]*\bMessage:`)
	found := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || path == "../csi/client" || path == "../takeover" || path == "../test"):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		found += strings.Count(string(text), "volume.NewCondition(")
		if at := literal.Find(text); at != nil && path != "condition.go" && path != "../volume/condition.go" {
			t.Errorf("%s: %s…; use NewCondition", path, at)
		}
		return err
	})
	if err != nil || found < 20 {
		t.Errorf("%v, found %d calls of NewCondition", err, found)
	}
}
