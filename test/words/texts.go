package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// text is a piece of a file that is checked. Line breaks count from its line.
type text struct {
	line    int
	text    string
	comment bool
}

type kind int

const (
	other    kind = iota
	source        // Go
	page          // Markdown
	manifest      // YAML, templates: the whole text
	script        // comments, and what a script prints
)

func kindOf(name string) kind {
	switch filepath.Ext(name) {
	case ".go":
		return source
	case ".md":
		return page
	case ".yaml", ".yml", ".tpl", ".txt":
		return manifest
	case ".sh":
		return script
	}
	if dir := filepath.Dir(name); dir == "scripts" || name == "Makefile" || name == ".ci/run" {
		return script
	}
	return other
}

func textsOf(name, content string) ([]text, error) {
	switch kindOf(name) {
	case source:
		return goTexts(content)
	case page:
		return []text{{line: 1, text: prose(content)}}, nil
	default:
		return []text{{line: 1, text: content}}, nil
	}
}

var code = regexp.MustCompile("(?ms)^ *```.*?^ *```$|`[^`\n]+`")

// prose blanks the code of a page and keeps its lines.
func prose(page string) string {
	return code.ReplaceAllStringFunc(page, func(s string) string { return "`" + strings.Repeat("\n", strings.Count(s, "\n")) + "`" })
}

// goTexts returns the comments, the string literals and the declared names of a
// Go file. Names are split into their words.
func goTexts(content string) ([]text, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var all []text
	add := func(at token.Pos, s string, comment bool) {
		all = append(all, text{line: set.Position(at).Line, text: s, comment: comment})
	}
	for _, group := range file.Comments {
		var lines []string
		for _, c := range group.List {
			if !strings.HasPrefix(c.Text, "//go:") {
				lines = append(lines, strings.TrimPrefix(c.Text, "//"))
			}
		}
		add(group.Pos(), strings.Join(lines, "\n"), true)
	}
	name := func(ids ...*ast.Ident) {
		for _, id := range ids {
			if id != nil {
				add(id.Pos(), words(id.Name), false)
			}
		}
	}
	tags := map[*ast.BasicLit]bool{} // of struct fields: keys are interfaces
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if n.Kind == token.STRING && !tags[n] {
				s, err := strconv.Unquote(n.Value)
				if err != nil {
					s = n.Value
				}
				add(n.Pos(), s, false)
			}
		case *ast.File:
			name(n.Name)
		case *ast.FuncDecl:
			name(n.Name)
		case *ast.TypeSpec:
			name(n.Name)
		case *ast.ValueSpec:
			name(n.Names...)
		case *ast.Field:
			tags[n.Tag] = true
			name(n.Names...)
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if id, ok := left.(*ast.Ident); ok && n.Tok == token.DEFINE {
					name(id)
				}
			}
		}
		return true
	})
	return all, nil
}

// words splits a Go name into its words: "readOnlyFS" is "read only fs".
func words(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		starts := unicode.IsUpper(r) && i > 0 && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if starts {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return strings.ReplaceAll(b.String(), "_", " ")
}
