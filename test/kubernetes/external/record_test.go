package external

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestRecordRoundTrip(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sub", "run.json")
	want := &Record{Versions: []Version{{"Kubernetes", "v1"}}, Machine: "2 cores"}
	want.Put(DriverRecord{Release: "x", Driver: "a.b", Date: "2026-01-02", Results: someResults()[:1]})
	want.Put(DriverRecord{Release: "y", Driver: "c.d", Seconds: 5, Results: someResults()})
	want.Put(DriverRecord{Release: "x", Driver: "a.b", Date: "2026-01-03", Results: someResults()})
	testkit.Must(t, want.Write(file))
	got := testkit.Value(ReadRecord(file))(t)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(got.Drivers) != 2 || got.Drivers[0].Count(Passed, Skipped) != 2 {
		t.Errorf("got %d drivers", len(got.Drivers))
	}
}

func TestPageShowsRecord(t *testing.T) {
	r := &Record{Machine: "2 cores", Versions: []Version{{"Kubernetes", "v1.2.3"}}}
	r.Put(DriverRecord{Release: "x", Driver: "a.b", Date: "2026-01-02", Seconds: 61, Processes: 4, Results: someResults()})
	got, err := Page("before\n"+beginMarker+"\nold\n"+endMarker+"\nafter\n", r)
	testkit.Must(t, err)
	for _, want := range []string{
		"before\n", "\nafter\n", "Kubernetes v1.2.3. Machine: 2 cores.", "| `a.b` (x) | 2026-01-02 | 3 | 1 | 1 | 1 | 2 min, 4 processes |",
		"| volume-expand | 0, 1 failed |", "No full run of release single is recorded yet.", "| a file system of Windows | 1 | subPath |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "old") {
		t.Error("the old content is still in the page")
	}
	d := r.Driver("a.b")
	if diff := cmp.Diff([]Spec{grows}, d.Unfinished()); diff != "" {
		t.Error(diff)
	}
	d.Replace([]Result{{Spec: grows, State: Passed}})
	r.Put(d)
	if got, err = Page(got, r); err != nil || !strings.Contains(got, "Passed in attempt 2 only: a.b: "+grows.Name) {
		t.Errorf("after another attempt (%v):\n%s", err, got)
	}
	if _, err := Page("nothing", r); err == nil {
		t.Error("no error for a page without markers")
	}
}

// The last full run used this tree's definitions and its versions or those of one
// minor version before, without failures, and each spec that does not apply has a
// known reason. The named specs run with this tree's versions.
func TestLastRunMatchesThisTree(t *testing.T) {
	const again = "run make e2e-full with CLEAT_E2E_RECORD=1"
	r := testkit.Value(ReadRecord("last-run.json"))(t)
	for program, want := range builtVersions(t) {
		if !slices.ContainsFunc(r.Versions, func(v Version) bool { return v.Program == program && minorsBetween(t, v.Version, want) <= 1 }) {
			t.Errorf("the run used %v; this tree builds %s %s: %s", r.Versions, program, want, again)
		}
	}
	definitions := testkit.Value(Definitions(".", Releases()...))(t)
	for _, d := range definitions {
		i := slices.IndexFunc(r.Drivers, func(of DriverRecord) bool { return of.Driver == d.Driver })
		switch {
		case i < 0:
			t.Errorf("release %s has no full run: %s", d.Release, again)
			continue
		case r.Drivers[i].Definition != d.Sum:
			t.Errorf("%s was run with another %s.yaml: %s", d.Driver, d.Release, again)
		case r.Drivers[i].Count(Passed) == 0:
			t.Errorf("no spec of %s has passed", d.Driver)
		}
		for _, result := range r.Drivers[i].Results {
			if _, known := ReasonOf(result); result.Failed() || result.Inapplicable() && !known {
				t.Errorf("%s: %s: %s: %s", d.Driver, result.Name, result.State, result.Message)
			}
			if !d.Covers(result.Spec) {
				t.Errorf("%s: %s is not covered by %s", d.Driver, result.Name, d.Release)
			}
		}
	}
}

