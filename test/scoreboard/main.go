// Command scoreboard runs csi-sanity, and writes its results and those of the
// last run of Kubernetes' storage specs into docs/scoreboard.md (make
// scoreboard).
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/test/kubernetes/external"
	"github.com/cleatproject/cleat/test/sanity/specs"
)

const (
	page        = "docs/scoreboard.md"
	suiteModule = "test/sanity/suite"
	csiTest     = "github.com/kubernetes-csi/csi-test/v5"
)

func main() {
	flag.Parse()
	if err := update(); err != nil {
		fmt.Fprintln(os.Stderr, "scoreboard:", err)
		os.Exit(1)
	}
}

// update writes the page also when specs failed: it says so.
func update() error {
	version, err := output(suiteModule, "list", "-m", "-f", "{{.Version}}", csiTest)
	if err != nil {
		return err
	}
	s, failed := runSanity()
	s.version, s.date = version, time.Now().UTC().Format(time.DateOnly)
	record, err := external.ReadRecord(filepath.Join("test/kubernetes", external.RecordFile))
	if err != nil {
		return err
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	changed, err := replace(string(text), s, record)
	if err != nil {
		return err
	}
	return errors.Join(failed, os.WriteFile(page, []byte(changed), 0o644))
}

func output(dir string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// sanity has the results of csi-sanity by deployment of the driver.
type sanity struct {
	version, date string
	deployments   map[string][]specs.Spec
}

// runSanity returns what ran, and an error if a spec failed.
func runSanity() (sanity, error) {
	s := sanity{deployments: map[string][]specs.Spec{}}
	dir, err := os.MkdirTemp("", "scoreboard-")
	if err != nil {
		return s, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("go", "test", "-count=1", "./test/sanity")
	cmd.Env = append(os.Environ(), "CLEAT_SANITY_REPORTS="+dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	failed := cmd.Run()
	reports, err := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, path := range reports {
		var data []byte
		if data, err = os.ReadFile(path); err != nil {
			break
		}
		if s.deployments[strings.TrimSuffix(filepath.Base(path), ".json")], err = specs.Parse(data); err != nil {
			break
		}
	}
	return s, errors.Join(failed, err)
}

const (
	begin = "<!-- made by make scoreboard -->"
	end   = "<!-- end -->"
)

// replace returns the page with other results.
func replace(text string, s sanity, record *external.Record) (string, error) {
	before, rest, found := strings.Cut(text, begin)
	_, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		return "", fmt.Errorf("%s has no part between %q and %q", page, begin, end)
	}
	return before + begin + "\n" + table(s, record) + "\n" + notRun(s) + end + after, nil
}

func table(s sanity, record *external.Record) string {
	var b strings.Builder
	b.WriteString("| suite | version | against | specs | passed | failed | not run | date |\n|---|---|---|---|---|---|---|---|\n")
	for _, d := range slices.Sorted(maps.Keys(s.deployments)) {
		all := s.deployments[d]
		passed, left := count(all, specs.Passed), count(all, specs.Skipped, specs.Pending)
		fmt.Fprintf(&b, "| csi-sanity | %s | deployment %s | %d | %d | %d | %d | %s |\n", s.version, d, len(all), passed, len(all)-passed-left, left, s.date)
	}
	kubernetes := "?"
	for _, v := range record.Versions {
		if v.Program == "Kubernetes" {
			kubernetes = v.Version
		}
	}
	for _, d := range record.Drivers {
		passed, left := d.Count(external.Passed), d.Count(external.Skipped, external.LeftOut)
		fmt.Fprintf(&b, "| Kubernetes External Storage | %s | driver %s (release %s) | %d | %d | %d | %d | %s |\n",
			kubernetes, d.Driver, d.Release, len(d.Results), passed, len(d.Results)-passed-left, left, d.Date)
	}
	return b.String()
}

func count(all []specs.Spec, states ...string) (n int) {
	for _, s := range all {
		if slices.Contains(states, s.State) {
			n++
		}
	}
	return n
}

// notRun lists the reasons that csi-sanity gives. Those of Kubernetes' specs are
// in docs/e2e.md.
func notRun(s sanity) string {
	type key struct{ deployment, reason string }
	counts := map[key]int{}
	for d, all := range s.deployments {
		for _, one := range all {
			switch one.State {
			case specs.Skipped:
				counts[key{d, cmp.Or(one.Failure.Message, "left out by the test (notOfSPDK in test/sanity)")}]++
			case specs.Pending:
				counts[key{d, "marked as pending by the suite"}]++
			}
		}
	}
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.deployment, b.deployment), cmp.Compare(a.reason, b.reason))
	})
	var b strings.Builder
	b.WriteString("| deployment | specs not run | csi-sanity's reason |\n|---|---|---|\n")
	for _, k := range keys {
		fmt.Fprintf(&b, "| %s | %d | %s |\n", k.deployment, counts[k], strings.ReplaceAll(k.reason, "|", `\|`))
	}
	return b.String()
}
