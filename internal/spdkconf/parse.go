package spdkconf

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/strictjson"
)

// document has spdk-csi's nodes, or our targets; both accept the same keys.
type document struct {
	Nodes   []entry `json:"nodes"`
	Targets []entry `json:"targets"`
}

type entry struct {
	Name       string            `json:"name"`
	RPCURL     string            `json:"rpcURL"`
	TargetType string            `json:"targetType"`
	TargetAddr string            `json:"targetAddr"`
	Addresses  []string          `json:"addresses"`
	TLS        []string          `json:"tlsAddresses"`
	Stores     []string          `json:"lvolStores"`
	Forget     []string          `json:"forget"`
	Cleared    []string          `json:"cleared"`
	Topology   map[string]string `json:"topology"`
	Retired    bool              `json:"retired"`
}

// Parse parses the content of a config.json or YAML. The targets have no user
// and password. The error joins one *strictjson.Problem per mistake.
func Parse(text []byte) ([]Target, error) {
	var d document
	problems, err := decode(text, &d, "config.json")
	if err != nil {
		return nil, err
	}
	list, entries := "targets", d.Targets
	switch {
	case len(d.Nodes) > 0 && len(d.Targets) > 0:
		problems = append(problems, problem("", "both nodes and targets have entries; move all into one of them"))
	case len(d.Nodes) > 0:
		list, entries = "nodes", d.Nodes
	case len(d.Targets) == 0 && len(problems) == 0:
		problems = append(problems, problem("", "no targets; want an entry in targets (or nodes, as in spdk-csi), with name, rpcURL, targetType and addresses (or targetAddr)"))
	}
	var targets []Target
	names, places := map[string]bool{}, map[string]string{}
	for i, e := range entries {
		at := entryPath(list, i, e.Name)
		t, wrong := e.target(at)
		problems = append(problems, wrong...)
		place := t.Socket + t.URL
		if names[e.Name] && e.Name != "" {
			problems = append(problems, problem(at+".name", "two targets have this name"))
		}
		if other, twice := places[place]; twice && place != "" {
			problems = append(problems, problem(at+".rpcURL", "%s is that of target %s too: its space would count twice", errs.Quote(e.RPCURL), errs.Quote(other)))
		}
		names[e.Name], places[place] = true, e.Name
		targets = append(targets, t)
	}
	if len(problems) > 0 {
		return nil, strictjson.JoinErrors(problems)
	}
	return targets, nil
}

// entryPath names an entry by index and, if it has one, name.
func entryPath(list string, i int, name string) string {
	if name == "" {
		return fmt.Sprintf("%s[%d]", list, i)
	}
	return fmt.Sprintf("%s[%d] %s", list, i, errs.Quote(name))
}

func problem(path, format string, args ...any) strictjson.Problem {
	return strictjson.Problem{Path: path, Text: fmt.Sprintf(format, args...)}
}

// decode accepts JSON and YAML, and keys in any case, as spdk-csi does. The
// error is that of the syntax.
func decode(text []byte, into any, like string) ([]strictjson.Problem, error) {
	root, positions, err := parseAny(text)
	if err != nil {
		return nil, err
	}
	if root.Kind != strictjson.Object {
		return nil, fmt.Errorf("the text is %s, want an object as in spdk-csi's %s", root.Kind, like)
	}
	problems := strictjson.Decode(root, "", into, strictjson.Options{FoldCase: true})
	for i := range problems {
		p := &problems[i]
		if !positions {
			p.Line, p.Column = 0, 0
		}
		switch {
		case p.Kind == strictjson.DuplicateKey:
			p.Text = fmt.Sprintf("the key %q is given twice", errs.Clip(p.Key, 64))
		case p.Kind == strictjson.UnknownKey && p.Nearest != "":
			p.Text = fmt.Sprintf("there is no key %q; did you mean %q?", errs.Clip(p.Key, 64), p.Nearest)
		case p.Kind == strictjson.UnknownKey:
			_, known, _ := strings.Cut(p.Text, "Known keys: ")
			p.Text = fmt.Sprintf("there is no key %q; known keys: %s", errs.Clip(p.Key, 64), known)
		}
	}
	return problems, nil
}

// parseAny reports whether the value has the positions of the text.
func parseAny(text []byte) (root *strictjson.Value, positions bool, err error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	trimmed := bytes.TrimSpace(text)
	switch {
	case len(trimmed) == 0:
		return nil, false, errors.New("the text is empty")
	case !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0:
		return nil, false, errors.New("the text is not UTF-8")
	case trimmed[0] == '{':
		root, err = strictjson.Parse(text)
		return root, true, err
	}
	for i, line := range bytes.Split(trimmed, []byte("\n")) {
		if i > 0 && bytes.HasPrefix(line, []byte("---")) {
			return nil, false, errors.New("a second YAML document begins (---), want one")
		}
	}
	converted, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, false, fmt.Errorf("neither YAML nor JSON: %w", err)
	}
	root, err = strictjson.Parse(converted)
	return root, false, err
}