// minorsBetween returns by how many minor versions one version is newer than
// another; versions of different majors are far apart.
func minorsBetween(t *testing.T, older, newer string) int {
	t.Helper()
	var major, minor [2]int
	for i, version := range []string{older, newer} {
		testkit.Value(fmt.Sscanf(version, "v%d.%d.", &major[i], &minor[i]))(t)
	}
	return 1000*(major[1]-major[0]) + minor[1] - minor[0]
}

// builtVersions returns the versions in the go.mod files of the programs.
func builtVersions(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, file := range []string{"../programs/kubernetes/go.mod", "../programs/sidecars/go.mod"} {
		text := testkit.Value(os.ReadFile(file))(t)
		for program, module := range map[string]string{
			"Kubernetes": `k8s\.io/kubernetes`, "external-provisioner": `github\.com/kubernetes-csi/external-provisioner/v\d+`, "external-attacher": `github\.com/kubernetes-csi/external-attacher/v\d+`,
			"external-resizer": `github\.com/kubernetes-csi/external-resizer/v\d+`, "external-snapshotter": `github\.com/kubernetes-csi/external-snapshotter/v\d+`,
		} {
			if m := regexp.MustCompile(`(?m)^(?:require)?\s*` + module + ` (v\S+)`).FindSubmatch(text); m != nil {
				all[program] = string(m[1])
			}
		}
	}
	if len(all) != 5 {
		t.Fatalf("found only the versions %v", all)
	}
	return all
}

func TestPageMatchesLastRun(t *testing.T) {
	r := testkit.Value(ReadRecord("last-run.json"))(t)
	page := readPage(t)
	want := testkit.Value(Page(page, r))(t)
	if diff := cmp.Diff(want, page); diff != "" {
		t.Errorf("docs/e2e.md differs from test/kubernetes/external/last-run.json (-want +got):\n%s", diff)
	}
}

// The page's table has exactly the claims of the definitions.
func TestPageHasEveryClaim(t *testing.T) {
	definitions := testkit.Value(Definitions(".", Releases()...))(t)
	row := regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\| (yes)? ?\\| (yes)? ?\\| (yes)? ?\\| (.*)\\|$")
	documented := make([]map[string]bool, len(definitions))
	for i := range documented {
		documented[i] = map[string]bool{}
	}
	for _, m := range row.FindAllStringSubmatch(readPage(t), -1) {
		claimed := false
		for i := range definitions {
			if m[2+i] == "yes" {
				documented[i][m[1]] = true
				claimed = true
			}
		}
		if !claimed && strings.TrimSpace(m[5]) == "" {
			t.Errorf("%s is not claimed, but has no reason", m[1])
		}
	}
	for i, d := range definitions {
		if diff := cmp.Diff(d.Claims, documented[i]); diff != "" {
			t.Errorf("docs/e2e.md on %s (-claimed +documented):\n%s", d.Release, diff)
		}
	}
}

func readPage(t *testing.T) string {
	t.Helper()
	text := testkit.Value(os.ReadFile("../../../docs/e2e.md"))(t)
	return string(text)
}

// The named specs belong to known drivers and passed in the last full run, where
// the tag [Slow] was elsewhere in their names (Kubernetes 1.36).
func TestNamedSpecsHavePassed(t *testing.T) {
	specs := testkit.Value(Named())(t)
	if len(specs) < 12 {
		t.Errorf("got %d named specs", len(specs))
	}
	r := testkit.Value(ReadRecord("last-run.json"))(t)
	bare := func(s Spec) Spec { return Spec{s.Driver, strings.ReplaceAll(s.Name, " [Slow]", "")} }
	for _, s := range specs {
		if !slices.ContainsFunc(r.Drivers, func(d DriverRecord) bool {
			return slices.ContainsFunc(d.Results, func(of Result) bool { return bare(of.Spec) == bare(s) && of.State == Passed })
		}) {
			t.Errorf("%s: %s has not passed", s.Driver, s.Name)
		}
	}
	for _, bad := range []string{"csi.cleat.dev [Testpattern: x] y", "csi.cleat.dev: something", "a: [Testpattern: x] y\na: [Testpattern: x] y\n"} {
		if _, err := parseNamed(bad); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

func TestDefinitionsOfUnknownReleases(t *testing.T) {
	if _, err := Definitions(".", "other"); err == nil || !strings.Contains(err.Error(), "local") {
		t.Errorf("got error %v", err)
	}
}
