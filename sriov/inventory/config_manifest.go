package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// ConfigText is a config.json and its source.
type ConfigText struct {
	Source string // the file, and the key if it has several
	Text   []byte
	// Lines above the text in its manifest, and its indentation.
	Above, Indent int
}

// ConfigTexts returns the config texts of all ConfigMaps in a YAML stream, or
// the whole text if it is not a manifest. name is the file name for messages.
func ConfigTexts(name string, text []byte) ([]ConfigText, error) {
	var all []ConfigText
	var other error
	var document []byte
	above := 0
	end := func() error {
		var m struct {
			Kind     string                `json:"kind"`
			Metadata struct{ Name string } `json:"metadata"`
			Data     map[string]string     `json:"data"`
		}
		err := yaml.Unmarshal(document, &m)
		if err == nil && m.Kind == "ConfigMap" {
			if len(m.Data) == 0 {
				return fmt.Errorf("%s: the ConfigMap %q has no data", name, m.Metadata.Name)
			}
			all = append(all, configMapTexts(name, document, above, m.Metadata.Name, m.Data)...)
		} else if err == nil && m.Kind != "" {
			other = fmt.Errorf("%s is a manifest of kind %s, want a config.json or a ConfigMap with one", name, m.Kind)
		}
		above += bytes.Count(document, []byte("\n"))
		document = nil
		return nil
	}
	for line := range bytes.Lines(text) {
		if len(document) > 0 && string(bytes.TrimRight(line, " \t\r\n")) == "---" {
			if err := end(); err != nil {
				return nil, err
			}
		}
		document = append(document, line...)
	}
	switch err := errors.Join(end(), other); {
	case len(all) > 0:
		return all, nil
	case err != nil:
		return nil, err
	}
	return []ConfigText{{Source: name, Text: text}}, nil
}

func configMapTexts(name string, manifest []byte, line int, of string, data map[string]string) (all []ConfigText) {
	keys := slices.Sorted(maps.Keys(data))
	if _, ok := data["config.json"]; ok {
		keys = []string{"config.json"}
	}
	for _, key := range keys {
		t := ConfigText{Source: name, Text: []byte(data[key])}
		above, indent, found := blockIn(manifest, data[key])
		if found {
			t.Above, t.Indent = line+above, indent
		}
		if !found || len(keys) > 1 {
			t.Source = fmt.Sprintf("%s, key %s of ConfigMap %s", name, key, of)
		}
		all = append(all, t)
	}
	return all
}

// blockIn finds text as an indented block, for line numbers of the file.
func blockIn(manifest []byte, text string) (above, indent int, found bool) {
	want := strings.Split(strings.TrimRight(text, "\n"), "\n")
	have := strings.Split(string(manifest), "\n")
	for at := 0; strings.TrimSpace(want[0]) != "" && at+len(want) <= len(have); at++ {
		margin, ok := strings.CutSuffix(have[at], want[0])
		if ok && strings.Trim(margin, " ") == "" && slices.EqualFunc(have[at:at+len(want)], want, func(h, w string) bool {
			return h == margin+w || strings.TrimSpace(h+w) == ""
		}) {
			return at, len(margin), true
		}
	}
	return 0, 0, false
}
