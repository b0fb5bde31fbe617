package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// maxFlakes limits the list: a longer one hides faults.
const maxFlakes = 10

// entry is a row of test/flakes.md: | `PACKAGE TEST` | symptom | cause | date |.
var entry = regexp.MustCompile("^\\| `([^ `]+) (Test[A-Za-z0-9_]+)` \\| ([^|]+) \\| ([^|]+) \\| (\\d{4}-\\d{2}-\\d{2}) \\|$")

// guarantee matches the tests whose failure always counts, by package or name:
// what they find once in a thousand runs is data loss or a leaking fence.
var guarantee = regexp.MustCompile(`(^|/)(test/crash|test/fence|test/vm/power|test/vm/fence|test/vm/sriov/gate|sriov/gate|fence|internal/ledger)(/| )` +
	`| (Fuzz|Test\w*(Crash|Kill|Power|Lost|Fence|Gate|Sabotage|Property|Model|Checksum|Race|Leak))`)

// symptom matches output of failures that always count, whichever the test.
var symptom = regexp.MustCompile(`DATA RACE|race detected|unexpected goroutines|\[rapid\]|failing input|panic: |fatal error: |test timed out` +
	`|does not hold what was written|checksum|is left|without an owner`)

// readFlakes returns the listed tests, each as "package test" below the module.
func readFlakes(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var tests []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|--") || strings.HasPrefix(line, "| test |") {
			continue
		}
		m := entry.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("%s: row %q: write | `PACKAGE TEST` | symptom | suspected cause | YYYY-MM-DD |", path, line)
		}
		test := m[1] + " " + m[2]
		if guarantee.MatchString(test) {
			return nil, fmt.Errorf("%s: %s tests a guarantee and is never retried: fix it", path, test)
		}
		tests = append(tests, test)
	}
	if len(tests) > maxFlakes {
		return nil, fmt.Errorf("%s lists %d tests, at most %d are allowed: fix some", path, len(tests), maxFlakes)
	}
	return tests, nil
}

// retry runs a failed test twice more, alone, if it is listed and its failure
// can be a matter of timing. The failure is marked flaky when both runs pass.
func (f *failure) retry(flakes []string, out io.Writer, again func() (passed bool, err error)) error {
	if !f.isRetryable(flakes) {
		return nil
	}
	for range 2 {
		passed, err := again()
		if err != nil || !passed {
			return err
		}
	}
	f.flaky = true
	fmt.Fprintf(out, "FLAKY %s: it passed twice alone\n", f)
	return nil
}

func (f *failure) isRetryable(flakes []string) bool {
	if f.test == "" || guarantee.MatchString(f.String()) || symptom.MatchString(f.output) {
		return false
	}
	for _, listed := range flakes {
		if f.String() == listed || strings.HasSuffix(f.String(), "/"+listed) {
			return true
		}
	}
	return false
}

// alone returns the arguments that run only the failed test, with the flags of
// the whole run. Flags are written -name=value, so an argument without a dash
// is a package.
func (f *failure) alone(args []string) (one []string) {
	for _, a := range args {
		if strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "-run=") {
			one = append(one, a)
		}
	}
	return append(one, "-run=^"+f.test+"$", f.pkg)
}
