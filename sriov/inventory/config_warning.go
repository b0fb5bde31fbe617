package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// ConfigWarningKind sorts warnings; it is short and fixed, as the label of a metric must be.
type ConfigWarningKind string

// The kinds. In strict mode the first seven are errors: they are probably
// mistakes. The others are right but may surprise.
const (
	UnknownKey      ConfigWarningKind = "unknown-key"   // a key that does not exist
	IgnoredKey      ConfigWarningKind = "ignored-key"   // a key that has no meaning where it stands
	DuplicateKey    ConfigWarningKind = "duplicate-key" // the last one counts
	BadRange        ConfigWarningKind = "bad-range"     // functions behind the # that cannot be understood
	NoEffect        ConfigWarningKind = "no-effect"     // a value that no device can have
	DroppedResource ConfigWarningKind = "dropped"       // a resource that cannot be understood or registered, and is left out
	Unfiltered      ConfigWarningKind = "unfiltered"    // selectors are missing: all devices match

	CatchAll    ConfigWarningKind = "catch-all"     // an empty selector: all devices match
	Surprising  ConfigWarningKind = "surprise"      // it may mean something else than it seems to
	NothingToDo ConfigWarningKind = "nothing-to-do" // there is no resource
)

func (k ConfigWarningKind) mistake() bool {
	return slices.Contains([]ConfigWarningKind{UnknownKey, IgnoredKey, DuplicateKey, BadRange, NoEffect, DroppedResource, Unfiltered}, k)
}

// ConfigWarning is something that the upstream plugin accepts in silence.
type ConfigWarning struct {
	Kind    ConfigWarningKind `json:"kind,omitempty"`
	Path    string            `json:"path,omitempty"`    // resourceList[0].selectors[1].pfName; "" is the whole text
	Line    int               `json:"line"`              // from 1
	Column  int               `json:"column"`            // from 1, in characters
	Key     string            `json:"key,omitempty"`     // of UnknownKey, IgnoredKey and DuplicateKey
	Nearest string            `json:"nearest,omitempty"` // the key that was probably meant
	Text    string            `json:"text"`
}

func (w ConfigWarning) String() string { return located(w.Line, w.Column, w.Path, w.Text) }

// ConfigError is something that makes the text unusable: a warning of a strict reader,
// or without a kind.
type ConfigError ConfigWarning

func (e *ConfigError) Error() string { return located(e.Line, e.Column, e.Path, e.Text) }

func located(line, column int, path, text string) string {
	if path != "" {
		text = path + ": " + text
	}
	return fmt.Sprintf("line %d, column %d: %s", line, column, text)
}

// configReader collects what is wrong, so that one run names everything.
type configReader struct {
	textPosition
	strict    bool
	noDDPTool bool
	warnings  []ConfigWarning
	errs      []*ConfigError
}

func (r *configReader) fail(at *jsonValue, path, format string, args ...any) {
	line, column := r.at(at.offset)
	r.errs = append(r.errs, &ConfigError{Path: path, Line: line, Column: column, Text: fmt.Sprintf(format, args...)})
}

func (r *configReader) warn(kind ConfigWarningKind, at *jsonValue, path, format string, args ...any) {
	line, column := r.at(at.offset)
	r.add(ConfigWarning{Kind: kind, Path: path, Line: line, Column: column, Text: fmt.Sprintf(format, args...)})
}

func (r *configReader) add(w ConfigWarning) {
	if r.strict && w.Kind.mistake() {
		r.errs = append(r.errs, (*ConfigError)(&w))
		return
	}
	r.warnings = append(r.warnings, w)
}

// syntax says where a text is no JSON.
func (r *configReader) syntax(text []byte, err error) error {
	syntax, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return &ConfigError{Line: 1, Column: 1, Text: err.Error()}
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
	return &ConfigError{Line: line, Column: column, Text: "not JSON: " + syntax.Error() + hint}
}

// textPosition turns offsets into lines and columns.
type textPosition struct {
	text  []byte
	lines []int // where each begins
}

func newTextPosition(text []byte) textPosition {
	p := textPosition{text: text, lines: []int{0}}
	for i, c := range text {
		if c == '\n' {
			p.lines = append(p.lines, i+1)
		}
	}
	return p
}

func (p textPosition) at(offset int) (line, column int) {
	i, found := slices.BinarySearch(p.lines, offset)
	if !found {
		i--
	}
	return i + 1, utf8.RuneCount(p.text[p.lines[i]:offset]) + 1
}
