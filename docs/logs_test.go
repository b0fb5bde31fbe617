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

	tables "github.com/cleatproject/cleat/internal/markdown"
	"github.com/cleatproject/cleat/test/markdown"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/tree"
)

// TestLogEvents compares the table of log events in errors.md with the
// calls of slog in the product at WARN and above.
func TestLogEvents(t *testing.T) {
	listed := map[string]string{} // event -> level
	for _, row := range tables.Rows(markdown.Section(page(t, "docs/errors.md"), "Log events")) {
		for _, event := range tables.Spans(row["event"]) {
			if _, twice := listed[event]; twice {
				t.Errorf("errors.md lists the log event %q twice", event)
			}
			if row["action"] == "" {
				t.Errorf("errors.md gives no action for the log event %q", event)
			}
			listed[event] = row["level"]
		}
	}
	logged := logEvents(t)
	for _, event := range slices.Sorted(maps.Keys(logged)) {
		if got := listed[event]; got != logged[event] {
			t.Errorf("log event %q has level %s in the code, and %q in errors.md (section Log events)", event, logged[event], got)
		}
	}
	for _, event := range slices.Sorted(maps.Keys(listed)) {
		if logged[event] == "" {
			t.Errorf("errors.md lists the log event %q, which is not in the code", event)
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
			if call, ok := n.(*ast.CallExpr); ok && isLogCall(call) && eventOf(call) == "" {
				t.Errorf("%s: the event of a log call is not a constant string", set.Position(call.Pos()))
			}
			maps.Copy(events, eventsIn(n))
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// isLogCall reports whether a call is one of slog's at a fixed level, WARN or
// ERROR.
func isLogCall(call *ast.CallExpr) bool {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 || !slices.Contains([]string{"Warn", "WarnContext", "Error", "ErrorContext"}, method.Sel.Name) {
		return false
	}
	if pkg, ok := method.X.(*ast.Ident); ok && (pkg.Name == "status" || pkg.Name == "http") {
		return false // status.Error, http.Error
	}
	return eventOf(call) != "" || len(call.Args) > 1 // not a callback that takes an error
}

func methodOf(call *ast.CallExpr) string {
	if method, ok := call.Fun.(*ast.SelectorExpr); ok {
		return method.Sel.Name
	}
	return ""
}

// eventOf returns the event of a call of Warn, Error or LogAttrs; empty if it
// is not a constant.
func eventOf(call *ast.CallExpr) string {
	first := 0
	switch method := methodOf(call); {
	case method == "LogAttrs":
		first = 2
	case strings.HasSuffix(method, "Context"):
		first = 1
	}
	if first < len(call.Args) {
		return textOf(call.Args[first])
	}
	return ""
}

func textOf(e ast.Expr) string {
	literal, ok := e.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return ""
	}
	text, _ := strconv.Unquote(literal.Value)
	return text
}

// eventsIn returns the levels of the events that a node logs, or chooses for a
// later call of LogAttrs: a list of expressions with slog.LevelWarn and a text.
// "varies" is the level of an event whose level is a variable.
func eventsIn(n ast.Node) map[string]string {
	events := map[string]string{}
	var list []ast.Expr
	switch n := n.(type) {
	case *ast.CallExpr:
		switch {
		case isLogCall(n):
			events[eventOf(n)] = strings.ToUpper(strings.TrimSuffix(methodOf(n), "Context"))
		case methodOf(n) == "LogAttrs" && eventOf(n) != "":
			events[eventOf(n)] = "varies"
		}
	case *ast.ReturnStmt:
		list = n.Results
	case *ast.AssignStmt:
		list = n.Rhs
	}
	for i, e := range list {
		level, ok := e.(*ast.SelectorExpr)
		if ok && i+1 < len(list) && (level.Sel.Name == "LevelWarn" || level.Sel.Name == "LevelError") {
			events[textOf(list[i+1])] = strings.ToUpper(strings.TrimPrefix(level.Sel.Name, "Level"))
		}
	}
	return events
}
