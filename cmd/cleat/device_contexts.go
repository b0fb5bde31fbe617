package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume/access"
)

// The three maps of a CreateDevice, as the contract calls them.
const (
	volumeContextWord     = "volume_context"
	publishContextWord    = "publish_context"
	storageParametersWord = "storage_parameters"
)

// deviceContexts reads the three maps from flags and a file.
type deviceContexts struct {
	volume, publish, storage []string // KEY=VALUE
	from                     string
}

func (f *deviceContexts) add(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.volume, "context", nil, "KEY=VALUE of the volume's attributes (volume_context); may be repeated")
	c.Flags().StringArrayVar(&f.publish, "publish-context", nil, "KEY=VALUE of the attachment's parameters (publish_context); may be repeated")
	c.Flags().StringArrayVar(&f.storage, "storage-parameter", nil, "KEY=VALUE of the storage policy's parameters (storage_parameters); may be repeated")
	c.Flags().StringVar(&f.from, "from", "", "YAML file with the maps volume_context, publish_context and storage_parameters; a flag wins over a key of it; - is standard input")
}

// read returns the maps. No error shows a value, which may be a secret.
func (f *deviceContexts) read(stdin io.Reader) (request.Contexts, error) {
	all := map[string]map[string]string{volumeContextWord: {}, publishContextWord: {}, storageParametersWord: {}}
	if f.from != "" {
		if err := readContexts(stdin, f.from, all); err != nil {
			return request.Contexts{}, fmt.Errorf("--from %s: %w", f.from, err)
		}
	}
	for _, of := range []struct {
		flag string
		args []string
		to   map[string]string
	}{{"context", f.volume, all[volumeContextWord]}, {"publish-context", f.publish, all[publishContextWord]}, {"storage-parameter", f.storage, all[storageParametersWord]}} {
		given := map[string]bool{}
		for _, arg := range of.args {
			key, value, ok := strings.Cut(arg, "=")
			switch {
			case !ok || key == "":
				return request.Contexts{}, fmt.Errorf("--%s takes KEY=VALUE, as targetAddr=192.0.2.10", of.flag)
			case given[key] && !access.LooksSecret(key):
				return request.Contexts{}, fmt.Errorf("--%s %s is given twice", of.flag, key)
			}
			given[key], of.to[key] = true, value
		}
	}
	for _, name := range []string{volumeContextWord, publishContextWord, storageParametersWord} {
		for _, key := range slices.Sorted(maps.Keys(all[name])) {
			if err := checkSecret(name, key, all[name][key]); err != nil {
				return request.Contexts{}, err
			}
		}
	}
	return request.Contexts{Volume: all[volumeContextWord], Publish: all[publishContextWord], Storage: all[storageParametersWord]}, nil
}

// checkSecret refuses what looks like a key: plugins, and DPF itself, log and
// keep contexts.
func checkSecret(name, key, value string) error {
	const advice = "nothing was sent. The contract carries no secrets: put it into a file of the plugin's directory of keys (cleat dpu --key-dir), and give the name of that file"
	switch {
	case access.LooksSecret(key):
		return fmt.Errorf("a name in %s looks like a key of NVMe or Ceph itself (not shown): %s", name, advice)
	case access.LooksSecret(value):
		return fmt.Errorf("%s/%s looks like a key of NVMe or Ceph itself (not shown): %s", name, key, advice)
	}
	return nil
}

// maxContextFile bounds a file of contexts, in bytes; what a request may hold is
// far below.
const maxContextFile = 4 << 20

func readContexts(stdin io.Reader, from string, into map[string]map[string]string) error {
	in := stdin
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return pathless(err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxContextFile+1))
	switch {
	case err != nil:
		return pathless(err)
	case len(text) > maxContextFile:
		return fmt.Errorf("it has more than %d bytes", maxContextFile)
	}
	var found map[string]map[string]any
	if err := yaml.UnmarshalStrict(text, &found); err != nil { // the parser's words could hold a secret
		return errors.New("it is no YAML with the maps volume_context, publish_context and storage_parameters, each key in it once")
	}
	for name, m := range found {
		to, known := into[name]
		if !known {
			return unknownMap(name)
		}
		for key, value := range m {
			text, isText := value.(string)
			if !isText {
				return fmt.Errorf("%s holds another thing than a text%s: write numbers and words such as true in quotes", name, keyUnlessSecret(key))
			}
			to[key] = text
		}
	}
	return nil
}

func keyUnlessSecret(key string) string {
	if access.LooksSecret(key) {
		return ""
	}
	return fmt.Sprintf(" under %q", key)
}

func unknownMap(name string) error {
	known := []string{volumeContextWord, publishContextWord, storageParametersWord}
	all := strings.Join(known, ", ")
	if access.LooksSecret(name) {
		return fmt.Errorf("it holds a name (not shown: it looks like a key) that is none of %s", all)
	}
	if near := errs.Nearest(name, known); near != "" {
		return fmt.Errorf("it holds %q, did you mean %s? There are %s", name, near, all)
	}
	return fmt.Errorf("it holds %q, which is none of %s", name, all)
}
