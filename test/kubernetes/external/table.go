package external

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// row has the counts of a suite.
type row struct {
	passed, skipped, failed int
	seconds                 float64
}

// rows returns the counts by suite.
func rows(results []Result) map[string]row {
	all := make(map[string]row)
	for _, r := range results {
		suite, _ := r.Suite()
		one := all[suite]
		switch {
		case r.Failed():
			one.failed++
		case r.Inapplicable():
			one.skipped++
		default:
			one.passed++
		}
		one.seconds += r.Seconds
		all[suite] = one
	}
	return all
}

// Table returns the counts and times of the suites, slowest first, for the log.
func Table(results []Result) string {
	all := rows(results)
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(all[b].seconds, all[a].seconds), cmp.Compare(a, b))
	})
	var b strings.Builder
	fmt.Fprintf(&b, "%-32s %7s %7s %8s %9s\n", "suite", "passed", "failed", "not for", "seconds")
	var total row
	for _, name := range names {
		one := all[name]
		fmt.Fprintf(&b, "%-32s %7d %7d %8d %9.0f\n", name, one.passed, one.failed, one.skipped, one.seconds)
		total = row{total.passed + one.passed, total.skipped + one.skipped, total.failed + one.failed, total.seconds + one.seconds}
	}
	fmt.Fprintf(&b, "%-32s %7d %7d %8d %9.0f\n", "all", total.passed, total.failed, total.skipped, total.seconds)
	return b.String()
}

// Markers of the generated part of the page.
const (
	beginMarker = "<!-- made from test/kubernetes/external/last-run.json -->"
	endMarker   = "<!-- end -->"
)

// Page replaces the generated part of the page.
func Page(page string, r *Record) (string, error) {
	before, rest, found := strings.Cut(page, beginMarker)
	_, after, end := strings.Cut(rest, endMarker)
	if !found || !end {
		return "", fmt.Errorf("the page has no part between %q and %q", beginMarker, endMarker)
	}
	return before + beginMarker + "\n" + r.markdown() + endMarker + after, nil
}

func (r *Record) markdown() string {
	var b strings.Builder
	var versions []string
	for _, v := range r.Versions {
		versions = append(versions, v.Program+" "+v.Version)
	}
	fmt.Fprintf(&b, "%s. Machine: %s.\n\n", strings.Join(versions, ", "), r.Machine)
	b.WriteString("| driver | date | specs | passed | failed | do not apply | duration |\n|---|---|---|---|---|---|---|\n")
	for _, d := range r.Drivers {
		passed, skipped := d.Count(Passed), d.Count(Skipped, LeftOut)
		fmt.Fprintf(&b, "| `%s` (%s) | %s | %d | %d | %d | %d | %d min, %d processes |\n", d.Driver, d.Release, d.Date,
			len(d.Results), passed, len(d.Results)-passed-skipped, skipped, (d.Seconds+59)/60, d.Processes)
	}
	for _, release := range Releases() {
		if !slices.ContainsFunc(r.Drivers, func(d DriverRecord) bool { return d.Release == release }) {
			fmt.Fprintf(&b, "\nNo full run of release %s is recorded yet.\n", release)
		}
	}
	for _, d := range r.Drivers {
		for _, result := range d.Results {
			if result.Attempt > 1 && result.State == Passed {
				fmt.Fprintf(&b, "\nPassed in attempt %d only: %s: %s\n", result.Attempt, d.Driver, result.Name)
			}
		}
	}
	b.WriteString("\nPassed of each suite:\n\n" + r.suites())
	b.WriteString("\nSpecs that do not apply:\n\n" + r.notApplicable())
	return b.String()
}

// suites returns a table of suites by drivers.
func (r *Record) suites() string {
	var b strings.Builder
	b.WriteString("| suite |")
	names := map[string]bool{}
	var of []map[string]row
	for _, d := range r.Drivers {
		fmt.Fprintf(&b, " %s |", d.Release)
		of = append(of, rows(d.Results))
		for name := range of[len(of)-1] {
			names[name] = true
		}
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(r.Drivers)) + "\n")
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !slices.ContainsFunc(of, func(suites map[string]row) bool { return suites[name].passed+suites[name].failed > 0 }) {
			continue // listed as not applicable
		}
		fmt.Fprintf(&b, "| %s |", name)
		for _, suites := range of {
			one, ok := suites[name]
			switch {
			case !ok:
				b.WriteString(" |")
			case one.failed > 0:
				fmt.Fprintf(&b, " %d, %d failed |", one.passed, one.failed)
			default:
				fmt.Fprintf(&b, " %d |", one.passed)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// notApplicable returns a table of reasons by drivers, with the suites
// concerned.
func (r *Record) notApplicable() string {
	counts := map[string][]int{}
	suites := map[string]map[string]bool{}
	for i, d := range r.Drivers {
		for _, result := range d.Results {
			if !result.Inapplicable() {
				continue
			}
			reason, ok := ReasonOf(result)
			if !ok {
				reason = "unexplained: " + firstLine(result.Message)
			}
			if counts[reason] == nil {
				counts[reason], suites[reason] = make([]int, len(r.Drivers)), map[string]bool{}
			}
			counts[reason][i]++
			suite, _ := result.Suite()
			suites[reason][suite] = true
		}
	}
	var b strings.Builder
	b.WriteString("| why |")
	for _, d := range r.Drivers {
		fmt.Fprintf(&b, " %s |", d.Release)
	}
	b.WriteString(" suites |\n|---|" + strings.Repeat("---|", len(r.Drivers)+1) + "\n")
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "| %s |", reason)
		for _, n := range counts[reason] {
			fmt.Fprintf(&b, " %d |", n)
		}
		fmt.Fprintf(&b, " %s |\n", strings.Join(slices.Sorted(maps.Keys(suites[reason])), ", "))
	}
	return b.String()
}
