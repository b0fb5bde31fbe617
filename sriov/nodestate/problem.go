package nodestate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Error is something that makes a node state unusable. Parse, FromObject and
// Spec.Check join one for each thing that is wrong.
type Error struct {
	Path string // spec.interfaces[0].vfGroups[1].vfRange; "" is the whole text
	Text string // what is wrong, with which value, and what would be right
}

func (e *Error) Error() string {
	if e.Path == "" {
		return e.Text
	}
	return e.Path + ": " + e.Text
}

// Warning is a key that is not known. It is no error, since a newer operator
// may have it.
type Warning struct {
	Path    string // of the key
	Key     string
	Nearest string // the key that was probably meant; "" is none
	Text    string
}

func (w Warning) String() string { return w.Path + ": " + w.Text }

// findings collects what is wrong, so that one run names everything.
type findings struct {
	errs     []*Error
	warnings []Warning
}

func (f *findings) fail(path, format string, args ...any) {
	f.errs = append(f.errs, &Error{Path: path, Text: fmt.Sprintf(format, args...)})
}

// err joins what was found; nil is nothing.
func (f *findings) err() error {
	all := make([]error, len(f.errs))
	for i, e := range f.errs {
		all[i] = e
	}
	return errors.Join(all...)
}

// sorted are the warnings by path.
func (f *findings) sorted() []Warning {
	slices.SortFunc(f.warnings, func(a, b Warning) int { return cmp.Compare(a.Path, b.Path) })
	return f.warnings
}
