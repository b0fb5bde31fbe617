package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/markdown"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/tree"
)

// TestLogEvents compares the table of log events in operations.md with the
// calls of slog in the product at WARN and above.
func TestLogEvents(t *testing.T) {
	listed := map[string]string{} // event -> level
	for _, row := range markdown.Rows(markdown.Section(page(t, "docs/operations.md"), "Log events")) {
		event, level := strings.Trim(row["event"], "`"), row["level"]
		if _, twice := listed[event]; twice {
			t.Errorf("operations.md lists the log event %q twice", event)
		}
		if row["action"] == "" {
			t.Errorf("operations.md gives no action for the log event %q", event)
		}
		listed[event] = level
	}
	logged := logEvents(t)
	for _, event := range slices.Sorted(maps.Keys(logged)) {
		if got := listed[event]; got != logged[event] {
			t.Errorf("log event %q has level %s in the code, and %q in operations.md (section Log events)", event, logged[event], got)
		}
	}
	for _, event := range slices.Sorted(maps.Keys(listed)) {
		if logged[event] == "" {
			t.Errorf("operations.md lists the log event %q, which is not in the code", event)
		}
	}
}

// logEvents returns the level of each event that the product logs at WARN and
// above.
func logEvents(t *testing.T) map[string]string {
	t.Helper()
	events := map[string]string{}
	root := testkit.Root(t)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := testkit.Value(filepath.Rel(root, path))(t)
		if e.IsDir() {
			if path != root && (strings.HasPrefix(e.Name(), ".") || tree.IsTest(name)) {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if level, event, ok := logCall(call); ok && event == "" {
					t.Errorf("%s: the event of a log call is not a constant string", set.Position(call.Pos()))
				} else if ok {
					events[event] = level
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// logCall returns the level and the event of a call of slog at WARN or above.
// The event is empty if it is not a constant.
func logCall(call *ast.CallExpr) (level, event string, ok bool) {
	method, isMethod := call.Fun.(*ast.SelectorExpr)
	if !isMethod || len(call.Args) == 0 {
		return "", "", false
	}
	first := 0
	switch method.Sel.Name {
	case "Warn", "Error":
	case "WarnContext", "ErrorContext":
		first = 1
	default:
		return "", "", false
	}
	level = strings.ToUpper(strings.TrimSuffix(method.Sel.Name, "Context"))
	if literal, isLiteral := call.Args[first].(*ast.BasicLit); isLiteral && literal.Kind == token.STRING {
		event, _ = strconv.Unquote(literal.Value)
	}
	return level, event, true
}
