// Package strictjson decodes JSON by json tags, and reports all wrong types,
// unknown and duplicate keys at once, with position and probable intention.
package strictjson

import (
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// Options change what Decode accepts.
type Options struct {
	FoldCase bool // the last of equal keys counts
	// For omits fields with a tag `for:"a,b"` without this word.
	For string
	// Field is called for each set field, after its value is decoded.
	Field func(key, path string, v *Value)
}

// Decode sets the fields of *into that have a json tag; null counts as missing.
// Supported are structs, lists, maps with string keys, strings, booleans, int
// (of 32 bits) and int64, any, *Value for values that the caller decodes, and
// encoding.TextUnmarshaler, whose errors the caller detects. A string with the
// tag `bool:"on,off"` can be a boolean.
func Decode(v *Value, path string, into any, o Options) []Problem {
	d := decoder{Options: o}
	d.value(v, path, reflect.ValueOf(into).Elem(), "")
	return d.problems
}

// Keys returns the keys that Decode accepts for a struct.
func Keys(of any, o Options) (keys []string) {
	for _, f := range fieldsOf(reflect.TypeOf(of), o.For) {
		keys = append(keys, f.key)
	}
	return keys
}

type field struct {
	reflect.StructField
	key string
}

func fieldsOf(t reflect.Type, word string) (fields []field) {
	for _, f := range reflect.VisibleFields(t) {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		words, limited := f.Tag.Lookup("for")
		if key != "" && key != "-" && (!limited || slices.Contains(strings.Split(words, ","), word)) {
			fields = append(fields, field{f, key})
		}
	}
	return fields
}

type decoder struct {
	Options
	problems []Problem
}

func (d *decoder) fail(at *Value, path, format string, args ...any) {
	d.problems = append(d.problems, At(at, "", path, format, args...))
}

// isKind adds a problem if it returns false.
func (d *decoder) isKind(v *Value, path string, k Kind, want string) bool {
	if v.Kind != k {
		d.fail(v, path, "it is %s, want %s", v.Kind, want)
	}
	return v.Kind == k
}

func (d *decoder) value(v *Value, path string, to reflect.Value, tag reflect.StructTag) {
	if to.Type() == reflect.TypeFor[*Value]() {
		to.Set(reflect.ValueOf(v))
		return
	}
	if text, ok := to.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if v.Kind == Null || d.isKind(v, path, String, "a string") {
			_ = text.UnmarshalText([]byte(v.Text))
		}
		return
	}
	if v.Kind == Null && to.Kind() != reflect.Struct {
		return
	}
	switch to.Kind() {
	case reflect.Struct:
		if d.isKind(v, path, Object, "an object") {
			d.object(v, path, to)
		}
	case reflect.Map:
		d.mapping(v, path, to)
	case reflect.Slice:
		d.list(v, path, to)
	case reflect.String:
		d.text(v, path, to, tag.Get("bool"))
	case reflect.Bool:
		if d.isKind(v, path, Bool, "true or false") {
			to.SetBool(v.Bool)
		}
	case reflect.Int, reflect.Int64:
		d.integer(v, path, to)
	case reflect.Interface:
		to.Set(reflect.ValueOf(v.any()))
	default:
		panic(fmt.Sprintf("strictjson: %s: cannot decode into %s", path, to.Type()))
	}
}

func (d *decoder) object(v *Value, path string, to reflect.Value) {
	fields := fieldsOf(to.Type(), d.For)
	last := map[string]Member{}
	for _, m := range v.Members {
		i := slices.IndexFunc(fields, func(f field) bool {
			return f.key == m.Key.Text || d.FoldCase && strings.EqualFold(f.key, m.Key.Text)
		})
		if i < 0 {
			d.unknown(m.Key, path, fields)
			continue
		}
		d.unique(last, fields[i].key, m, Join(path, m.Key.Text))
	}
	for _, f := range fields {
		m, given := last[f.key]
		if !given || m.Value.Kind == Null {
			continue
		}
		at := Join(path, m.Key.Text)
		d.value(m.Value, at, to.FieldByIndex(f.Index), f.Tag)
		if d.Field != nil {
			d.Field(f.key, at, m.Value)
		}
	}
}

