// Package release tests scripts/release, which builds what a release publishes.
package release

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/tree"
)

// version returns the version in cmd/cleat/version.go.
func version(t *testing.T) string {
	t.Helper()
	text := testkit.Value(os.ReadFile(filepath.Join(testkit.Root(t), "cmd/cleat/version.go")))(t)
	found := regexp.MustCompile(`(?m)^const release = "(.*)"$`).FindSubmatch(text)
	if found == nil {
		t.Fatal("cmd/cleat/version.go has no version")
	}
	return string(found[1])
}

// The version has an entry in the list of changes, with what an upgrade asks,
// and is the chart's.
func TestVersion(t *testing.T) {
	v, root := version(t), testkit.Root(t)
	changes := string(testkit.Value(os.ReadFile(filepath.Join(root, "CHANGELOG.md")))(t))
	_, entry, found := strings.Cut(changes, "\n## "+v+"\n")
	entry, _, _ = strings.Cut(entry, "\n## ")
	if !found || !strings.Contains(entry, "\n### Upgrade\n") {
		t.Errorf("CHANGELOG.md has no section %q with a section Upgrade", v)
	}
	chart := string(testkit.Value(os.ReadFile(filepath.Join(root, "deploy/chart/Chart.yaml")))(t))
	for _, line := range []string{"version: " + v, "appVersion: " + v} {
		if !strings.Contains(chart, "\n"+line+"\n") {
			t.Errorf("Chart.yaml has no line %q", line)
		}
	}
}

// Without the tag of the version nothing is built. With it, two builds from two
// directories are equal (the script compares them), and the checksums are those
// of the files.
func TestRelease(t *testing.T) {
	v, clone, output := version(t), t.TempDir(), filepath.Join(t.TempDir(), "release")
	git := func(args ...string) {
		t.Helper()
		if out, err := tree.Git(clone, args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	if out, err := tree.Git(testkit.Root(t), "clone", "-q", testkit.Root(t), clone).CombinedOutput(); err != nil {
		t.Fatalf("clone: %v\n%s", err, out)
	}
	release := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), filepath.Join(clone, "scripts/release"), output, "linux/amd64").CombinedOutput()
		return string(out), err
	}
	git("tag", "-f", "v0.0.0-other")
	if tagged, _ := tree.Git(clone, "tag", "--points-at", "HEAD", "v"+v).Output(); len(tagged) == 0 {
		if out, err := release(); err == nil || !strings.Contains(out, "HEAD has no tag v"+v) {
			t.Fatalf("without a tag: %v\n%s", err, out)
		}
		git("tag", "v"+v)
	}
	if out, err := release(); err != nil {
		t.Fatalf("release: %v\n%s", err, out)
	}
	sums := string(testkit.Value(os.ReadFile(filepath.Join(output, "SHA256SUMS")))(t))
	program := "cleat-" + v + "-linux-amd64"
	for _, name := range []string{program, program + ".cdx.json", "cleat-chart-" + v + ".tgz", "cleat-" + v + "-source.tar.gz"} {
		sum := sha256.Sum256(testkit.Value(os.ReadFile(filepath.Join(output, name)))(t))
		if line := hex.EncodeToString(sum[:]) + "  " + name + "\n"; !strings.Contains(sums, line) {
			t.Errorf("SHA256SUMS has no line %q:\n%s", line, sums)
		}
	}
	out := testkit.Value(exec.CommandContext(t.Context(), filepath.Join(output, program), "version").Output())(t)
	if first := strings.SplitN(string(out), "\n", 2)[0]; !strings.HasPrefix(first, "cleat "+v+" (") || strings.Contains(first, "modified") {
		t.Errorf("version: %q", first)
	}
}
