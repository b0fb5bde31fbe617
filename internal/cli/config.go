package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/errs"
)

// ConfigFlag names the configuration file, and cannot be set in it.
const ConfigFlag = "config"

// maxConfig in bytes, in case of a wrong path.
const maxConfig = 1 << 20

// readFile refuses unknown keys.
func readFile(flags *pflag.FlagSet, path string) (map[string]any, error) {
	if path == "" {
		return nil, nil
	}
	text, err := ReadInput(nil, path, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("config file %s: %w", path, err)
	}
	// Strictly through JSON: a duplicate key is an error, and large numbers
	// keep all digits.
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	values := map[string]any{}
	d := json.NewDecoder(bytes.NewReader(asJSON))
	d.UseNumber()
	if err := d.Decode(&values); err != nil {
		return nil, fmt.Errorf("%s: expected lines of the form \"flag: value\": %w", path, err)
	}
	var known []string
	flags.VisitAll(func(f *pflag.Flag) {
		if bindable(f) && f.Name != ConfigFlag {
			known = append(known, f.Name)
		}
	})
	var all []error
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(known, key) {
			all = append(all, unknownKey(path, key, known))
		}
	}
	return values, errors.Join(all...)
}

// ReadInput reads a file of at most most bytes; "-" reads stdin if not nil.
// Errors do not contain the path, which can be a misplaced secret.
func ReadInput(stdin io.Reader, path string, most int64) ([]byte, error) {
	in := stdin
	if stdin == nil || path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, pathless(err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("the file has more than %d bytes", most)
	}
	return text, pathless(err)
}

func pathless(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

func unknownKey(path, key string, known []string) error {
	if n := errs.Nearest(key, known); n != "" {
		return fmt.Errorf("%s: unknown setting %q; did you mean %q?", path, key, n)
	}
	return fmt.Errorf("%s: unknown setting %q; the settings are %s", path, key, strings.Join(known, ", "))
}

// set accepts a scalar, a list for a slice flag, or a map for a key-value flag.
func set(flags *pflag.FlagSet, f *pflag.Flag, value any) error {
	switch value := value.(type) {
	case []any:
		several, ok := f.Value.(pflag.SliceValue)
		if !ok {
			return fmt.Errorf("expected a single value, not a list")
		}
		var texts []string
		for _, v := range value {
			text, err := scalar(v)
			if err != nil {
				return err
			}
			texts = append(texts, text)
		}
		f.Changed = true
		return several.Replace(texts)
	case map[string]any:
		if !strings.HasPrefix(f.Value.Type(), "stringTo") {
			return fmt.Errorf("expected a single value, not a map")
		}
		text, err := pairs(value)
		if err != nil {
			return err
		}
		return flags.Set(f.Name, text)
	}
	text, err := scalar(value)
	if err != nil {
		return err
	}
	return flags.Set(f.Name, text)
}

func scalar(value any) (string, error) {
	switch value := value.(type) {
	case string:
		return value, nil
	case json.Number:
		return value.String(), nil
	case bool:
		return fmt.Sprint(value), nil
	case nil:
		return "", errors.New("the value is empty")
	}
	return "", fmt.Errorf("a %T cannot be the value of a flag", value)
}

// pairs returns CSV of key=value, for pflag.
func pairs(values map[string]any) (string, error) {
	var texts []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		text, err := scalar(values[key])
		if err != nil {
			return "", fmt.Errorf("%s: %w", key, err)
		}
		texts = append(texts, key+"="+text)
	}
	if len(texts) == 0 {
		return "", errors.New("the map is empty: omit the key")
	}
	var out strings.Builder
	w := csv.NewWriter(&out)
	if err := w.Write(texts); err != nil {
		return "", err
	}
	w.Flush()
	return strings.TrimSuffix(out.String(), "\n"), w.Error()
}
