package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// event is one line of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

// tally is the result of one run of go test.
type tally struct {
	passed, skipped int
	badSkips        []string
	leftOut         []outcome
	failures        []*failure
	tests, packages []timing

	outputs map[testName][]string
}

// timing is the duration of a package or of a top-level test.
type timing struct {
	name    string
	seconds float64
}

type testName struct{ pkg, test string }

// failure is a failed test function, or (test is empty) a package that failed
// outside its tests.
type failure struct {
	testName
	output  string
	machine string // when it failed first
	flaky   bool   // passed when retried
}

func (f *failure) String() string { return strings.TrimSpace(f.pkg + " " + f.test) }

func read(in io.Reader, out io.Writer) (*tally, error) {
	t := &tally{outputs: map[testName][]string{}}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(out, lines.Text()) // a message of the go command
			continue
		}
		t.handle(e, out)
	}
	return t, lines.Err()
}

func (t *tally) handle(e event, out io.Writer) {
	name := testName{e.Package, e.Test}
	switch e.Action {
	case "output":
		if strings.Contains(e.Output, "REPORT: ") { // figures for the log
			fmt.Fprint(out, e.Output)
		}
		t.outputs[name] = append(t.outputs[name], e.Output)
	case "build-output":
		fmt.Fprint(out, e.Output)
	case "pass", "fail", "skip":
		output := strings.Join(t.outputs[name], "")
		delete(t.outputs, name)
		if e.Test == "" {
			t.finishPackage(e, output, out)
		} else {
			t.finishTest(e, output, out)
		}
	}
}

func (t *tally) finishTest(e event, output string, out io.Writer) {
	function, _, isSubtest := strings.Cut(e.Test, "/")
	if !isSubtest {
		t.tests = append(t.tests, timing{e.Package + " " + e.Test, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		t.passed++
	case "fail":
		fmt.Fprintf(out, "--- FAIL %s %s (%.1fs)\n%s", e.Package, e.Test, e.Elapsed, output)
		f := t.failureOf(testName{e.Package, function})
		f.output += output
	case "skip":
		t.skipped++
		_, reason, ok := strings.Cut(output, "left out: feature ")
		if !ok {
			t.badSkips = append(t.badSkips, e.Package+" "+e.Test)
			reason = said(output)
		}
		reason, _, _ = strings.Cut(strings.TrimSpace(reason), "\n")
		t.leftOut = append(t.leftOut, outcome{Test: e.Package + " " + e.Test, Output: reason})
		fmt.Fprintf(out, "skipped %s %s\n%s", e.Package, e.Test, output)
	}
}

func (t *tally) finishPackage(e event, output string, out io.Writer) {
	t.packages = append(t.packages, timing{e.Package, e.Elapsed})
	if e.Action != "fail" {
		return
	}
	fmt.Fprintf(out, "FAIL %s\n%s", e.Package, output)
	inTests := slices.DeleteFunc(slices.Clone(t.failures), func(f *failure) bool { return f.pkg != e.Package })
	if len(inTests) == 0 {
		inTests = []*failure{t.failureOf(testName{e.Package, ""})}
	}
	for _, f := range inTests { // a race or a leak is printed by the package as a whole
		f.output += output
	}
}

// failureOf returns the one failure of a test function and its subtests.
func (t *tally) failureOf(name testName) *failure {
	for _, f := range t.failures {
		if f.testName == name {
			return f
		}
	}
	f := &failure{testName: name, machine: machine()}
	t.failures = append(t.failures, f)
	return f
}

// slowest is how many packages and tests of a part are printed.
const slowest = 50

func (t *tally) printSlowest(out io.Writer) {
	for _, list := range []struct {
		what    string
		timings []timing
	}{{"packages", t.packages}, {"tests", t.tests}} {
		slices.SortStableFunc(list.timings, func(a, b timing) int { return cmp.Compare(b.seconds, a.seconds) })
		fmt.Fprintf(out, "slowest %s:\n", list.what)
		for _, l := range list.timings[:min(slowest, len(list.timings))] {
			if l.seconds < 0.1 {
				break
			}
			fmt.Fprintf(out, "%8.1fs  %s\n", l.seconds, l.name)
		}
	}
}

func (t *tally) verdict(ci bool) error {
	failed := slices.DeleteFunc(slices.Clone(t.failures), func(f *failure) bool { return f.flaky })
	switch {
	case len(failed) > 0:
		return fmt.Errorf("%d failed: %v", len(failed), failed)
	case t.passed == 0:
		return errors.New("no test ran")
	case ci && len(t.badSkips) > 0:
		return fmt.Errorf("skipped without an entry in test/features, which is a failure in CI: %s", strings.Join(t.badSkips, ", "))
	}
	return nil
}

// addCPU adds the processor time of a command and of its descendants that were
// waited for.
func (r *row) addCPU(cmd *exec.Cmd) {
	if s := cmd.ProcessState; s != nil {
		r.CPU += s.UserTime() + s.SystemTime()
	}
}

func (r *row) count(t *tally) {
	r.Passed, r.Skipped, r.LeftOut = t.passed, t.skipped, t.leftOut
	for _, f := range t.failures {
		if f.flaky {
			r.Flaky = append(r.Flaky, outcome{f.String(), f.output, f.machine})
		} else {
			r.Failed++
			r.Failures = append(r.Failures, outcome{f.String(), f.output, f.machine})
		}
	}
}
