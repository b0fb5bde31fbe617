package nodestate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/internal/strictjson"
)

// MaxSize in bytes; the API server stores no larger object.
const MaxSize = 3 << 20

type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		ResourceVersion   string            `json:"resourceVersion"`
		Generation        int64             `json:"generation"`
		DeletionTimestamp string            `json:"deletionTimestamp"`
		Annotations       map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec   Spec   `json:"spec"`
	Status Status `json:"status"`
}

// Parse reads YAML or JSON. Only spec is required. Errors are wrong types,
// duplicate keys, a second document, and keys that differ only in letter case:
// ignoring numVFs would remove all functions. The error joins one
// *strictjson.Problem per mistake. Other unknown keys are warnings, for newer
// operators. Spec.Check validates values.
func Parse(text []byte) (NodeState, []strictjson.Problem, error) {
	asJSON, err := toJSON(text)
	if err != nil {
		return NodeState{}, nil, &strictjson.Problem{Text: err.Error()}
	}
	root, err := strictjson.Parse(asJSON)
	if err != nil {
		return NodeState{}, nil, err
	}
	if root.Kind != strictjson.Object {
		return NodeState{}, nil, &strictjson.Problem{Text: fmt.Sprintf("the text is %s, want an object with apiVersion, kind, metadata and spec", root.Kind)}
	}
	// A truncated file is the likely cause.
	if !slices.ContainsFunc(root.Members, func(m strictjson.Member) bool { return m.Key.Text == "spec" && m.Value.Kind != strictjson.Null }) {
		return NodeState{}, nil, &strictjson.Problem{Path: "spec", Text: "it is missing; for no interfaces write \"spec: {}\""}
	}
	return decode(root)
}

// FromObject decodes a client-go object like Parse, but spec can be missing.
func FromObject(content map[string]any) (NodeState, []strictjson.Problem, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return NodeState{}, nil, &strictjson.Problem{Text: err.Error()}
	}
	root, err := strictjson.Parse(text)
	if err != nil {
		return NodeState{}, nil, err
	}
	return decode(root)
}

func decode(root *strictjson.Value) (NodeState, []strictjson.Problem, error) {
	var o object
	var errs, warnings []strictjson.Problem
	for _, p := range strictjson.Decode(root, "", &o, strictjson.Options{}) {
		p.Line, p.Column = 0, 0 // of the converted text
		switch {
		case p.Kind != strictjson.UnknownKey:
			errs = append(errs, p)
		case strings.HasPrefix(p.Path, "metadata.") || strings.HasPrefix(p.Path, "metadata["): // the API server has more
		// The operator writes the status: unknown keys are warnings.
		case strings.EqualFold(p.Nearest, p.Key) && !strings.HasPrefix(p.Path, "status"):
			p.Text = fmt.Sprintf("there is no key %q, want %q", p.Key, p.Nearest)
			errs = append(errs, p)
		default:
			warnings = append(warnings, p)
		}
	}
	for _, c := range []struct{ path, is, want string }{{"apiVersion", o.APIVersion, APIVersion}, {"kind", o.Kind, Kind}} {
		if c.is != "" && c.is != c.want {
			errs = append(errs, strictjson.Problem{Path: c.path, Text: fmt.Sprintf("it is %q, want %q", c.is, c.want)})
		}
	}
	m := o.Metadata
	if m.Generation < 0 {
		errs = append(errs, strictjson.Problem{Path: "metadata.generation", Text: fmt.Sprintf("it is %d, want 0 or more", m.Generation)})
	}
	if len(errs) > 0 {
		return NodeState{}, warnings, strictjson.JoinErrors(errs)
	}
	slices.SortFunc(warnings, func(a, b strictjson.Problem) int { return cmp.Compare(a.Path, b.Path) })
	return NodeState{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: max(m.Generation, 1),
		Deleting: m.DeletionTimestamp != "", Annotations: m.Annotations, Spec: o.Spec, Status: o.Status,
	}, warnings, nil
}

// toJSON preserves the text of numbers.
func toJSON(text []byte) ([]byte, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("the text has %d bytes, want at most %d", len(text), MaxSize)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, fmt.Errorf("the text is empty, want a %s", Kind)
	}
	// Other encodings would hide document markers.
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
	return converted, nil
}

// secondDocument returns the line of a second document, or 0. The YAML parser
// would ignore it.
func secondDocument(text string) int {
	// YAML's line breaks.
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