// unique keeps the last member of a key, and reports others.
func (d *decoder) unique(last map[string]Member, key string, m Member, path string) {
	if earlier, twice := last[key]; twice {
		p := At(m.Key, DuplicateKey, path, "the key %q is given twice, also in line %d: only the last counts", m.Key.Text, earlier.Key.Line)
		p.Key = m.Key.Text
		d.problems = append(d.problems, p)
	}
	last[key] = m
}

// maxTypo limits keys to compare with known ones: longer keys are slow to
// compare and no typing errors.
const maxTypo = 64

func (d *decoder) unknown(key *Value, path string, fields []field) {
	p := At(key, UnknownKey, Join(path, key.Text), "")
	p.Key = key.Text
	var known []string
	for _, f := range fields {
		known = append(known, f.key)
	}
	if len(key.Text) < maxTypo {
		p.Nearest = Nearest(key.Text, known)
	}
	if p.Nearest != "" {
		p.Text = fmt.Sprintf("there is no key %q; did you mean %q? The key is ignored", key.Text, p.Nearest)
	} else {
		p.Text = fmt.Sprintf("there is no key %q; it is ignored. Known keys: %s", key.Text, strings.Join(known, ", "))
	}
	d.problems = append(d.problems, p)
}

// Nearest is a case-insensitive errs.Nearest.
func Nearest(word string, known []string) string {
	var lowered []string
	for _, k := range known {
		lowered = append(lowered, strings.ToLower(k))
	}
	if i := slices.Index(lowered, errs.Nearest(strings.ToLower(word), lowered)); i >= 0 {
		return known[i]
	}
	return ""
}

func (d *decoder) mapping(v *Value, path string, to reflect.Value) {
	want := "an object"
	if to.Type().Elem().Kind() == reflect.String {
		want = "an object of strings"
	}
	if !d.isKind(v, path, Object, want) {
		return
	}
	to.Set(reflect.MakeMap(to.Type()))
	last := map[string]Member{}
	for _, m := range v.Members {
		at := fmt.Sprintf("%s[%q]", path, m.Key.Text)
		d.unique(last, m.Key.Text, m, at)
		element := reflect.New(to.Type().Elem()).Elem()
		d.value(m.Value, at, element, "")
		to.SetMapIndex(reflect.ValueOf(m.Key.Text), element)
	}
}

func (d *decoder) list(v *Value, path string, to reflect.Value) {
	want := "a list"
	if to.Type().Elem().Kind() == reflect.String {
		want = "a list of strings"
	}
	if !d.isKind(v, path, List, want) {
		return
	}
	if len(v.Items) > 0 {
		to.Set(reflect.MakeSlice(to.Type(), len(v.Items), len(v.Items)))
	}
	for i, item := range v.Items {
		d.value(item, fmt.Sprintf("%s[%d]", path, i), to.Index(i), "")
	}
}

// text decodes a string; words are the values for true and false, "" if
// booleans are invalid. YAML reads unquoted on and off as booleans.
func (d *decoder) text(v *Value, path string, to reflect.Value, words string) {
	on, off, _ := strings.Cut(words, ",")
	switch {
	case v.Kind == String:
		to.SetString(v.Text)
	case words == "" && v.Kind == Number:
		d.fail(v, path, "it is a number, want a string; put it in quotes")
	case words == "":
		d.fail(v, path, "it is %s, want a string", v.Kind)
	case v.Kind != Bool:
		d.fail(v, path, "it is %s, want %q or %q", v.Kind, on, off)
	case v.Bool:
		to.SetString(on)
	default:
		to.SetString(off)
	}
}

func (d *decoder) integer(v *Value, path string, to reflect.Value) {
	if !d.isKind(v, path, Number, "a whole number") {
		return
	}
	bits := 32
	if to.Kind() == reflect.Int64 {
		bits = 64
	}
	n, err := strconv.ParseInt(v.Text, 10, bits)
	if err != nil {
		d.fail(v, path, "%.40s is not a whole number of %d bits", v.Text, bits)
	}
	to.SetInt(n)
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_]+$`)

// Join adds a key to a path, quoted if it has other characters than letters,
// digits and _.
func Join(path, key string) string {
	switch {
	case !plainKey.MatchString(key):
		return fmt.Sprintf("%s[%q]", path, key)
	case path == "":
		return key
	}
	return path + "." + key
}
