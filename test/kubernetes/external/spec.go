// Package external runs Kubernetes' storage specs ("External Storage") against
// drivers of a cluster, with the unmodified test program e2e.test, and records
// the results of full runs, from which the documentation is generated.
package external

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/test/kubernetes/cluster"
)

// Spec is one of the suite's specs for a driver.
type Spec struct {
	Driver string `json:"driver"`
	// Name is the suite's name of the spec, without the common parts.
	Name string `json:"name"`
}

// heading returns the prefix of each spec's full name.
func heading(driver string) string { return "External Storage [Driver: " + driver + "] " }

// specOf parses a full name.
func specOf(full string) (Spec, bool) {
	rest, ok := strings.CutPrefix(full, "External Storage [Driver: ")
	if !ok {
		return Spec{}, false
	}
	driver, name, ok := strings.Cut(rest, "] ")
	return Spec{Driver: driver, Name: name}, ok
}

// Serial reports whether the spec must run alone: it is marked so, or it waits
// a minute for the capacity of a new class, which external-provisioner delays
// beside other specs (it writes ten capacities a second,
// --kube-api-capacity-qps, one per class after each volume).
func (s Spec) Serial() bool {
	return strings.Contains(s.Name, "[Serial]") || strings.HasSuffix(s.Name, "capacity provides storage capacity information")
}

var foreignPattern = regexp.MustCompile(`^\[Testpattern: (Pre-provisioned PV|Inline-volume|[^]]*\((ntfs|ext3)\))`)

// foreign reports whether none of our drivers has this kind of volumes. It
// affects only the grouping of specs.
func (s Spec) foreign() bool { return foreignPattern.MatchString(s.Name) }

var suiteName = regexp.MustCompile(`^\[Testpattern: (.*?)\] (?:\[[^]]*\] )*([A-Za-z-]+)`)

// Suite returns the spec's group, such as subPath, and volume pattern, such as
// Dynamic PV (ext4).
func (s Spec) Suite() (suite, pattern string) {
	m := suiteName.FindStringSubmatch(s.Name)
	if m == nil {
		return "", ""
	}
	return m[2], strings.TrimSpace(m[1])
}

// focus returns the expression that selects exactly these specs.
func focus(specs []Spec) string {
	names := make([]string, len(specs))
	for i, s := range specs {
		names[i] = regexp.QuoteMeta(heading(s.Driver) + s.Name)
	}
	return "^Kubernetes e2e suite (" + strings.Join(names, "|") + ")$"
}

// Program is e2e.test with the parameters of a cluster.
type Program struct {
	Path        string
	Kubeconfig  string
	Kubectl     string
	Definitions []string // YAML files of test drivers
	Dir         string   // for reports and logs
}

// List returns all specs of the suite for the drivers, including those that
// will not apply.
func (p Program) List(ctx context.Context) ([]Spec, error) {
	results, err := p.run(ctx, "list", "^Kubernetes e2e suite External.Storage", "--ginkgo.dry-run")
	if err != nil {
		return nil, err
	}
	specs := make([]Spec, len(results))
	for i, r := range results {
		specs[i] = r.Spec
	}
	return specs, nil
}

// Images returns the images that the suite can run.
func (p Program) Images(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, p.Path, "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list-images: %w", p.Path, err)
	}
	return strings.Fields(string(out)), nil
}

// run runs the program once, with name for its files, and returns the results
// in its report. Failed specs are not an error; a missing report is.
func (p Program) run(ctx context.Context, name, focus string, args ...string) ([]Result, error) {
	report := filepath.Join(p.Dir, name+".json")
	log, err := os.Create(filepath.Join(p.Dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	all := []string{"--provider=local", "--kubeconfig=" + p.Kubeconfig, "--kubectl-path=" + p.Kubectl, "--ginkgo.no-color", "--ginkgo.v",
		"--ginkgo.focus=" + focus, "--ginkgo.json-report=" + report,
		// TestTwoNodes adds a node, powers it off and removes it during the
		// specs.
		"--non-blocking-taints=" + cluster.Added, "--allowed-not-ready-nodes=1"}
	for _, d := range p.Definitions {
		all = append(all, "--storage.testdriver="+d)
	}
	cmd := exec.CommandContext(ctx, p.Path, append(all, args...)...)
	cmd.Dir = p.Dir
	temporary, err := os.MkdirTemp(p.Dir, "tmp-") // the program leaves directories in it
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temporary)
	cmd.Env = append(os.Environ(), "HOME="+p.Dir, "TMPDIR="+temporary)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the program cleans up on an interrupt
	cmd.WaitDelay = cleanup
	runErr := cmd.Run()
	text, err := os.ReadFile(report)
	if err != nil {
		return nil, fmt.Errorf("%s: no report (see %s): %w", filepath.Base(p.Path), log.Name(), errors.Join(runErr, err))
	}
	results, err := parse(text)
	if err != nil {
		return results, fmt.Errorf("report %s: %w", report, err)
	}
	for i := range results {
		results[i].Message = strings.ReplaceAll(results[i].Message, p.Dir, "DIR") // differs between machines
	}
	if exit, ok := errors.AsType[*exec.ExitError](runErr); runErr != nil && !ok || ok && !exit.Exited() {
		return results, fmt.Errorf("%s (see %s): %w", filepath.Base(p.Path), log.Name(), runErr)
	}
	return results, nil
}

// parse reads a Ginkgo report. Specs that were not selected are ignored; a
// failure outside of specs is an error.
func parse(text []byte) ([]Result, error) {
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			RunTime                 int64 // nanoseconds
			Failure                 struct {
				Message  string
				Location struct {
					FileName   string
					LineNumber int
				}
			}
		}
	}
	if err := json.Unmarshal(text, &suites); err != nil {
		return nil, err
	}
	var results []Result
	var failed []error
	for _, suite := range suites {
		for _, r := range suite.SpecReports {
			result := Result{State: State(r.State), Seconds: float64(r.RunTime/1e6) / 1e3, Message: r.Failure.Message}
			if r.LeafNodeType != "It" {
				if result.State != Passed && result.State != Skipped {
					failed = append(failed, fmt.Errorf("%s %s: %s", r.LeafNodeType, result.State, result.Message))
				}
				continue
			}
			if result.State == Skipped && result.Message == "" || result.State == "pending" {
				continue // not selected
			}
			if r.Failure.Location.FileName != "" {
				result.Location = fmt.Sprintf("%s:%d", r.Failure.Location.FileName, r.Failure.Location.LineNumber)
			}
			texts := slices.DeleteFunc(append(r.ContainerHierarchyTexts, r.LeafNodeText), func(t string) bool { return t == "" })
			full := strings.Join(texts, " ") // like Ginkgo for its focus
			spec, ok := specOf(full)
			if !ok {
				failed = append(failed, fmt.Errorf("%q is not a spec of a driver", full))
				continue
			}
			result.Spec = spec
			results = append(results, result)
		}
	}
	return results, errors.Join(failed...)
}
