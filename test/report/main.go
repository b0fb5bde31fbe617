// Command report reads the output of go test -json, shows what failed, and
// counts: passed, failed, left out. A skip fails in CI unless it comes from
// the list of kernel features (test/features), which names itself in the
// message.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	part := flag.String("part", "tests", "name of this part")
	table := flag.String("append", "", "file to append this part's row to")
	show := flag.String("table", "", "print the table in this file and exit")
	flag.Parse()
	if err := run(*part, *table, *show); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(part, table, show string) error {
	if show != "" {
		return printTable(show)
	}
	tally, err := read(os.Stdin, os.Stdout)
	if err != nil {
		return err
	}
	tally.print(os.Stdout)
	if table != "" {
		if err := appendRow(table, row{part, *tally}); err != nil {
			return err
		}
	}
	return tally.verdict(os.Getenv("CI") != "")
}

// event is one line of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

// Tally is what one run of go test came to.
type Tally struct {
	Passed, Failed, LeftOut int
	BadSkips                []string
	Seconds                 float64
	packages                []timing
}

type timing struct {
	name    string
	seconds float64
}

type testName struct{ pkg, test string }

func read(in io.Reader, out io.Writer) (*Tally, error) {
	t := &Tally{}
	outputs := map[testName][]string{}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(out, lines.Text()) // the toolchain's own words
			continue
		}
		t.take(e, outputs, out)
	}
	return t, lines.Err()
}

func (t *Tally) take(e event, outputs map[testName][]string, out io.Writer) {
	name := testName{e.Package, e.Test}
	switch e.Action {
	case "output":
		if strings.Contains(e.Output, "REPORT: ") { // figures that a person wants to see
			fmt.Fprint(out, e.Output)
		}
		outputs[name] = append(outputs[name], e.Output)
	case "build-output":
		fmt.Fprint(out, e.Output)
	case "pass", "fail", "skip":
		t.finish(e, outputs[name], out)
		delete(outputs, name)
	}
}

func (t *Tally) finish(e event, output []string, out io.Writer) {
	if e.Test == "" { // the package as a whole
		t.packages = append(t.packages, timing{e.Package, e.Elapsed})
		t.Seconds += e.Elapsed
		if e.Action == "fail" {
			t.Failed++
			fmt.Fprintf(out, "FAIL %s\n%s", e.Package, strings.Join(output, ""))
		}
		return
	}
	switch e.Action {
	case "pass":
		t.Passed++
	case "fail":
		t.Failed++
		fmt.Fprintf(out, "--- FAIL %s %s (%.1fs)\n%s", e.Package, e.Test, e.Elapsed, strings.Join(output, ""))
	case "skip":
		t.LeftOut++
		text := strings.Join(output, "")
		if !strings.Contains(text, "left out: kernel feature") {
			t.BadSkips = append(t.BadSkips, e.Package+" "+e.Test)
		}
		fmt.Fprintf(out, "left out %s %s\n%s", e.Package, e.Test, text)
	}
}

func (t *Tally) print(out io.Writer) {
	slices.SortFunc(t.packages, func(a, b timing) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, p := range t.packages[:min(8, len(t.packages))] {
		fmt.Fprintf(out, "%8.1fs  %s\n", p.seconds, p.name)
	}
}

func (t *Tally) verdict(ci bool) error {
	switch {
	case t.Failed > 0:
		return fmt.Errorf("%d failed", t.Failed)
	case t.Passed == 0:
		return errors.New("no test ran")
	case ci && len(t.BadSkips) > 0:
		return fmt.Errorf("skipped without an entry in test/features, which is a failure in CI: %s", strings.Join(t.BadSkips, ", "))
	}
	return nil
}

type row struct {
	Part string
	Tally
}

func appendRow(path string, r row) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(f).Encode(r), f.Close())
}

func printTable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Printf("%-10s %8s %8s %8s %10s\n", "part", "passed", "failed", "left out", "seconds")
	var sum Tally
	for d := json.NewDecoder(f); ; {
		var r row
		if err := d.Decode(&r); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		fmt.Printf("%-10s %8d %8d %8d %10.1f\n", r.Part, r.Passed, r.Failed, r.LeftOut, r.Seconds)
		sum.Passed += r.Passed
		sum.Failed += r.Failed
		sum.LeftOut += r.LeftOut
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", sum.Passed, sum.Failed, sum.LeftOut)
	return nil
}
