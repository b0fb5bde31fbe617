package nodestate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// MaxSize bounds the text in bytes: the API server keeps no larger object.
const MaxSize = 3 << 20

// Parse reads YAML or JSON. It must have a spec; apiVersion, kind and metadata
// may be missing. It refuses wrong types, keys that stand there twice, a
// second document, and keys that are wrong in nothing but the case of letters:
// as an unknown key, numVFs would remove all functions. The error joins one
// *Error for each thing that is wrong; the NodeState is empty then. It does
// not ask whether the wish makes sense: Spec.Check does.
func Parse(text []byte) (NodeState, []Warning, error) {
	tree, err := parseTree(text)
	if err != nil {
		return NodeState{}, nil, &Error{Text: err.Error()}
	}
	object, ok := tree.(map[string]any)
	if !ok {
		return NodeState{}, nil, &Error{Text: fmt.Sprintf("the text is %s, want an object with apiVersion, kind, metadata and spec", kindOf(tree))}
	}
	// Half a file is one without a spec more often than a wish for nothing.
	if object["spec"] == nil {
		return NodeState{}, nil, &Error{Path: "spec", Text: "it is missing; to wish for nothing write \"spec: {}\""}
	}
	return FromObject(object)
}

// FromObject reads what client-go has as the content of an unstructured
// object. It is as strict as Parse; a spec that is missing is empty. Settings
// of bridges are not copied: nobody may change them.
func FromObject(object map[string]any) (NodeState, []Warning, error) {
	r := &reader{}
	n := NodeState{Generation: 1}
	r.object(object, "",
		field{"apiVersion", func(v any, path string) { r.constant(v, path, APIVersion) }},
		field{"kind", func(v any, path string) { r.constant(v, path, Kind) }},
		field{"metadata", func(v any, path string) { r.metadata(v, path, &n) }},
		field{"spec", func(v any, path string) { r.spec(v, path, &n.Spec) }},
		field{"status", func(v any, path string) { r.status(v, path, &n.Status) }},
	)
	if err := r.err(); err != nil {
		return NodeState{}, r.sorted(), err
	}
	return n, r.sorted(), nil
}

// parseTree reads one document. Numbers stay as they were written.
func parseTree(text []byte) (any, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("the text has %d bytes, want at most %d", len(text), MaxSize)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, fmt.Errorf("the text is empty, want a %s", Kind)
	}
	// Other encodings would hide from secondDocument what they hold.
	if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		return nil, errors.New("the text is not UTF-8")
	}
	if line := secondDocument(string(text)); line > 0 {
		return nil, fmt.Errorf("line %d begins a second document, want one %s", line, Kind)
	}
	converted, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, fmt.Errorf("neither YAML nor JSON: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(converted))
	decoder.UseNumber()
	var tree any
	if err := decoder.Decode(&tree); err != nil {
		return nil, fmt.Errorf("neither YAML nor JSON: %w", err)
	}
	return tree, nil
}

// secondDocument is the line, from 1, where a text begins another document,
// which the YAML reader would pass over in silence. 0 is none.
func secondDocument(text string) int {
	// All that ends a line in YAML.
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n").Replace(text)
	text = strings.TrimPrefix(text, "\ufeff")
	begun, ended := false, false
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, " \t\n")
		marker, _, _ := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
		switch {
		case marker == "...":
			ended = begun
		case marker == "---":
			if begun {
				return number
			}
			begun = true
		case line != "" && !strings.HasPrefix(strings.TrimLeft(line, " \t"), "#") && !strings.HasPrefix(line, "%"):
			if ended {
				return number
			}
			begun = true
		}
	}
	return 0
}
