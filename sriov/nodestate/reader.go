package nodestate

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// reader reads trees of what encoding/json and client-go make of JSON.
type reader struct{ findings }

// field is a key of an object, and what reads its value.
type field struct {
	key  string
	read func(v any, path string)
}

// object reads the fields of an object in their order. A null is like a key
// that is not there. It warns of keys that are no field.
func (r *reader) object(v any, path string, fields ...field) {
	object, ok := v.(map[string]any)
	if !ok {
		r.fail(path, "it is %s, want an object", kindOf(v))
		return
	}
	known := make([]string, len(fields))
	for i, f := range fields {
		known[i] = f.key
		if v := object[f.key]; v != nil {
			f.read(v, join(path, f.key))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if !slices.Contains(known, key) {
			r.strange(path, key, known)
		}
	}
}

// maxSlip bounds the length of a key that may be a slip of a known one: what is
// longer costs time to compare and is none.
const maxSlip = 64

// strange says that a key is not known.
func (r *reader) strange(path, key string, known []string) {
	lowered := make([]string, len(known))
	for i, k := range known {
		lowered[i] = strings.ToLower(k)
	}
	w := Warning{Path: join(path, key), Key: key}
	near := ""
	if len(key) < maxSlip {
		near = errs.Nearest(strings.ToLower(key), lowered)
	}
	if near != "" {
		w.Nearest = known[slices.Index(lowered, near)]
	}
	// A status is the operator's: it knows what it writes.
	if strings.EqualFold(w.Nearest, key) && !strings.HasPrefix(path, "status") {
		r.fail(w.Path, "there is no key %q, want %q", key, w.Nearest)
		return
	}
	if w.Nearest != "" {
		w.Text = fmt.Sprintf("there is no key %q; did you mean %q? As it stands it is ignored", key, w.Nearest)
	} else {
		w.Text = fmt.Sprintf("there is no key %q; it is ignored. There are %s", key, strings.Join(known, ", "))
	}
	r.warnings = append(r.warnings, w)
}

// list calls read for each element.
func (r *reader) list(v any, path string, read func(v any, path string)) {
	list, ok := v.([]any)
	if !ok {
		r.fail(path, "it is %s, want a list", kindOf(v))
		return
	}
	for i, v := range list {
		read(v, fmt.Sprintf("%s[%d]", path, i))
	}
}

func (r *reader) text(to *string) func(v any, path string) {
	return func(v any, path string) {
		text, ok := v.(string)
		if !ok {
			hint := ""
			if _, _, scalar := scalar(v); scalar {
				hint = "; put it in quotes"
			}
			r.fail(path, "it is %s, want a string%s", kindOf(v), hint)
		}
		*to = text
	}
}

func (r *reader) truth(to *bool) func(v any, path string) {
	return func(v any, path string) {
		truth, ok := v.(bool)
		if !ok {
			r.fail(path, "it is %s, want true or false", kindOf(v))
		}
		*to = truth
	}
}

// onOff reads on and off, which are booleans in YAML unless in quotes.
func (r *reader) onOff(to *string) func(v any, path string) {
	return func(v any, path string) {
		switch v := v.(type) {
		case string:
			*to = v
		case bool:
			*to = map[bool]string{true: On, false: Off}[v]
		default:
			r.fail(path, "it is %s, want \"on\" or \"off\"", kindOf(v))
		}
	}
}

func (r *reader) number(to *int) func(v any, path string) {
	return func(v any, path string) {
		n, whole, ok := scalar(v)
		if !ok {
			r.fail(path, "it is %s, want a whole number", kindOf(v))
			return
		}
		if !whole || n < math.MinInt32 || n > math.MaxInt32 {
			r.fail(path, "%v is no whole number of 32 bits", v)
			return
		}
		*to = int(n)
	}
}

// scalar is the value of a number; whole is false when it has none of 64 bits.
func scalar(v any) (n int64, whole, ok bool) {
	switch v := v.(type) {
	case json.Number:
		n, err := strconv.ParseInt(string(v), 10, 64)
		return n, err == nil, true
	case int64:
		return v, true, true
	case int:
		return int64(v), true, true
	case float64:
		whole := v == math.Trunc(v) && math.Abs(v) < 1<<53
		if !whole {
			return 0, false, true
		}
		return int64(v), true, true
	}
	return 0, false, false
}

func (r *reader) constant(v any, path, want string) {
	var text string
	r.text(&text)(v, path)
	if text != "" && text != want {
		r.fail(path, "it is %q, want %q", text, want)
	}
}

// free reads an object whose keys are free; it keeps numbers as json.Number.
func (r *reader) free(to *map[string]any) func(v any, path string) {
	return func(v any, path string) {
		object, ok := v.(map[string]any)
		if !ok {
			r.fail(path, "it is %s, want an object", kindOf(v))
		}
		*to = object
	}
}

// kindOf is what a value is, as messages say it.
func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case string:
		return "a string"
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	return "a number"
}

// join adds a key to a path; a key that is no plain word is quoted.
func join(path, key string) string {
	switch {
	case !regexp.MustCompile(`^[A-Za-z0-9_]+$`).MatchString(key):
		return fmt.Sprintf("%s[%q]", path, key)
	case path == "":
		return key
	}
	return path + "." + key
}
