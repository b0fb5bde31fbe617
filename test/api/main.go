// Command api prints what the public kit exports, a line each: package driver and the
// packages of volumes with all they export, and of other packages of this module the
// types that those name. It fails if one of them is internal or test code, which a
// program outside of this module cannot use.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/test/tree"
)

const module = "github.com/cleatproject/cleat/"

// whole are the packages of which everything is listed.
func whole() []string {
	return []string{"driver", "errs", "volume", "volume/access", "volume/enginetest"}
}

func main() {
	lines, err := list(whole())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(strings.Join(lines, "\n") + "\n")
}

// list returns the sorted lines of packages of this module.
func list(packages []string) ([]string, error) {
	load, err := exported(packages)
	if err != nil {
		return nil, err
	}
	l := &listing{done: map[types.Object]bool{}}
	for _, path := range packages {
		p, err := load.Import(module + path)
		if err != nil {
			return nil, err
		}
		for _, name := range p.Scope().Names() {
			if token.IsExported(name) {
				l.object(p.Scope().Lookup(name))
			}
		}
	}
	slices.Sort(l.lines)
	return slices.Compact(l.lines), errors.Join(l.errs...)
}

// exported returns an importer that reads what the go command has compiled.
func exported(packages []string) (types.Importer, error) {
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export"}
	for _, p := range packages {
		args = append(args, module+p)
	}
	cmd := exec.Command("go", args...)
	var err error
	if cmd.Dir, err = tree.Root(); err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	files := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ ImportPath, Export string }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		files[p.ImportPath] = p.Export
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }), nil
}

type listing struct {
	lines []string
	done  map[types.Object]bool
	errs  []error
}

// object adds an object of a package, and what it names.
func (l *listing) object(o types.Object) {
	if l.done[o] {
		return
	}
	l.done[o] = true
	name := short(o.Pkg()) + "." + o.Name()
	switch o := o.(type) {
	case *types.TypeName:
		l.typeName(name, o)
	case *types.Const:
		l.add(name, "const "+name+" "+text(o.Type())+" = "+o.Val().ExactString(), o.Type())
	case *types.Func:
		l.add(name, "func "+name+signature(o.Type()), o.Type())
	case *types.Var:
		l.add(name, "var "+name+" "+text(o.Type()), o.Type())
	}
}

func (l *listing) typeName(name string, o *types.TypeName) {
	kind := "type " + name
	if o.IsAlias() {
		l.add(name, kind+" = "+text(o.Type()), o.Type())
		return
	}
	switch u := o.Type().Underlying().(type) {
	case *types.Struct:
		l.lines = append(l.lines, kind+" struct")
		for f := range u.Fields() {
			if f.Exported() {
				l.add(name, kind+"."+f.Name()+" "+text(f.Type()), f.Type())
			}
		}
	case *types.Interface:
		l.lines = append(l.lines, kind+" interface")
		for m := range u.Methods() {
			if m.Exported() {
				l.add(name, kind+"."+m.Name()+signature(m.Type()), m.Type())
			}
		}
	default:
		l.add(name, kind+" "+text(u), u)
	}
	set := types.NewMethodSet(types.NewPointer(o.Type()))
	for m := range set.Methods() {
		if f := m.Obj(); f.Exported() && !types.IsInterface(o.Type()) {
			l.add(name, "method "+name+"."+f.Name()+signature(f.Type()), f.Type())
		}
	}
}

// add adds a line, and the types of this module that t names.
func (l *listing) add(in, line string, t types.Type) {
	l.lines = append(l.lines, line)
	l.names(in, line, t)
}

func (l *listing) names(in, line string, t types.Type) {
	each := func(all ...types.Type) {
		for _, t := range all {
			l.names(in, line, t)
		}
	}
	switch t := t.(type) {
	case *types.Named:
		for a := range t.TypeArgs().Types() {
			each(a)
		}
		o := t.Obj()
		path, ours := "", false
		if o.Pkg() != nil {
			path, ours = strings.CutPrefix(o.Pkg().Path(), module)
		}
		switch {
		case !ours:
		case !isPublic(path):
			l.errs = append(l.errs, fmt.Errorf("%s: %s names the type %s, which is not public", in, line, text(t)))
		case o.Exported():
			l.object(o)
		default:
			l.errs = append(l.errs, fmt.Errorf("%s: %s names the type %s, which is not exported", in, line, text(t)))
		}
	case *types.Alias:
		each(types.Unalias(t))
	case *types.Pointer:
		each(t.Elem())
	case *types.Slice:
		each(t.Elem())
	case *types.Array:
		each(t.Elem())
	case *types.Chan:
		each(t.Elem())
	case *types.Map:
		each(t.Key(), t.Elem())
	case *types.Signature:
		for v := range t.Params().Variables() {
			each(v.Type())
		}
		for v := range t.Results().Variables() {
			each(v.Type())
		}
	case *types.Struct:
		for f := range t.Fields() {
			each(f.Type())
		}
	}
}

// isPublic reports whether a package of this module is for other modules.
func isPublic(path string) bool {
	return path == "volume/enginetest" || !strings.HasPrefix(path, "internal") && !tree.IsTest(path)
}

func short(p *types.Package) string { return strings.TrimPrefix(p.Path(), module) }

func text(t types.Type) string { return types.TypeString(t, short) }

func signature(t types.Type) string { return strings.TrimPrefix(text(t), "func") }
