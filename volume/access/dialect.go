package access

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// dialect is how one kind stands in contexts.
type dialect struct {
	protocol string
	// keys are canonical keys with the other names they are known by. Names
	// are compared without case, since the field does not agree on it.
	keys map[string][]string
	// identity are the keys that say which volume it is. Contexts that differ
	// in them speak of two volumes.
	identity []string
	// foreign are keys of other people that are near to ours by chance.
	foreign []string
	// groups are keys that say one thing in two ways: a later context that
	// sets the first of a pair takes the second of an earlier one away.
	groups [][2]string
	build  func(fields) (Access, error)
}

// fields are the values of one locator under canonical keys, none empty.
type fields map[string]string

func dialects() []dialect {
	return []dialect{nvmeDialect(), rbdDialect(), cephFSDialect(), nfsDialect()}
}

// canonical finds the canonical key of a name.
func (d dialect) canonical(name string) (string, bool) {
	for key, others := range d.keys {
		if strings.EqualFold(key, name) || slices.ContainsFunc(others, func(o string) bool { return strings.EqualFold(o, name) }) {
			return key, true
		}
	}
	return "", false
}

// read takes the fields out of one context. Two names of one key must agree.
func (d dialect) read(context map[string]string) (fields, error) {
	f, from := fields{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(context)) {
		value := context[name]
		key, ok := d.canonical(name)
		switch {
		case !ok:
			if near := d.misspelt(name); near != "" {
				return nil, fmt.Errorf("there is no key %q in a locator of %s; did you mean %s?", name, d.protocol, near)
			}
		case value == "":
		case from[key] != "" && f[key] != value && isReference(key):
			return nil, fmt.Errorf("%s and %s contradict each other (their values are not shown, for they may be keys); give one", from[key], name)
		case from[key] != "" && f[key] != value:
			return nil, fmt.Errorf("%s %s and %s %s contradict each other; give one", from[key], Quote(f[key]), name, Quote(value))
		default:
			f[key], from[key] = value, name
		}
	}
	return f, nil
}

// overlay puts a later context over an earlier one.
func (d dialect) overlay(f, later fields) error {
	for _, key := range d.identity {
		a, b := f[key], later[key]
		if a != "" && b != "" && !strings.EqualFold(a, b) {
			return fmt.Errorf("the contexts contradict each other: %s is %s and then %s, which are two volumes", key, Quote(a), Quote(b))
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

// decode reads a locator out of contexts, of which later ones win.
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

// misspelt returns the key that a name most likely stands for, or "". Names
// with a domain are other people's.
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
