package access

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// dialect is how contexts describe one kind.
type dialect struct {
	protocol string
	// canonical keys with aliases, case-insensitive since published plugins
	// differ
	keys map[string][]string
	// contexts that differ in these keys describe two volumes
	identity []string
	// keys of other projects that resemble ours
	foreign []string
	// pairs: the first key in a later context removes the second of an earlier
	// one
	groups [][2]string
	build  func(fields) (Access, error)
}

// fields are non-empty values by canonical key.
type fields map[string]string

func dialects() []dialect {
	return []dialect{nvmeDialect(), rbdDialect(), cephFSDialect(), nfsDialect()}
}

func (d dialect) canonical(name string) (string, bool) {
	for key, others := range d.keys {
		if strings.EqualFold(key, name) || slices.ContainsFunc(others, func(o string) bool { return strings.EqualFold(o, name) }) {
			return key, true
		}
	}
	return "", false
}

// read returns the fields of one context. Aliases of one key must agree.
func (d dialect) read(context map[string]string) (fields, error) {
	f, from := fields{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(context)) {
		value := context[name]
		key, ok := d.canonical(name)
		switch {
		case !ok:
			if near := d.misspelt(name); near != "" {
				return nil, fmt.Errorf("%q is not a key of %s volumes; did you mean %s?", name, d.protocol, near)
			}
		case value == "":
		case from[key] != "" && f[key] != value && isReference(key):
			return nil, fmt.Errorf("%s and %s contradict each other (values not shown: they can be secret); give one", from[key], name)
		case from[key] != "" && f[key] != value:
			return nil, fmt.Errorf("%s %s and %s %s contradict each other; give one", from[key], Quote(f[key]), name, Quote(value))
		default:
			f[key], from[key] = value, name
		}
	}
	return f, nil
}

func (d dialect) overlay(f, later fields) error {
	for _, key := range d.identity {
		a, b := f[key], later[key]
		if a != "" && b != "" && !strings.EqualFold(a, b) {
			return fmt.Errorf("volume_context and publish_context are for different volumes: %s is %s and then %s", key, Quote(a), Quote(b))
		}
	}
	for _, g := range d.groups {
		if later[g[0]] != "" {
			delete(f, g[1])
		}
	}
	maps.Copy(f, later)
	return nil
}

// decode parses the locator in contexts, of which later ones take precedence.
func (d dialect) decode(contexts []map[string]string) (Access, error) {
	all := fields{}
	for _, c := range contexts {
		f, err := d.read(c)
		if err != nil {
			return nil, err
		}
		if err := d.overlay(all, f); err != nil {
			return nil, err
		}
	}
	return d.build(all)
}

// misspelt returns the likely key, or "". Names with a domain belong to other
// projects.
func (d dialect) misspelt(name string) string {
	if strings.ContainsAny(name, "./") || slices.ContainsFunc(d.foreign, func(o string) bool { return strings.EqualFold(o, name) }) {
		return ""
	}
	for _, key := range slices.Sorted(maps.Keys(d.keys)) {
		allowed := 1
		if len(key) >= 8 {
			allowed = 2
		}
		if len(key) >= 4 && errs.Distance(strings.ToLower(name), strings.ToLower(key)) <= allowed {
			return key
		}
	}
	return ""
}
