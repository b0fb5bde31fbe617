package inventory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/internal/strictjson"
)

// Kinds of problems. The first five, and those of strictjson, are errors in
// strict mode; the others are valid but possibly unintended.
const (
	IgnoredKey      strictjson.ProblemKind = "ignored-key" // valid elsewhere in the document
	BadRange        strictjson.ProblemKind = "bad-range"
	NoEffect        strictjson.ProblemKind = "no-effect"  // a value that no device can have
	DroppedResource strictjson.ProblemKind = "dropped"    // cannot be parsed or registered
	Unfiltered      strictjson.ProblemKind = "unfiltered" // no selectors: all devices match

	CatchAll    strictjson.ProblemKind = "catch-all" // empty selector: all devices match
	Surprising  strictjson.ProblemKind = "surprise"
	NothingToDo strictjson.ProblemKind = "nothing-to-do"
)

func isMistake(k strictjson.ProblemKind) bool {
	return !slices.Contains([]strictjson.ProblemKind{CatchAll, Surprising, NothingToDo}, k)
}

// configReader collects all problems, so that one run reports every mistake.
type configReader struct {
	noDDPTool bool
	problems  []strictjson.Problem // an empty kind is an error
}

func (r *configReader) fail(at *strictjson.Value, path, format string, args ...any) {
	r.warn("", at, path, format, args...)
}

func (r *configReader) warn(kind strictjson.ProblemKind, at *strictjson.Value, path, format string, args ...any) {
	r.problems = append(r.problems, strictjson.At(at, kind, path, format, args...))
}

func failure(problems []strictjson.Problem) (strictjson.Problem, bool) {
	i := slices.IndexFunc(problems, func(p strictjson.Problem) bool { return p.Kind == "" })
	if i < 0 {
		return strictjson.Problem{}, false
	}
	return problems[i], true
}

type configField struct {
	*strictjson.Value
	path string
}

// decode returns the values that are set, by canonical key.
func (r *configReader) decode(v *strictjson.Value, path string, into any, t DeviceType) map[string]configField {
	fields := map[string]configField{}
	o := strictjson.Options{FoldCase: true, For: string(t), Field: func(key, path string, v *strictjson.Value) {
		fields[key] = configField{v, path}
	}}
	for _, p := range strictjson.Decode(v, path, into, o) {
		if homes := objectsWith(p.Key); p.Kind == strictjson.UnknownKey && len(homes) > 0 {
			p.Kind, p.Nearest = IgnoredKey, ""
			p.Text = fmt.Sprintf("the key %q is ignored here: it is a key of %s", p.Key, strings.Join(homes, " and of "))
		}
		r.problems = append(r.problems, p)
	}
	return fields
}

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
