package external

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

// TestMain stands in for e2e.test in the tests that run it: it writes the
// requested report and leaves a directory over.
func TestMain(m *testing.M) {
	text, ok := os.LookupEnv("CLEAT_TEST_REPORT")
	if !ok {
		os.Exit(m.Run())
	}
	if _, err := os.MkdirTemp("", "test-kuberc"); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	for _, arg := range os.Args {
		if file, ok := strings.CutPrefix(arg, "--ginkgo.json-report="); ok && text != "" {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}
	os.Exit(1) // e2e.test does so when a spec has failed
}

const someReport = `[{"SpecReports": [
 {"ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "passed"},
 {"ContainerHierarchyTexts": ["[sig-storage] CSI Volumes [Driver: csi-hostpath]", "x"], "LeafNodeType": "It", "LeafNodeText": "not asked for", "State": "skipped"},
 {"ContainerHierarchyTexts": ["External Storage [Driver: a.b]", "[Testpattern: Dynamic PV (ext4)] volumes", ""], "LeafNodeType": "It", "LeafNodeText": "should store data", "State": "passed", "RunTime": 1500000000},
 {"ContainerHierarchyTexts": ["External Storage [Driver: a.b]", "[Testpattern: Dynamic PV (ntfs)] [Feature:Windows] subPath"], "LeafNodeType": "It", "LeafNodeText": "should work [Slow]", "State": "skipped",
  "Failure": {"Message": "Driver a.b doesn't support ntfs -- skipping", "Location": {"FileName": "x.go", "LineNumber": 7}}},
 {"ContainerHierarchyTexts": ["External Storage [Driver: a.b]", "[Testpattern: Dynamic PV (default fs)] volume-expand"], "LeafNodeType": "It", "LeafNodeText": "should grow", "State": "failed", "RunTime": 20000000,
  "Failure": {"Message": "it did not", "Location": {"FileName": "y.go", "LineNumber": 8}}}
]}]`

var (
	stores = Spec{"a.b", "[Testpattern: Dynamic PV (ext4)] volumes should store data"}
	ntfs   = Spec{"a.b", "[Testpattern: Dynamic PV (ntfs)] [Feature:Windows] subPath should work [Slow]"}
	grows  = Spec{"a.b", "[Testpattern: Dynamic PV (default fs)] volume-expand should grow"}
)

func someResults() []Result {
	return []Result{
		{Spec: stores, State: Passed, Seconds: 1.5},
		{Spec: ntfs, State: Skipped, Message: "Driver a.b doesn't support ntfs -- skipping", Location: "x.go:7"},
		{Spec: grows, State: "failed", Seconds: 0.02, Message: "it did not", Location: "y.go:8"},
	}
}

func TestParse(t *testing.T) {
	got := testkit.Value(parse([]byte(someReport)))(t)
	if diff := cmp.Diff(someResults(), got); diff != "" {
		t.Error(diff)
	}
	for name, report := range map[string]string{
		"no JSON":                        `[{"SpecReports": [`,
		"a step before the specs failed": `[{"SpecReports": [{"LeafNodeType": "BeforeSuite", "State": "failed", "Failure": {"Message": "no nodes"}}]}]`,
		"a spec of no driver":            `[{"SpecReports": [{"ContainerHierarchyTexts": ["[sig-storage] x"], "LeafNodeType": "It", "LeafNodeText": "y", "State": "passed"}]}]`,
	} {
		if _, err := parse([]byte(report)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSuiteOfSpec(t *testing.T) {
	for name, want := range map[string][2]string{
		stores.Name: {"volumes", "Dynamic PV (ext4)"},
		ntfs.Name:   {"subPath", "Dynamic PV (ntfs)"},
		"[Testpattern:  (retain policy)] volumegroupsnapshottable [Feature:volumegroupsnapshot] VolumeGroupSnapshottable should": {"volumegroupsnapshottable", "(retain policy)"},
		"[Testpattern: Dynamic PV (xfs)] [Slow] read-write-once-pod should":                                                      {"read-write-once-pod", "Dynamic PV (xfs)"},
		"something": {"", ""},
	} {
		suite, pattern := Spec{"d", name}.Suite()
		if got := [2]string{suite, pattern}; got != want {
			t.Errorf("%q: got suite %q, want %q", name, got, want)
		}
	}
	if stores.Serial() || !(Spec{"d", "x [Serial] y"}).Serial() {
		t.Error("a spec marked [Serial] is not serial")
	}
	if !(Spec{"d", "[Testpattern: Dynamic PV (default fs)] capacity provides storage capacity information"}).Serial() {
		t.Error("a spec that waits for the capacity of a new class is not serial")
	}
	if stores.foreign() || !ntfs.foreign() {
		t.Error("a Windows spec is not foreign")
	}
}

func TestFocusSelectsOnlyTheseSpecs(t *testing.T) {
	re := regexp.MustCompile(focus([]Spec{stores, ntfs}))
	suite := "Kubernetes e2e suite "
	for text, want := range map[string]bool{
		suite + heading("a.b") + stores.Name:                        true,
		suite + heading("a.b") + ntfs.Name:                          true,
		suite + heading("aXb") + stores.Name:                        false,
		suite + heading("a.b") + stores.Name + " in parallel":       false,
		suite + "[sig-storage] " + heading("a.b") + stores.Name:     false,
		suite + heading("a.b") + grows.Name:                         false,
		suite + heading("a.b") + "[Testpattern: Dynamic PV (ext4)]": false,
	} {
		if re.MatchString(text) != want {
			t.Errorf("%q: want selected %t", text, want)
		}
	}
}

// A spec without a result in the report has failed, whatever the reason.
func TestRunReturnsAResultForEverySpec(t *testing.T) {
	self := testkit.Value(os.Executable())(t)
	absent := Spec{"a.b", "[Testpattern: Dynamic PV (ext4)] volumes should be there [Serial]"}
	specs := []Spec{absent, grows, stores, ntfs}
	for name, c := range map[string]struct {
		report string
		want   []State
	}{
		"a report":  {someReport, []State{NotRun, "failed", Passed, Skipped}},
		"no report": {"", []State{NotRun, NotRun, NotRun, NotRun}},
		"duplicate spec": {strings.Replace(someReport, `"State": "passed", "RunTime": 1500000000},`, `"State": "passed"},
			{"ContainerHierarchyTexts": ["External Storage [Driver: a.b]", "[Testpattern: Dynamic PV (ext4)] volumes"], "LeafNodeType": "It", "LeafNodeText": "should store data", "State": "passed"},`, 1),
			[]State{NotRun, "failed", NotRun, Skipped}},
		"failure outside of specs": {strings.Replace(someReport, `"LeafNodeText": "", "State": "passed"`, `"LeafNodeText": "", "State": "failed"`, 1), []State{NotRun, "failed", NotRun, NotRun}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CLEAT_TEST_REPORT", c.report)
			t.Setenv("TMPDIR", t.TempDir())
			p := Program{Path: self, Dir: t.TempDir()}
			var got []State
			for i, r := range p.Run(t.Context(), specs, 2, 3, io.Discard) {
				if r.Spec != specs[i] {
					t.Errorf("result %d is for %v", i, r.Spec)
				}
				if r.Failed() != (r.State != Passed && r.State != Skipped) {
					t.Errorf("state %v: got Failed %v", r.State, r.Failed())
				}
				got = append(got, r.State)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			for _, pattern := range []string{filepath.Join(os.TempDir(), "*"), filepath.Join(p.Dir, "tmp-*")} {
				if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
					t.Errorf("left over: %v, %v", left, err)
				}
			}
		})
	}
}

func TestJUnit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "junit.xml")
	testkit.Must(t, WriteJUnit(file, someResults()))
	text := testkit.Value(os.ReadFile(file))(t)
	for _, want := range []string{`tests="3" failures="1" skipped="1"`, `<failure message="failed: it did not">it did not`, `time="1.500"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}
