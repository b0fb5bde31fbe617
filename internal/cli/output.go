package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/errs"
)

// Format is how a command writes its result, as a flag.
type Format string

const (
	FormatTable Format = "table" // for people
	FormatJSON  Format = "json"
	FormatYAML  Format = "yaml"
)

func formats() []string { return []string{string(FormatTable), string(FormatJSON), string(FormatYAML)} }

// String is part of pflag.Value.
func (f Format) String() string { return string(f) }

// Set is part of pflag.Value.
func (f *Format) Set(word string) error {
	if !slices.Contains(formats(), word) {
		hint := ""
		if n := errs.Nearest(word, formats()); n != "" {
			hint = fmt.Sprintf("; did you mean %q?", n)
		}
		return fmt.Errorf("the format is one of %s%s", strings.Join(formats(), ", "), hint)
	}
	*f = Format(word)
	return nil
}

// Type is the word for the value in help texts.
func (f *Format) Type() string { return strings.Join(formats(), "|") }

// Table is a result for people: cells under a header.
type Table struct {
	Header []string
	Rows   [][]string
}

// Print writes a result: the table, or the document for programs, which holds
// the same and more. An empty format is a table.
func Print(w io.Writer, f Format, t Table, document any) error {
	switch f {
	case FormatTable, "":
		return t.Write(w)
	case FormatJSON:
		text, err := json.MarshalIndent(document, "", "  ")
		if err != nil {
			return fmt.Errorf("write the result as JSON: %w", err)
		}
		_, err = w.Write(append(text, '\n'))
		return err
	case FormatYAML:
		text, err := yaml.Marshal(document)
		if err != nil {
			return fmt.Errorf("write the result as YAML: %w", err)
		}
		_, err = w.Write(text)
		return err
	}
	return fmt.Errorf("the format %q is unknown; it is one of %s", f, strings.Join(formats(), ", "))
}

// Write writes the table with its columns aligned. Cells may come from other
// programs: what could steer a terminal is written in its escaped form.
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

// Plain escapes what is not a printable character; an empty cell becomes a
// dash, so that columns can be told apart by programs too.
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
