// Package imports holds the house to its floors (DESIGN: cmd over domains over
// attach and spdk over volume over access; internal never imports a domain).
package imports

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/cleatproject/cleat/"

type pkg struct {
	ImportPath string
	Imports    []string
}

// rules: a package below `in` imports of this module only what lies below one
// of `may`. The first rule that fits counts.
var rules = []struct {
	in  string
	may []string
}{
	{"api", nil},
	{"errs", nil},
	{"volume/access", nil},
	{"volume/enginetest", []string{"volume"}},
	{"volume", []string{"volume/access"}},
	{"csi/client", []string{"csi/request", "volume", "internal"}},
	{"csi", []string{"csi", "attach", "volume", "internal"}},
	{"fence", []string{"fence", "volume", "internal"}},
	{"dpu", []string{"dpu", "spdk", "volume", "api", "internal"}},
	{"sriov", []string{"sriov", "api", "internal"}},
	{"kubelet", []string{"kubelet", "api", "internal"}},
	{"attach", []string{"attach", "volume", "internal"}},
	{"engine/local", []string{"volume", "internal"}},
	{"engine", []string{"engine", "spdk", "volume", "internal"}},
	{"spdk", []string{"spdk", "volume", "internal"}},
	{"internal/ledger", []string{"volume", "internal"}},
	{"internal/demo", []string{"csi/client", "dpu/client", "kubelet/remote", "kubelet/watch", "volume", "internal"}},
	{"internal", []string{"volume", "internal"}},
	{"cmd", []string{""}},
	{"deploy", []string{"deploy", "internal"}},
	{"docs", nil},
	{"test", []string{""}},
}

func below(path, dir string) bool {
	return dir == "" || path == dir || strings.HasPrefix(path, dir+"/")
}

func TestFloors(t *testing.T) {
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		may, known := allowed(name)
		if !known {
			t.Errorf("%s: no rule of the house fits this package: give it a floor in test/imports", name)
		}
		for _, i := range p.Imports {
			imported, ours := strings.CutPrefix(i, module)
			if !ours {
				continue
			}
			if !below(imported, "errs") && !permitted(imported, may) {
				t.Errorf("%s must not import %s: packages below %v only", name, imported, may)
			}
		}
	}
}

func allowed(name string) ([]string, bool) {
	for _, r := range rules {
		if below(name, r.in) {
			return r.may, true
		}
	}
	return nil, false
}

func permitted(imported string, may []string) bool {
	for _, dir := range may {
		if below(imported, dir) {
			return true
		}
	}
	return false
}

// Only cmd names an engine or a protocol's attacher: everything else speaks
// of volume.Backend and attach.Attacher.
func TestOnlyCmdWiresEngines(t *testing.T) {
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		if below(name, "cmd") || below(name, "engine") || below(name, "test") {
			continue
		}
		for _, i := range p.Imports {
			imported := strings.TrimPrefix(i, module)
			if below(imported, "engine") || (below(imported, "attach") && imported != "attach" && !below(name, "attach")) {
				t.Errorf("%s imports %s: only cmd wires engines and attachers", name, imported)
			}
		}
	}
}

// The product carries no test double and no test helper.
func TestProductLinksNoTestCode(t *testing.T) {
	for _, p := range list(t, "-deps", "./cmd/cleat") {
		for _, word := range []string{"enginetest", "watchtest", "fencetest", "spdktest", "dputest", "sysfstest", "sourcetest", "plugintest", "testing", "github.com/google/go-cmp", "pgregory.net/rapid", "github.com/cleatproject/cleat/test/"} {
			if p.ImportPath == word || strings.HasPrefix(p.ImportPath, module) && strings.Contains(p.ImportPath, word) || strings.HasPrefix(p.ImportPath, word+"/") {
				t.Errorf("cmd/cleat links %s", p.ImportPath)
			}
		}
	}
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
