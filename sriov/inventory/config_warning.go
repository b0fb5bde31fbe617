package inventory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/internal/strictjson"
)

// ConfigWarning is something that upstream's plugin ignores silently.
// ConfigError makes config.json unusable: a warning in strict mode, or a
// problem without a kind.
type (
	ConfigWarning     = strictjson.Problem
	ConfigError       = strictjson.Problem
	ConfigWarningKind = strictjson.ProblemKind
)

// The kinds. In strict mode the first seven are errors: they are probably
// mistakes. The others are right but may surprise.
const (
	UnknownKey                        = strictjson.UnknownKey
	DuplicateKey                      = strictjson.DuplicateKey
	IgnoredKey      ConfigWarningKind = "ignored-key" // a key that has no meaning at its place
	BadRange        ConfigWarningKind = "bad-range"   // functions after the # that cannot be parsed
	NoEffect        ConfigWarningKind = "no-effect"   // a value that no device can have
	DroppedResource ConfigWarningKind = "dropped"     // a resource that cannot be parsed or registered, and is left out
	Unfiltered      ConfigWarningKind = "unfiltered"  // selectors are missing: all devices match

	CatchAll    ConfigWarningKind = "catch-all"     // an empty selector: all devices match
	Surprising  ConfigWarningKind = "surprise"      // its meaning may not be what it seems
	NothingToDo ConfigWarningKind = "nothing-to-do" // there is no resource
)

func isMistake(k ConfigWarningKind) bool {
	return slices.Contains([]ConfigWarningKind{UnknownKey, IgnoredKey, DuplicateKey, BadRange, NoEffect, DroppedResource, Unfiltered}, k)
}

// configReader collects what is wrong, so that one run reports everything.
type configReader struct {
	noDDPTool bool
	problems  []ConfigWarning // without a kind: an error
}

func (r *configReader) fail(at *strictjson.Value, path, format string, args ...any) {
	r.warn("", at, path, format, args...)
}

func (r *configReader) warn(kind ConfigWarningKind, at *strictjson.Value, path, format string, args ...any) {
	r.problems = append(r.problems, strictjson.At(at, kind, path, format, args...))
}

// failure returns the first error of problems.
func failure(problems []ConfigWarning) (ConfigWarning, bool) {
	i := slices.IndexFunc(problems, func(p ConfigWarning) bool { return p.Kind == "" })
	if i < 0 {
		return ConfigWarning{}, false
	}
	return problems[i], true
}

// configField is a value that config.json sets.
type configField struct {
	*strictjson.Value
	path string
}

// decode decodes an object of the document. It returns the values that are
// set, by key as it is written here.
func (r *configReader) decode(v *strictjson.Value, path string, into any, t DeviceType) map[string]configField {
	fields := map[string]configField{}
	o := strictjson.Options{FoldCase: true, For: string(t), Field: func(key, path string, v *strictjson.Value) {
		fields[key] = configField{v, path}
	}}
	for _, p := range strictjson.Decode(v, path, into, o) {
		if homes := objectsWith(p.Key); p.Kind == UnknownKey && len(homes) > 0 {
			p.Kind, p.Nearest = IgnoredKey, ""
			p.Text = fmt.Sprintf("the key %q is ignored here: it is a key of %s", p.Key, strings.Join(homes, " and of "))
		}
		r.problems = append(r.problems, p)
	}
	return fields
}

// objectsWith names the objects of the document in which a key has a meaning.
func objectsWith(key string) (names []string) {
	add := func(name string, object any, t DeviceType) {
		keys := strictjson.Keys(object, strictjson.Options{For: string(t)})
		if slices.ContainsFunc(keys, func(k string) bool { return strings.EqualFold(k, key) }) {
			names = append(names, name)
		}
	}
	add("the document", configDocument{}, "")
	add("a resource", configResource{}, "")
	for _, t := range DeviceTypes() {
		add("a selector of "+string(t), Selector{}, t)
	}
	return names
}
