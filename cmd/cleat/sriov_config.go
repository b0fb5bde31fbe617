package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/sriov/config"
)

// sriovConfig says which config.json is meant and how it is read.
type sriovConfig struct {
	file        string
	prefix      string
	environment *pflag.FlagSet
}

func (f *sriovConfig) add(c *cobra.Command) {
	e := pflag.NewFlagSet("environment", pflag.ContinueOnError)
	e.StringVar(&f.file, "config-file", sriovConfigFile, "config.json of the device plugin")
	e.StringVar(&f.prefix, "resource-prefix", config.DefaultPrefix, "prefix of resources that have none of their own")
	cli.DescribeEnv(e)
	f.environment = e
	c.Flags().AddFlagSet(e)
}

// bind reads what the environment says of the flags.
func (f *sriovConfig) bind() error {
	return cli.Bind(f.environment, cli.Sources{LookupEnv: os.LookupEnv})
}

// sriovText is a config.json and where it stands.
type sriovText struct {
	source string // for people: the file, and its key where there are several
	text   []byte
	// In a manifest: lines above the text, and how far it is indented.
	above, indent int
}

// locate turns a place in the text into one in the file.
func (t sriovText) locate(f sriovFinding) sriovFinding {
	f.Line += t.above
	f.Column += t.indent
	return f
}

// maxSriovManifest bounds a manifest, in bytes. What the API server takes is
// smaller.
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

// sriovTexts takes a text apart that may be the manifest of ConfigMaps.
func sriovTexts(name string, text []byte) ([]sriovText, error) {
	var all []sriovText
	var other string
	line := 0
	for _, document := range yamlDocuments(text) {
		var m struct {
			Kind     string                `json:"kind"`
			Metadata struct{ Name string } `json:"metadata"`
			Data     map[string]string     `json:"data"`
		}
		if err := yaml.Unmarshal(document, &m); err == nil && m.Kind == "ConfigMap" {
			found, err := configMapTexts(name, document, line, m.Metadata.Name, m.Data)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		} else if err == nil && m.Kind != "" {
			other = m.Kind
		}
		line += bytes.Count(document, []byte("\n"))
	}
	switch {
	case len(all) > 0:
		return all, nil
	case other != "":
		return nil, fmt.Errorf("%s is a manifest of kind %s, want a config.json or a ConfigMap with one", name, other)
	}
	return []sriovText{{source: name, text: text}}, nil
}

// yamlDocuments cuts a stream of YAML documents before its separators.
func yamlDocuments(text []byte) [][]byte {
	var all [][]byte
	begin, at := 0, 0
	for line := range bytes.Lines(text) {
		if at > begin && bytes.Equal(bytes.TrimRight(line, " \t\r\n"), []byte("---")) {
			all, begin = append(all, text[begin:at]), at
		}
		at += len(line)
	}
	return append(all, text[begin:])
}

// configMapTexts is the key config.json of a ConfigMap, without one all its
// keys.
func configMapTexts(name string, manifest []byte, line int, of string, data map[string]string) ([]sriovText, error) {
	keys := slices.Sorted(maps.Keys(data))
	if slices.Contains(keys, "config.json") {
		keys = []string{"config.json"}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s: the ConfigMap %q has no data", name, of)
	}
	var all []sriovText
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
	return all, nil
}

// blockIn finds a text that stands in a manifest as an indented block, so that
// its lines can be told as those of the file.
func blockIn(manifest []byte, text string) (above, indent int, found bool) {
	want := strings.Split(strings.TrimRight(text, "\n"), "\n")
	have := strings.Split(string(manifest), "\n")
	if strings.TrimSpace(want[0]) == "" {
		return 0, 0, false
	}
	for at := 0; at+len(want) <= len(have); at++ {
		margin, ok := strings.CutSuffix(have[at], want[0])
		if !ok || strings.Trim(margin, " ") != "" {
			continue
		}
		if matchesBlock(have[at:at+len(want)], want, margin) {
			return at, len(margin), true
		}
	}
	return 0, 0, false
}

func matchesBlock(have, want []string, margin string) bool {
	for i, line := range want {
		if have[i] != margin+line && strings.TrimSpace(have[i]+line) != "" {
			return false
		}
	}
	return true
}
