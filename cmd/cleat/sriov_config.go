package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/sriov/config"
)

// sriovConfigFile is the path in the image of the SR-IOV network device plugin.
const sriovConfigFile = "/etc/pcidp/config.json"

// sriovConfig says which config.json is meant and how it is read.
type sriovConfig struct {
	file   string
	prefix string
}

func (f *sriovConfig) add(e *pflag.FlagSet) {
	e.StringVar(&f.file, "config-file", sriovConfigFile, "config.json of the device plugin")
	e.StringVar(&f.prefix, "resource-prefix", config.DefaultPrefix, "prefix of resources that have none of their own")
}

// load reads the one configuration as the plugin does: probable mistakes are
// warnings.
func (f *sriovConfig) load(stdin io.Reader) (config.Config, []config.Warning, error) {
	texts, err := f.read(stdin)
	if err != nil {
		return config.Config{}, nil, err
	}
	if len(texts) > 1 {
		var sources []string
		for _, t := range texts {
			sources = append(sources, t.source)
		}
		return config.Config{}, nil, fmt.Errorf("%s holds %d configurations (%s); one is wanted", f.file, len(texts), strings.Join(sources, "; "))
	}
	c, warnings, err := config.Parse(texts[0].text, config.Options{Prefix: f.prefix})
	if err != nil {
		return c, nil, fmt.Errorf("%s: %w", texts[0].source, err)
	}
	return c, warnings, nil
}

// sriovText is a config.json and its place.
type sriovText struct {
	source string // the file, and the key if it has several
	text   []byte
	// In a manifest: lines above the text, and its indentation.
	above, indent int
}

// maxSriovManifest bounds a manifest, in bytes: more than the API server takes.
const maxSriovManifest = 4 << 20

// read returns each config.json of the file; it is at least one.
func (f *sriovConfig) read(stdin io.Reader) ([]sriovText, error) {
	in, name := stdin, "standard input"
	if f.file != "-" {
		file, err := os.Open(f.file)
		if err != nil {
			return nil, fmt.Errorf("%w; it is named with --config-file", err)
		}
		defer func() { _ = file.Close() }()
		in, name = file, f.file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxSriovManifest+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case len(text) > maxSriovManifest:
		return nil, fmt.Errorf("%s has more than %d bytes", name, maxSriovManifest)
	}
	return sriovTexts(name, text)
}

// sriovTexts returns the texts of ConfigMaps in a stream of YAML documents, or the
// whole text if it is no manifest.
func sriovTexts(name string, text []byte) ([]sriovText, error) {
	var all []sriovText
	var other error
	var document []byte
	above := 0 // lines above the document
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
	return []sriovText{{source: name, text: text}}, nil
}

// configMapTexts returns the key config.json of a ConfigMap, or all keys if it has
// none.
func configMapTexts(name string, manifest []byte, line int, of string, data map[string]string) (all []sriovText) {
	keys := slices.Sorted(maps.Keys(data))
	if _, ok := data["config.json"]; ok {
		keys = []string{"config.json"}
	}
	for _, key := range keys {
		t := sriovText{source: name, text: []byte(data[key])}
		above, indent, found := blockIn(manifest, data[key])
		if found {
			t.above, t.indent = line+above, indent
		}
		if !found || len(keys) > 1 {
			t.source = fmt.Sprintf("%s, key %s of ConfigMap %s", name, key, of)
		}
		all = append(all, t)
	}
	return all
}

// blockIn finds a text that is an indented block of a manifest, so that its lines
// can be reported as those of the file.
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
