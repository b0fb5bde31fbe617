package config

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// kind is what a JSON value is, as messages say it.
type kind string

const (
	nullKind   kind = "null"
	boolKind   kind = "a boolean"
	numberKind kind = "a number"
	textKind   kind = "a string"
	listKind   kind = "a list"
	objectKind kind = "an object"
)

// node is a JSON value with its place in the text. Unlike a decoded struct it
// keeps keys that are given twice, and where each thing stands.
type node struct {
	kind    kind
	offset  int
	text    string // of a string
	truth   bool   // of a boolean
	items   []*node
	members []member
}

type member struct {
	key   *node // a string
	value *node
}

// parseTree reads a text that must be one JSON value and nothing else.
func parseTree(text []byte) (*node, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("the text has %d bytes, want at most %d", len(text), MaxSize)
	}
	// Unmarshal looks at the whole text first: it also finds what follows the
	// value, and says at which byte.
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, err
	}
	t := treeReader{text: text, tokens: json.NewDecoder(bytes.NewReader(text))}
	t.tokens.UseNumber()
	return t.value()
}

type treeReader struct {
	text   []byte
	tokens *json.Decoder
}

func (t *treeReader) value() (*node, error) {
	n := &node{offset: int(t.tokens.InputOffset())}
	for n.offset < len(t.text) && bytes.IndexByte([]byte(" \t\r\n,:"), t.text[n.offset]) >= 0 {
		n.offset++
	}
	token, err := t.tokens.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case nil:
		n.kind = nullKind
	case bool:
		n.kind, n.truth = boolKind, token
	case json.Number:
		n.kind = numberKind
	case string:
		n.kind, n.text = textKind, token
	case json.Delim:
		if token == '[' {
			n.kind = listKind
			return n, t.list(n)
		}
		n.kind = objectKind
		return n, t.object(n)
	}
	return n, nil
}

func (t *treeReader) list(n *node) error {
	for t.tokens.More() {
		item, err := t.value()
		if err != nil {
			return err
		}
		n.items = append(n.items, item)
	}
	_, err := t.tokens.Token()
	return err
}

func (t *treeReader) object(n *node) error {
	for t.tokens.More() {
		key, err := t.value()
		if err != nil {
			return err
		}
		value, err := t.value()
		if err != nil {
			return err
		}
		n.members = append(n.members, member{key: key, value: value})
	}
	_, err := t.tokens.Token()
	return err
}
