package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// row is the result of a part, for the closing table.
type row struct {
	Part                    string
	Start, End              time.Time
	CPU                     time.Duration // processor time, user and system
	OK                      bool
	Passed, Failed, Skipped int
	Failures, Flaky         []outcome // flaky: failed, and then passed twice
	LeftOut                 []outcome // skipped; the output is the reason
}

// outcome is a failed test or command, with its first output and the state of the
// machine.
type outcome struct{ Test, Output, Machine string }

func appendRow(path string, r row) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n')) // one write: other parts append too
	return errors.Join(err, f.Close())
}

func readRows(path string) ([]row, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var rows []row
	for d := json.NewDecoder(f); ; {
		var r row
		switch err := d.Decode(&r); {
		case errors.Is(err, io.EOF):
			return rows, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		rows = append(rows, r)
	}
}

// printClosing prints the closing table and returns an error when a part
// failed.
func printClosing(out io.Writer, path string) error {
	rows, err := readRows(path)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return fmt.Errorf("%s has no rows: no part ran", path)
	}
	first, last := rows[0].Start, rows[0].End
	for _, r := range rows {
		if r.Start.Before(first) {
			first = r.Start
		}
		if r.End.After(last) {
			last = r.End
		}
	}
	var failed []string
	var sum row
	fmt.Fprintf(out, "%-20s %8s %8s %8s %7s %7s %7s %-6s  %s\n", "part", "from", "seconds", "cpu", "passed", "failed", "skipped", "", "beside")
	for _, r := range rows {
		status := "ok"
		if !r.OK {
			status = "FAILED"
			failed = append(failed, r.Part)
		}
		fmt.Fprintf(out, "%-20s %8.0f %8.0f %8.0f %7d %7d %7d %-6s  %s\n", r.Part, r.Start.Sub(first).Seconds(), r.End.Sub(r.Start).Seconds(),
			r.CPU.Seconds(), r.Passed, r.Failed, r.Skipped, status, strings.Join(beside(r, rows), ", "))
		sum.Passed, sum.Failed, sum.Skipped, sum.CPU = sum.Passed+r.Passed, sum.Failed+r.Failed, sum.Skipped+r.Skipped, sum.CPU+r.CPU
	}
	fmt.Fprintf(out, "%-20s %8.0f %8.0f %8.0f\n", "all", 0.0, last.Sub(first).Seconds(), sum.CPU.Seconds())
	for _, r := range rows {
		for _, f := range r.Flaky {
			fmt.Fprintf(out, "FLAKY %s: %s failed, then passed twice alone; its first output was\n%s", r.Part, f.Test, f.Output)
		}
	}
	for _, r := range rows {
		for _, f := range r.Failures { // often only the end of CI's output is at hand
			fmt.Fprintf(out, "FAILED %s: %s\n%s", r.Part, f.Test, excerpt(f.Output))
		}
	}
	printLeftOut(out, rows)
	for _, r := range rows { // at times only the last ten lines
		for _, f := range r.Failures {
			fmt.Fprintf(out, "FAILED %s: %s: %s\n    meanwhile: %s\n", r.Part, strings.TrimPrefix(f.Test, modulePath), said(f.Output), f.Machine)
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", sum.Passed, sum.Failed, sum.Skipped)
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// excerpt returns the first and the last 30 lines of an output, at most 400
// bytes of each.
func excerpt(output string) string {
	const half = 30
	lines := strings.Split(strings.TrimSuffix(output, "\n"), "\n")
	if left := len(lines) - 2*half; left > 0 {
		lines = slices.Concat(lines[:half], []string{fmt.Sprintf("... %d lines ...", left)}, lines[half+left:])
	}
	for i, l := range lines {
		if len(l) > 400 {
			lines[i] = l[:400] + "..."
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

var position = regexp.MustCompile(`^\s*\w+_test\.go:\d+: \S`)

// said returns the first line that a test itself has printed, without logs, or
// the last line of anything else.
func said(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	line := lines[len(lines)-1]
	if i := slices.IndexFunc(lines, position.MatchString); i >= 0 {
		line = lines[i]
	}
	return strings.TrimSpace(excerpt(strings.TrimSpace(line)))
}

const modulePath = "github.com/cleatproject/cleat/"

// printLeftOut prints a table of the skipped tests by reason.
func printLeftOut(out io.Writer, rows []row) {
	tests := map[string][]string{}
	for _, r := range rows {
		for _, l := range r.LeftOut {
			tests[l.Output] = append(tests[l.Output], strings.TrimPrefix(l.Test, modulePath))
		}
	}
	if len(tests) > 0 {
		fmt.Fprintf(out, "%-25s %5s  %s\n", "left out", "tests", "why")
	}
	for _, reason := range slices.Sorted(maps.Keys(tests)) {
		what, why, _ := strings.Cut(reason, ": ")
		all := tests[reason]
		fmt.Fprintf(out, "%-25s %5d  %s (%s)\n", what, len(all), why, strings.Join(all, ", "))
	}
}

// beside returns the parts that overlapped with a part for a second or more.
func beside(r row, all []row) (names []string) {
	for _, o := range all {
		from, to := o.Start, o.End
		if r.Start.After(from) {
			from = r.Start
		}
		if r.End.Before(to) {
			to = r.End
		}
		if o.Part != r.Part && to.Sub(from) >= time.Second {
			names = append(names, o.Part)
		}
	}
	return names
}
