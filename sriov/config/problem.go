package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Kind sorts warnings; it is short and fixed, as the label of a metric must be.
type Kind string

// The kinds. In strict mode the first seven are errors: they are probably
// mistakes. The others are right but may surprise.
const (
	UnknownKey   Kind = "unknown-key"   // a key that does not exist
	IgnoredKey   Kind = "ignored-key"   // a key that has no meaning where it stands
	DuplicateKey Kind = "duplicate-key" // the last one counts
	BadRange     Kind = "bad-range"     // functions behind the # that cannot be understood
	NoEffect     Kind = "no-effect"     // a value that no device can have
	Dropped      Kind = "dropped"       // a resource that cannot be understood or registered, and is left out
	Unfiltered   Kind = "unfiltered"    // selectors are missing: all devices match

	CatchAll    Kind = "catch-all"     // an empty selector: all devices match
	Surprise    Kind = "surprise"      // it may mean something else than it seems to
	NothingToDo Kind = "nothing-to-do" // there is no resource
)

func (k Kind) mistake() bool {
	return slices.Contains([]Kind{UnknownKey, IgnoredKey, DuplicateKey, BadRange, NoEffect, Dropped, Unfiltered}, k)
}

// Warning is something that the upstream plugin accepts in silence.
type Warning struct {
	Kind    Kind   `json:"kind,omitempty"`
	Path    string `json:"path,omitempty"`    // resourceList[0].selectors[1].pfName; "" is the whole text
	Line    int    `json:"line"`              // from 1
	Column  int    `json:"column"`            // from 1, in characters
	Key     string `json:"key,omitempty"`     // of UnknownKey, IgnoredKey and DuplicateKey
	Nearest string `json:"nearest,omitempty"` // the key that was probably meant
	Text    string `json:"text"`
}

func (w Warning) String() string { return located(w.Line, w.Column, w.Path, w.Text) }

// Error is something that makes the text unusable: a warning of a strict reader,
// or without a kind.
type Error Warning

func (e *Error) Error() string { return located(e.Line, e.Column, e.Path, e.Text) }

func located(line, column int, path, text string) string {
	if path != "" {
		text = path + ": " + text
	}
	return fmt.Sprintf("line %d, column %d: %s", line, column, text)
}

// reader collects what is wrong, so that one run names everything.
type reader struct {
	place
	strict    bool
	noDDPTool bool
	warnings  []Warning
	errs      []*Error
}

func (r *reader) fail(at *node, path, format string, args ...any) {
	line, column := r.at(at.offset)
	r.errs = append(r.errs, &Error{Path: path, Line: line, Column: column, Text: fmt.Sprintf(format, args...)})
}

func (r *reader) warn(kind Kind, at *node, path, format string, args ...any) {
	line, column := r.at(at.offset)
	r.add(Warning{Kind: kind, Path: path, Line: line, Column: column, Text: fmt.Sprintf(format, args...)})
}

func (r *reader) add(w Warning) {
	if r.strict && w.Kind.mistake() {
		r.errs = append(r.errs, (*Error)(&w))
		return
	}
	r.warnings = append(r.warnings, w)
}

// syntax says where a text is no JSON.
func (r *reader) syntax(text []byte, err error) error {
	syntax, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return &Error{Line: 1, Column: 1, Text: err.Error()}
	}
	offset := min(max(int(syntax.Offset)-1, 0), len(text))
	if strings.HasPrefix(syntax.Error(), "unexpected end") {
		offset = len(text)
	}
	before := strings.TrimRight(string(text[:offset]), " \t\r\n")
	hint := ""
	if offset < len(text) && (text[offset] == '}' || text[offset] == ']') && strings.HasSuffix(before, ",") {
		hint = "; JSON has no comma before a closing bracket: take it away"
	}
	line, column := r.at(offset)
	return &Error{Line: line, Column: column, Text: "not JSON: " + syntax.Error() + hint}
}

// place turns offsets into lines and columns.
type place struct {
	text  []byte
	lines []int // where each begins
}

func newPlace(text []byte) place {
	p := place{text: text, lines: []int{0}}
	for i, c := range text {
		if c == '\n' {
			p.lines = append(p.lines, i+1)
		}
	}
	return p
}

func (p place) at(offset int) (line, column int) {
	i, found := slices.BinarySearch(p.lines, offset)
	if !found {
		i--
	}
	return i + 1, utf8.RuneCount(p.text[p.lines[i]:offset]) + 1
}
