package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Kind of a JSON value, as used in messages.
type Kind string

const (
	Null   Kind = "null"
	Bool   Kind = "a boolean"
	Number Kind = "a number"
	String Kind = "a string"
	List   Kind = "a list"
	Object Kind = "an object"
)

// Value is a JSON value with its position and duplicate keys.
type Value struct {
	Kind         Kind
	Line, Column int    // from 1, the column in characters
	Text         string // of a string or number
	Bool         bool
	Items        []*Value // of a list
	Members      []Member // in document order
}

// Member is a key of an object and its value.
type Member struct {
	Key   *Value
	Value *Value
}

// Parse parses a single JSON value. A syntax error is a *Problem.
func Parse(text []byte) (*Value, error) {
	p := parser{text: text, tokens: json.NewDecoder(bytes.NewReader(text)), line: 1, column: 1}
	// Unmarshal validates the whole text first, with offset and trailing data.
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, p.syntaxError(err)
	}
	p.tokens.UseNumber()
	return p.value()
}

type parser struct {
	text         []byte
	tokens       *json.Decoder
	offset       int // of line and column
	line, column int
}

func (p *parser) advance(offset int) {
	passed := p.text[p.offset:offset]
	if n := bytes.Count(passed, []byte("\n")); n > 0 {
		p.line, p.column = p.line+n, 1
		passed = passed[bytes.LastIndexByte(passed, '\n')+1:]
	}
	p.offset, p.column = offset, p.column+utf8.RuneCount(passed)
}

func (p *parser) syntaxError(err error) error {
	syntax, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return &Problem{Line: 1, Column: 1, Text: err.Error()}
	}
	offset := min(max(int(syntax.Offset)-1, 0), len(p.text))
	if strings.HasPrefix(syntax.Error(), "unexpected end") {
		offset = len(p.text)
	}
	before := strings.TrimRight(string(p.text[:offset]), " \t\r\n")
	hint := ""
	if offset < len(p.text) && (p.text[offset] == '}' || p.text[offset] == ']') && strings.HasSuffix(before, ",") {
		hint = "; JSON has no comma before a closing bracket: remove it"
	}
	p.advance(offset)
	return &Problem{Line: p.line, Column: p.column, Text: "not JSON: " + syntax.Error() + hint}
}

func (p *parser) value() (*Value, error) {
	offset := int(p.tokens.InputOffset())
	for offset < len(p.text) && bytes.IndexByte([]byte(" \t\r\n,:"), p.text[offset]) >= 0 {
		offset++
	}
	p.advance(offset)
	v := &Value{Line: p.line, Column: p.column}
	token, err := p.tokens.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case nil:
		v.Kind = Null
	case bool:
		v.Kind, v.Bool = Bool, token
	case json.Number:
		v.Kind, v.Text = Number, string(token)
	case string:
		v.Kind, v.Text = String, token
	case json.Delim:
		v.Kind = map[json.Delim]Kind{'[': List, '{': Object}[token]
		return v, p.elements(v)
	}
	return v, nil
}

func (p *parser) elements(v *Value) error {
	for p.tokens.More() {
		first, err := p.value()
		if err != nil {
			return err
		}
		if v.Kind == List {
			v.Items = append(v.Items, first)
			continue
		}
		second, err := p.value()
		if err != nil {
			return err
		}
		v.Members = append(v.Members, Member{Key: first, Value: second})
	}
	_, err := p.tokens.Token()
	return err
}

// any decodes like encoding/json, with numbers as json.Number.
func (v *Value) any() any {
	switch v.Kind {
	case Bool:
		return v.Bool
	case Number:
		return json.Number(v.Text)
	case String:
		return v.Text
	case List:
		list := make([]any, len(v.Items))
		for i, item := range v.Items {
			list[i] = item.any()
		}
		return list
	case Object:
		object := make(map[string]any, len(v.Members))
		for _, m := range v.Members {
			object[m.Key.Text] = m.Value.any()
		}
		return object
	}
	return nil
}

// ProblemKind is a constant for metric labels; users add their own. "": a value
// cannot be decoded.
type ProblemKind string

const (
	UnknownKey   ProblemKind = "unknown-key"
	DuplicateKey ProblemKind = "duplicate-key"
)

// Problem is a mistake in a document, as *Problem an error.
type Problem struct {
	Kind    ProblemKind `json:"kind,omitempty"`
	Path    string      `json:"path,omitempty"` // spec.interfaces[0].numVf; "" is the whole text
	Line    int         `json:"line"`           // from 1; 0: unknown
	Column  int         `json:"column"`         // from 1, in characters
	Key     string      `json:"key,omitempty"`
	Nearest string      `json:"nearest,omitempty"` // the probable intention
	Text    string      `json:"text"`              // what is wrong, and what would be right
}

// At returns a problem at a value's position.
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

// JoinErrors joins problems as *Problem; nil without problems.
func JoinErrors(problems []Problem) error {
	all := make([]error, len(problems))
	for i := range problems {
		all[i] = &problems[i]
	}
	return errors.Join(all...)
}
