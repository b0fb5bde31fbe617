package programs

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// helperVariable makes a test binary build the set of the fixture in this
// directory instead of running tests.
const helperVariable = "CLEAT_TEST_PROGRAMS"

func TestMain(m *testing.M) {
	dir := os.Getenv(helperVariable)
	if dir == "" {
		os.Exit(m.Run())
	}
	set, err := fixtureIn(dir, os.Stderr).build(context.Background(), nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(set.Dir)
}

// buildProcess returns a command that builds the fixture's set in another
// process.
func buildProcess(ctx context.Context, b *builder) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), helperVariable+"="+b.root)
	return cmd
}

const (
	oneMod  = "module example.test/one\n\ngo 1.26.0\n"
	command = "package main\n\nvar version, major, minor = \"none\", \"none\", \"none\"\n\nfunc main() { print(%q, version, major, minor) }\n"
)

// published returns the modules of the fixture's proxy, by path@version.
func published() map[string]map[string]string {
	stamped := func(name string) string { return fmt.Sprintf(command, name+" ") }
	return map[string]map[string]string{
		"example.test/one@v1.2.3": {
			"go.mod":                        oneMod,
			"cmd/alpha/main.go":             stamped("alpha"),
			"cmd/beta/main.go":              stamped("beta"),
			"cmd/beta/cgo.go":               "//go:build cgo\n\npackage main\n\nfunc init() { print(\"linked with C: \") }\n",
			"cmd/broken/main.go":            "package main\n\nfunc main() { nothing() }\n",
			"test/all/all_test.go":          "package all\n\nimport \"testing\"\n\nfunc TestAll(t *testing.T) {}\n",
			"config/crd/things.yaml":        "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n",
			"config/crd/kustomization.yaml": "kind: Kustomization\n",
		},
		"example.test/other@v0.4.0": {
			"go.mod":            strings.Replace(oneMod, "one", "other", 1),
			"cmd/gamma/main.go": stamped("gamma"),
		},
		"example.test/tool@v1.9.0": {
			"go.mod":           strings.Replace(oneMod, "one", "tool", 1),
			"cmd/tool/main.go": stamped("tool"),
		},
	}
}

// proxy serves the published modules. hold is called before an answer.
func proxy(t *testing.T, hold func(r *http.Request)) string {
	t.Helper()
	answers := make(map[string][]byte)
	for name, files := range published() {
		path, version, _ := strings.Cut(name, "@")
		var archive bytes.Buffer
		z := zip.NewWriter(&archive)
		for _, file := range slices.Sorted(maps.Keys(files)) {
			w, err := z.Create(name + "/" + file)
			if err == nil {
				_, err = io.WriteString(w, files[file])
			}
			testkit.Must(t, err)
		}
		testkit.Must(t, z.Close())
		at := "/" + path + "/@v/" + version
		answers[at+".zip"] = archive.Bytes()
		answers[at+".mod"] = []byte(files["go.mod"])
		answers[at+".info"] = fmt.Appendf(nil, `{"Version":%q}`, version)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hold != nil {
			hold(r)
		}
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(answer)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// fixtureModules returns two go.mod files like the real ones: a nested module
// with two sources, and one next to others for the tree's root.
func fixtureModules() []module {
	stamp := []string{"main.version={version}", "main.major={major}", "main.minor={minor}"}
	return []module{
		{name: "nested", modfile: "nested/go.mod", sources: []source{
			{path: "example.test/one", stamp: stamp,
				programs: []program{{name: "first", pkg: "cmd/alpha"}, {name: "beta", pkg: "cmd/beta"}, {name: "all.test", pkg: "test/all", test: true}},
				crds:     []crds{{name: "things", dir: "config/crd", pkg: "cmd/alpha"}}},
			{path: "example.test/other", stamp: stamp, programs: []program{{name: "gamma", pkg: "cmd/gamma"}}},
		}},
		{name: "tool", modfile: "tools/tool.mod", sources: []source{
			{path: "example.test/tool", stamp: stamp, programs: []program{{name: "tool", pkg: "cmd/tool"}}},
		}},
	}
}

func fixtureIn(dir string, log io.Writer) *builder {
	return &builder{root: dir, cache: filepath.Join(dir, "cache"), modules: fixtureModules(), log: log}
}

// fixture returns a builder with its own source tree, cache, module cache and
// proxy.
func fixture(t *testing.T, log io.Writer) *builder {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("GOPROXY", proxy(t, nil))
	t.Setenv("GOSUMDB", "off")
	t.Setenv("CGO_ENABLED", "1") // builds must override this
	emptyModuleCache(t)
	for name, text := range map[string]string{
		"go.mod":         "module example.test/tree\n\ngo 1.26.0\n",
		"nested/go.mod":  "module example.test/nested\n\ngo 1.26.0\n\nrequire (\n\texample.test/one v1.2.3\n\texample.test/other v0.4.0\n)\n",
		"tools/tool.mod": "module example.test/tools\n\ngo 1.26.0\n\ntool example.test/tool/cmd/tool\n\nrequire example.test/tool v1.9.0\n",
		"nested/tools.go": "//go:build tools\n\npackage nested\n\nimport (\n\t_ \"example.test/one/cmd/alpha\"\n\t_ \"example.test/one/cmd/beta\"\n" +
			"\t_ \"example.test/one/test/all\"\n\t_ \"example.test/other/cmd/gamma\"\n)\n",
	} {
		testkit.Must(t, errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)))
	}
	b := fixtureIn(dir, log)
	for where, args := range map[string][]string{"nested": {"mod", "tidy", "-e"}, ".": {"mod", "tidy", "-modfile=tools/tool.mod"}} {
		testkit.Value(b.goTool(t.Context(), filepath.Join(dir, where), "", args...))(t)
	}
	return b
}

// emptyModuleCache sets a module cache that is removed after the test.
func emptyModuleCache(t *testing.T) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mod")
	t.Setenv("GOMODCACHE", dir)
	t.Cleanup(func() { // its directories are read-only
		clean := exec.Command("go", "clean", "-modcache")
		clean.Env = append(os.Environ(), "GOMODCACHE="+dir)
		if out, err := clean.CombinedOutput(); err != nil {
			t.Errorf("go clean -modcache: %v\n%s", err, out)
		}
	})
}
