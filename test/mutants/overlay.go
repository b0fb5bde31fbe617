package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// variable has the number of the mutant that is in effect, also in the programs that
// tests start.
const variable = "MUTANT"

// support is added to each package.
const support = `package %s

import (
	"os"
	"strconv"
)

var mutantNow, _ = strconv.Atoi(os.Getenv("` + variable + `"))

func mutantNot[B ~bool](n int, b B) B { return b != B(n == mutantNow) }

func mutantOf(n int, is, mutant func() bool) bool {
	if n == mutantNow {
		return mutant()
	}
	return is()
}

func mutantErr(n int, err error) error {
	if n == mutantNow {
		return nil
	}
	return err
}

func mutantWith(n int) bool { return n != mutantNow }
`

// overlay writes files that have all mutants, and a list of them for the go command's
// -overlay, whose path it returns.
func overlay(root, dir string, all []mutant) (path string, err error) {
	byFile := map[string][]mutant{}
	for _, m := range all {
		byFile[m.file] = append(byFile[m.file], m)
	}
	replace := map[string]string{}
	write := func(source, text string) error {
		to := filepath.Join(dir, fmt.Sprintf("file%d.go", len(replace)))
		replace[source] = to
		return os.WriteFile(to, []byte(text), 0o600)
	}
	for name, in := range byFile {
		source := filepath.Join(root, name)
		text, err := os.ReadFile(source)
		if err != nil {
			return "", err
		}
		if err := write(source, rendered(string(text), in)); err != nil {
			return "", err
		}
		extra := filepath.Join(filepath.Dir(source), "mutants_support.go")
		if replace[extra] != "" {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.PackageClauseOnly)
		if err != nil {
			return "", err
		}
		if err := write(extra, fmt.Sprintf(support, file.Name.Name)); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, list, 0o600)
}

// rendered returns a file with mutants.
func rendered(source string, all []mutant) string {
	all = slices.SortedFunc(slices.Values(all), func(a, b mutant) int { // outer ones first
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(b.end, a.end), cmp.Compare(a.kind, b.kind))
	})
	return renderedPart(source, 0, len(source), all)
}

// renderedPart returns a part of the source with the mutants in it.
func renderedPart(source string, begin, end int, all []mutant) string {
	var text strings.Builder
	at := begin
	for i, m := range all {
		if m.begin < at || m.end > end {
			continue
		}
		text.WriteString(source[at:m.begin])
		within := func(begin, end int) string { return renderedPart(source, begin, end, all[i+1:]) }
		switch m.kind {
		case negated:
			fmt.Fprintf(&text, "mutantNot(%d, %s)", m.number, within(m.begin, m.end))
		case operator:
			x, y := within(m.begin, m.opBegin), within(m.opEnd, m.end)
			fmt.Fprintf(&text, "mutantOf(%d, func() bool { return (%s) %s (%s) }, func() bool { return (%[2]s) %[5]s (%[4]s) })", m.number, x, m.op, y, opposite[m.op])
		case noError:
			fmt.Fprintf(&text, "mutantErr(%d, %s)", m.number, within(m.begin, m.end))
		case omitted:
			fmt.Fprintf(&text, "if mutantWith(%d) { %s }", m.number, within(m.begin, m.end))
		}
		at = m.end
	}
	text.WriteString(source[at:end])
	return text.String()
}

var (
	position = regexp.MustCompile(`(?m)^([^:\s]+\.go):(\d+):`)
	ofMutant = regexp.MustCompile(`mutant(?:Not|Of|Err|With)\((\d+)`)
)

// uncompiled returns the mutants on the lines of the errors of a build in root, or, on a
// line without one, those of the nearest line before.
func uncompiled(root, output string) (numbers []int, err error) {
	for _, at := range position.FindAllStringSubmatch(output, -1) {
		if !filepath.IsAbs(at[1]) {
			at[1] = filepath.Join(root, at[1])
		}
		source, err := os.ReadFile(at[1])
		if err != nil {
			return nil, err
		}
		line, err := strconv.Atoi(at[2])
		if err != nil {
			return nil, err
		}
		lines := strings.Split(string(source), "\n")
		for n := min(line, len(lines)) - 1; n >= 0; n-- {
			found := ofMutant.FindAllStringSubmatch(lines[n], -1)
			for _, f := range found {
				number, err := strconv.Atoi(f[1])
				if err != nil {
					return nil, err
				}
				numbers = append(numbers, number)
			}
			if len(found) > 0 {
				break
			}
		}
	}
	return numbers, nil
}
