package vm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/tree"
)

// GoTest builds the test binary of a package of this module
// ("./internal/linux/growfs") statically and runs it in the guest with the
// given flags, such as -test.run=..., in a directory with a copy of the
// package's testdata. Each test becomes a subtest of t. A failed or skipped
// test fails, and so does a run without a passed test.
func GoTest(t *testing.T, g *Guest, pkg string, args ...string) {
	t.Helper()
	dir, err := g.pushTest(t.Context(), t.TempDir(), pkg)
	if err != nil {
		t.Fatal(err)
	}
	argv := append([]string{"./test", "-test.v=test2json", "-test.paniconexit0"}, args...)
	p, err := g.Start(t.Context(), Command{Argv: argv, Dir: dir, Env: []string{"PWD=" + dir}})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-t.Context().Done():
		t.Fatalf("%s in guest %s: %v; output so far:\n%s", pkg, g.spec.Name, t.Context().Err(), p.Log())
	}
	var exit *ExitError
	ended := p.Err()
	if ended != nil && !errors.As(ended, &exit) {
		t.Fatal(ended)
	}
	results, err := testResults(t.Context(), p.Log())
	if err != nil {
		t.Fatal(err)
	}
	passed := results.report(t)
	switch {
	case ended != nil && !t.Failed():
		t.Errorf("%s failed outside of its tests: %v", pkg, ended)
	case passed == 0:
		t.Errorf("%s %v: no test passed:\n%s", pkg, args, p.Log())
	}
}

// pushTest builds a package's test binary, copies it and testdata into the
// guest, and returns their directory.
func (g *Guest) pushTest(ctx context.Context, scratch, pkg string) (string, error) {
	root, err := tree.Root()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(scratch, "test")
	if err := goTool(ctx, root, "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary, pkg); err != nil {
		return "", err
	}
	dir := path.Join("/root", pkg)
	if err := g.Push(ctx, binary, path.Join(dir, "test"), 0o755); err != nil {
		return "", err
	}
	data := filepath.Join(root, pkg, "testdata")
	err = filepath.WalkDir(data, func(file string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && file == data:
			return nil
		case err != nil || !e.Type().IsRegular():
			return err
		}
		name, err := filepath.Rel(data, file)
		if err != nil {
			return err
		}
		return g.Push(ctx, file, path.Join(dir, "testdata", filepath.ToSlash(name)), 0o644)
	})
	return dir, err
}

// result is the outcome of one test.
type result struct {
	name   string
	action string // pass, fail or skip; empty if the test did not end
	output []string
}

// results are in the order in which the tests started.
type results []*result

// testResults parses the output of a test binary run with -test.v=test2json.
func testResults(ctx context.Context, log string) (results, error) {
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json")
	cmd.Stdin = strings.NewReader(log)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go tool test2json: %w: %s", err, stderr.String())
	}
	return parseEvents(out)
}

func parseEvents(events []byte) (results, error) {
	var all results
	lines := bufio.NewScanner(bytes.NewReader(events))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct{ Action, Test, Output string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("go tool test2json wrote %q: %w", lines.Text(), err)
		}
		if e.Test == "" {
			continue
		}
		i := slices.IndexFunc(all, func(r *result) bool { return r.name == e.Test })
		if i < 0 {
			i = len(all)
			all = append(all, &result{name: e.Test})
		}
		switch e.Action {
		case "output":
			all[i].output = append(all[i].output, e.Output)
		case "pass", "fail", "skip":
			all[i].action = e.Action
		}
	}
	return all, lines.Err()
}

// report runs a subtest for each result and returns how many passed.
func (rs results) report(t *testing.T) (passed int) {
	t.Helper()
	for _, r := range rs {
		if r.action == "pass" {
			passed++
		}
		t.Run(r.name, func(t *testing.T) {
			for _, line := range r.output {
				if strings.Contains(line, "REPORT: ") {
					fmt.Print(line)
				}
			}
			if problem := r.problem(); problem != "" {
				t.Errorf("in the guest: %s:\n%s", problem, strings.Join(r.output, ""))
			}
		})
	}
	return passed
}

// problem returns why a result is a failure, or "".
func (r result) problem() string {
	switch r.action {
	case "pass":
		return ""
	case "skip":
		return "skipped; guest tests must not skip"
	case "fail":
		return "failed"
	}
	return "did not end"
}
