package programs

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

const root = "../../.."

// required returns the versions required by a go.mod, by path.
func required(t *testing.T, modfile string) map[string]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json", filepath.Join(root, modfile)).Output()
	if err != nil {
		t.Fatalf("%s: %v", modfile, err)
	}
	var file struct {
		Require []struct{ Path, Version string }
	}
	testkit.Must(t, json.Unmarshal(out, &file))
	versions := make(map[string]string)
	for _, r := range file.Require {
		versions[r.Path] = r.Version
	}
	return versions
}

// all returns the modules, with each version of Kubernetes.
func all() []module {
	found := modules("")
	for _, version := range older() {
		found = append(found, modules(version)[0])
	}
	return found
}

// Every program's package is imported where go mod tidy finds it, so that
// go.mod and go.sum are complete.
func TestModulesImportTheirPrograms(t *testing.T) {
	for _, m := range all() {
		file := m.modfile
		if filepath.Base(file) == "go.mod" {
			file = filepath.Join(filepath.Dir(file), "tools.go")
		}
		text := testkit.Value(os.ReadFile(filepath.Join(root, file)))(t)
		var packages []string
		for _, s := range m.sources {
			for _, p := range s.programs {
				packages = append(packages, s.path+"/"+p.pkg)
			}
			for _, c := range s.crds {
				packages = append(packages, s.path+"/"+c.pkg)
			}
		}
		for _, pkg := range packages {
			if !strings.Contains(string(text), "\""+pkg+"\"") && !strings.Contains(string(text), "tool "+pkg+"\n") {
				t.Errorf("%s does not import %s", file, pkg)
			}
		}
		versions := required(t, m.modfile)
		for _, path := range m.paths() {
			if versions[path] == "" {
				t.Errorf("%s does not require %s", m.modfile, path)
			}
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	sorted := slices.Sorted(slices.Values(Names()))
	if unique := slices.Compact(slices.Clone(sorted)); len(unique) != len(sorted) {
		t.Errorf("duplicate name in %v", sorted)
	}
	for _, m := range all() {
		var outputs []string
		for _, p := range m.all {
			outputs = append(outputs, p.output())
		}
		slices.Sort(outputs)
		if unique := slices.Compact(slices.Clone(outputs)); len(unique) != len(outputs) {
			t.Errorf("%s: two programs have the same output: %v", m.name, outputs)
		}
	}
}

// The kubelet built here and the kubelet's code in test/upstream have the same
// version.
func TestSameKubernetesVersionEverywhere(t *testing.T) {
	const path = "k8s.io/kubernetes"
	here, there := required(t, "test/kubernetes/programs/kubernetes/go.mod")[path], required(t, "test/upstream/go.mod")[path]
	if here == "" || here != there {
		t.Errorf("%s is %q here, but %q in test/upstream", path, here, there)
	}
}

func TestModulesAreTidy(t *testing.T) {
	for _, m := range all() {
		if filepath.Base(m.modfile) != "go.mod" {
			continue // for the tree's root, whose code go mod tidy would use
		}
		cmd := exec.CommandContext(t.Context(), "go", "mod", "tidy", "-diff")
		cmd.Dir = filepath.Join(root, filepath.Dir(m.modfile))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("go mod tidy would change %s: %v\n%s", m.modfile, err, out)
		}
	}
}
