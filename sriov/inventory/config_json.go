package inventory

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// jsonKind is what a JSON value is, as messages say it.
type jsonKind string

const (
	nullKind   jsonKind = "null"
	boolKind   jsonKind = "a boolean"
	numberKind jsonKind = "a number"
	textKind   jsonKind = "a string"
	listKind   jsonKind = "a list"
	objectKind jsonKind = "an object"
)

// jsonValue is a JSON value with its place in the text. Unlike a decoded struct it
// keeps keys that are given twice, and where each thing stands.
type jsonValue struct {
	kind    jsonKind
	offset  int
	text    string // of a string
	truth   bool   // of a boolean
	items   []*jsonValue
	members []jsonMember
}

type jsonMember struct {
	key   *jsonValue // a string
	value *jsonValue
}

// parseJSON reads a text that must be one JSON value and nothing else.
func parseJSON(text []byte) (*jsonValue, error) {
	if len(text) > MaxConfigSize {
		return nil, fmt.Errorf("the text has %d bytes, want at most %d", len(text), MaxConfigSize)
	}
	// Unmarshal looks at the whole text first: it also finds what follows the
	// value, and says at which byte.
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, err
	}
	t := jsonReader{text: text, tokens: json.NewDecoder(bytes.NewReader(text))}
	t.tokens.UseNumber()
	return t.value()
}

type jsonReader struct {
	text   []byte
	tokens *json.Decoder
}

func (t *jsonReader) value() (*jsonValue, error) {
	n := &jsonValue{offset: int(t.tokens.InputOffset())}
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

func (t *jsonReader) list(n *jsonValue) error {
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

func (t *jsonReader) object(n *jsonValue) error {
	for t.tokens.More() {
		key, err := t.value()
		if err != nil {
			return err
		}
		value, err := t.value()
		if err != nil {
			return err
		}
		n.members = append(n.members, jsonMember{key: key, value: value})
	}
	_, err := t.tokens.Token()
	return err
}
