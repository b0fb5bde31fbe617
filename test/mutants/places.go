package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// kind is how a mutant differs.
type kind int

const (
	negated  kind = iota // a condition
	operator             // another one
	noError              // nil is returned for err
	omitted              // a call whose results are not used
)

// mutant is a change of one place of a file.
type mutant struct {
	number int
	file   string // below the root
	line   int
	kind   kind
	op     token.Token // of operator
	// Offsets of the node, and of the operator's ends.
	begin, end, opBegin, opEnd int
	text                       string // of the node
	// place identifies the node in another version of the file: function, kind, text,
	// and which of how many that are equal.
	place string
}

// opposite has the operators that are exchanged.
var opposite = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.LEQ, token.LEQ: token.LSS,
	token.GTR: token.GEQ, token.GEQ: token.GTR, token.LAND: token.LOR, token.LOR: token.LAND,
}

func (m mutant) String() string {
	switch m.kind {
	case negated:
		return "!(" + m.text + ")"
	case operator:
		return fmt.Sprintf("%s for %s in %s", opposite[m.op], m.op, m.text)
	case noError:
		return "return nil for " + m.text
	}
	return "without " + m.text
}

// mutantsOf returns all mutants of a package below root.
func mutantsOf(root, pkg string) (all []mutant, err error) {
	files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s has no Go files (%v)", filepath.Join(root, pkg), err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		found, err := mutantsIn(root, path)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func mutantsIn(root, path string) (all []mutant, err error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, 0)
	if err != nil {
		return nil, err
	}
	name, err := filepath.Rel(root, path)
	if err != nil {
		return nil, err
	}
	offset := func(p token.Pos) int { return set.Position(p).Offset }
	same := map[string][]int{} // by place
	add := func(function string, n ast.Node, m mutant) {
		m.file, m.line = name, set.Position(n.Pos()).Line
		m.begin, m.end = offset(n.Pos()), offset(n.End())
		m.text = strings.Join(strings.Fields(string(source[m.begin:m.end])), " ")
		m.place = fmt.Sprintf("%s %s %d %s", name, function, m.kind, m.String())
		all = append(all, m)
		same[m.place] = append(same[m.place], len(all)-1)
	}
	for _, d := range file.Decls {
		function, isFunction := d.(*ast.FuncDecl)
		if !isFunction || function.Body == nil {
			continue
		}
		ast.Inspect(function.Body, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.GenDecl:
				return n.Tok != token.CONST
			case *ast.IfStmt:
				add(function.Name.Name, n.Cond, mutant{kind: negated})
			case *ast.BinaryExpr:
				if opposite[n.Op] != 0 {
					add(function.Name.Name, n, mutant{kind: operator, op: n.Op, opBegin: offset(n.X.End()), opEnd: offset(n.Y.Pos())})
				}
			case *ast.ReturnStmt:
				if at := len(n.Results) - 1; at >= 0 {
					if id, is := n.Results[at].(*ast.Ident); is && id.Name == "err" {
						add(function.Name.Name, id, mutant{kind: noError})
					}
				}
			case *ast.ExprStmt:
				if _, is := n.X.(*ast.CallExpr); is {
					add(function.Name.Name, n, mutant{kind: omitted})
				}
			}
			return true
		})
	}
	for place, at := range same {
		for n, i := range at {
			all[i].place = fmt.Sprintf("%s %d of %d", place, n+1, len(at))
		}
	}
	return all, nil
}
