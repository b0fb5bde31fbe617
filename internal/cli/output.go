package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/errs"
)

// Format is the output format of a command, a pflag.Value.
type Format string

const (
	FormatTable Format = "table"
	FormatJSON  Format = "json"
	FormatYAML  Format = "yaml"
)

const formats = "table, json, yaml"

// String implements pflag.Value.
func (f Format) String() string { return string(f) }

// Set implements pflag.Value.
func (f *Format) Set(word string) error {
	known := strings.Split(formats, ", ")
	if !slices.Contains(known, word) {
		hint := ""
		if n := errs.Nearest(word, known); n != "" {
			hint = fmt.Sprintf("; did you mean %q?", n)
		}
		return fmt.Errorf("unknown format, use one of %s%s", formats, hint)
	}
	*f = Format(word)
	return nil
}

// Type implements pflag.Value.
func (f *Format) Type() string { return strings.ReplaceAll(formats, ", ", "|") }

// View is a result for users: a Table, a Text or several Views.
type View interface{ Write(w io.Writer) error }

// Print writes a result: the view, or for programs the document, with at least
// the same data. The zero format is the table. A nil slice is written as [],
// not null.
func Print(w io.Writer, f Format, view View, document any) error {
	if list := reflect.ValueOf(document); list.Kind() == reflect.Slice && list.IsNil() {
		document = reflect.MakeSlice(list.Type(), 0, 0).Interface()
	}
	var text []byte
	var err error
	switch f {
	case FormatTable, "":
		return view.Write(w)
	case FormatJSON:
		text, err = json.MarshalIndent(document, "", "  ")
		text = append(text, '\n')
	case FormatYAML:
		text, err = yaml.Marshal(document)
	default:
		return fmt.Errorf("unknown format %q, use one of %s", f, formats)
	}
	if err != nil {
		return fmt.Errorf("write the result as %s: %w", strings.ToUpper(string(f)), err)
	}
	_, err = w.Write(text)
	return err
}

// Table is a table with a header.
type Table struct {
	Header []string
	Rows   [][]string
}

// Add adds a row; Cell formats its values.
func (t *Table) Add(values ...any) {
	row := make([]string, len(values))
	for i, v := range values {
		row[i] = Cell(v)
	}
	t.Rows = append(t.Rows, row)
}

// AddKnown adds a row, unless the value is empty.
func (t *Table) AddKnown(label string, value any) {
	if Cell(value) != "" {
		t.Add(label, value)
	}
}

// Write writes the table with aligned columns.
func (t Table) Write(w io.Writer) error {
	aligned := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	for _, row := range append([][]string{t.Header}, t.Rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = Plain(cell)
		}
		if _, err := fmt.Fprintln(aligned, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return aligned.Flush()
}

// Text has no final newline; an empty Text writes nothing.
type Text string

func Textf(format string, args ...any) Text { return Text(fmt.Sprintf(format, args...)) }

// Write writes the lines.
func (t Text) Write(w io.Writer) error {
	if t == "" {
		return nil
	}
	lines := strings.Split(string(t), "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = Plain(line)
		}
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

// Views are written one after the other.
type Views []View

// Write writes all of them.
func (v Views) Write(w io.Writer) error {
	var all []error
	for _, one := range v {
		all = append(all, one.Write(w))
	}
	return errors.Join(all...)
}

// Paragraphs are written with an empty line between them.
type Paragraphs []View

// Write writes all of them.
func (p Paragraphs) Write(w io.Writer) error {
	var all []error
	for i, one := range p {
		if i > 0 {
			_, err := fmt.Fprintln(w)
			all = append(all, err)
		}
		all = append(all, one.Write(w))
	}
	return errors.Join(all...)
}

// Cell formats a value for a table; a missing value is empty.
func Cell(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case bool:
		if value {
			return "yes"
		}
		return "no"
	case time.Time:
		if value.IsZero() {
			return ""
		}
		return value.Local().Format(time.DateTime)
	case *int:
		if value == nil {
			return ""
		}
		return strconv.Itoa(*value)
	case []string:
		return strings.Join(value, ", ")
	case map[string]string:
		var pairs []string
		for _, key := range slices.Sorted(maps.Keys(value)) {
			pairs = append(pairs, key+"="+value[key])
		}
		return strings.Join(pairs, " ")
	}
	return fmt.Sprint(value)
}

// Plain escapes unprintable characters, so that text of other programs cannot
// control the terminal. An empty cell becomes a dash, so that columns can be
// split.
func Plain(cell string) string {
	if cell == "" {
		return "-"
	}
	if !strings.ContainsFunc(cell, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return cell
	}
	quoted := strconv.Quote(cell)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
