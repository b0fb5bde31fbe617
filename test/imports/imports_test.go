// Package imports tests which packages import which: the layers in
// CONTRIBUTING.md, "Layout".
package imports

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/tree"
)

const module = "github.com/cleatproject/cleat/"

// rules: packages that match `in` import only what one of `allowed` matches,
// besides errs. The first matching rule counts. "x" matches the package x,
// "x/..." also all below it.
var rules = []struct {
	in      string
	allowed []string
}{
	{"errs", nil},
	{"api/...", nil},
	{"volume/access", nil},
	{"volume/...", []string{"volume/..."}},
	{"internal/ledger", []string{"internal/...", "volume/..."}},
	{"internal/bootlease", []string{"internal/...", "volume/..."}},
	{"internal/op", []string{"internal/...", "volume/..."}},
	{"internal/...", []string{"internal/..."}},
	{"spdk/...", []string{"spdk/...", "volume/...", "internal/..."}},
	{"node/...", []string{"node/...", "volume/...", "internal/..."}},
	{"engine/...", []string{"engine/...", "spdk/...", "volume/...", "internal/..."}},
	{"csi/client", []string{"volume/...", "internal/..."}},
	{"csi/...", []string{"node", "volume/...", "internal/..."}},
	{"fence/...", []string{"fence/...", "volume/...", "api/...", "internal/..."}},
	{"dpu/...", []string{"dpu/...", "spdk/...", "volume/...", "api/...", "internal/..."}},
	{"sriov/...", []string{"sriov/...", "api/...", "internal/..."}},
	{"driver/...", []string{"driver/...", "csi", "fence/...", "node/...", "kubelet/...", "volume/...", "internal/..."}},
	{"kubelet/...", []string{"kubelet/...", "api/...", "internal/..."}},
	{"takeover/plan", nil},
	{"takeover", []string{"takeover/plan", "internal/..."}},
	{"takeover/networkfence", []string{"takeover", "internal/..."}},
	{"cmd/...", []string{"..."}},
	{"demo/...", []string{"demo/...", "csi/client", "fence/client", "dpu/client", "dpu/request", "sriov/control", "sriov/gate", "kubelet/...", "spdk", "api/...", "volume/...", "internal/...", "test/..."}},
	{"diagnosis/...", []string{"docs", "internal/..."}},
	{"deploy/...", []string{"deploy/...", "internal/..."}},
	{"docs", nil},
	{"test/...", []string{"..."}},
}

func matches(path, pattern string) bool {
	dir, below := strings.CutSuffix(pattern, "...")
	return path == strings.TrimSuffix(dir, "/") || below && strings.HasPrefix(path, dir)
}

func permitted(path string, patterns []string) bool {
	for _, p := range patterns {
		if matches(path, p) {
			return true
		}
	}
	return false
}

// Packages with test code follow the rule of their folder, and can import
// everything in test.
func TestLayers(t *testing.T) {
	for _, e := range imports(t) {
		if e.to == "errs" || tree.IsTest(e.from) && matches(e.to, "test/...") {
			continue
		}
		known := false
		for _, r := range rules {
			if known = matches(e.from, r.in); known {
				if !permitted(e.to, r.allowed) {
					t.Errorf("%s must not import %s: of this module only %v", e.from, e.to, r.allowed)
				}
				break
			}
		}
		if !known {
			t.Errorf("%s: no rule of test/imports matches this package: add one", e.from)
		}
	}
}

// Engines and the CSI services read grants by the public interfaces of package
// volume, as an engine outside of this module has to.
func TestEnginesDoNotImportTheLedger(t *testing.T) {
	for _, e := range imports(t) {
		if e.to == "internal/ledger" && (matches(e.from, "engine/...") || matches(e.from, "csi/...")) {
			t.Errorf("%s imports %s; it gets a volume.Grants or csi.Grants", e.from, e.to)
		}
	}
}

func TestProductImportsNoTestCode(t *testing.T) {
	for _, e := range imports(t) {
		if !tree.IsTest(e.from) && tree.IsTest(e.to) {
			t.Errorf("%s imports %s, which is test code by its name", e.from, e.to)
		}
	}
	for _, p := range list(t, "-deps", "./cmd/cleat") {
		for _, library := range []string{"testing", "github.com/google/go-cmp/...", "pgregory.net/rapid/...", "go.uber.org/goleak/..."} {
			if matches(p.ImportPath, library) {
				t.Errorf("cmd/cleat links %s", p.ImportPath)
			}
		}
	}
}

// Of two sibling folders, at any depth, only one imports from the other; the
// same holds for a package and its sub-folders.
func TestNoMutualImports(t *testing.T) {
	example := map[[2]string]edge{}
	for _, e := range imports(t) {
		if tree.IsTest(e.from) || tree.IsTest(e.to) {
			continue
		}
		from, to := fork(e)
		example[[2]string{from, to}] = e
		if back, found := example[[2]string{to, from}]; found {
			t.Errorf("%s and %s import each other: %s imports %s, and %s imports %s", from, to, e.from, e.to, back.from, back.to)
		}
	}
}

// fork returns the folders in which the paths of an edge diverge; a package
// whose path ends there stands for itself.
func fork(e edge) (from, to string) {
	a, b := strings.Split(e.from, "/"), strings.Split(e.to, "/")
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return strings.Join(a[:min(n+1, len(a))], "/"), strings.Join(b[:min(n+1, len(b))], "/")
}

// edge is an import of one package of this module by another.
type edge struct{ from, to string }

func imports(t *testing.T) (all []edge) {
	t.Helper()
	for _, p := range list(t, "./...") {
		for _, i := range p.Imports {
			if to, ours := strings.CutPrefix(i, module); ours {
				all = append(all, edge{strings.TrimPrefix(p.ImportPath, module), to})
			}
		}
	}
	return all
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Imports"}, args...)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}
