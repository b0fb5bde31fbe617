package strictjson

import (
	"errors"
	"fmt"
)

// ProblemKind is short and fixed, as the label of a metric must be. "" is a
// value that cannot be decoded. Users of the package add their own kinds.
type ProblemKind string

// The kinds that Decode reports.
const (
	UnknownKey   ProblemKind = "unknown-key"
	DuplicateKey ProblemKind = "duplicate-key"
)

// Problem is something wrong in a document. *Problem is an error.
type Problem struct {
	Kind    ProblemKind `json:"kind,omitempty"`
	Path    string      `json:"path,omitempty"`    // spec.interfaces[0].numVf; "" is the whole text
	Line    int         `json:"line"`              // from 1; 0: not known
	Column  int         `json:"column"`            // from 1, in characters
	Key     string      `json:"key,omitempty"`     // of a problem with a key
	Nearest string      `json:"nearest,omitempty"` // the key that was probably meant
	Text    string      `json:"text"`              // what is wrong, with which value, and what would be right
}

// At is a problem at the position of a value.
func At(v *Value, kind ProblemKind, path, format string, args ...any) Problem {
	return Problem{Kind: kind, Path: path, Line: v.Line, Column: v.Column, Text: fmt.Sprintf(format, args...)}
}

func (p Problem) String() string {
	text := p.Text
	if p.Path != "" {
		text = p.Path + ": " + text
	}
	if p.Line > 0 {
		text = fmt.Sprintf("line %d, column %d: %s", p.Line, p.Column, text)
	}
	return text
}

func (p *Problem) Error() string { return p.String() }

// JoinErrors returns an error that joins the problems as *Problem; nil for none.
func JoinErrors(problems []Problem) error {
	all := make([]error, len(problems))
	for i := range problems {
		all[i] = &problems[i]
	}
	return errors.Join(all...)
}
