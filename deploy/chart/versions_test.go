package chart

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/cleatproject/cleat/test/testkit"
)

// minors are the supported minor versions of Kubernetes. client-go of each has
// the API server's schema for server-side apply, with which Helm 4 installs.
var minors = []struct {
	minor           int
	clientGo, check string // version and checksum of the module
}{
	{30, "v0.30.14", "h1:D81QZvBtv897JU4HRsx4YoaCDnzeZSvB8eApgmbtXVA="},
	{31, "v0.31.14", "h1:d4/G0xfksNIbMWH7ghjzOwC5bTAwQ20gABTjZw7fLlQ="},
	{32, "v0.32.13", "h1:FxVdGzgrWW8QBprX/xJjoxs9tE06UJIbuy8IfNoxn0c="},
	{33, "v0.33.13", "h1:gyirIFpLEF9RltmrUkkObQFkxeumU2hRcxiDsVfrf1w="},
	{34, "v0.34.13", "h1:47Nf1YByDhpYtyOB9zd56FB9bEDxsozH1ic3VyU7zV0="},
	{35, "v0.35.10", "h1:HXF+042qTnXFFISMiuMHiM5yN2lVonVQQAkpIWxSGPk="},
	{36, "v0.36.6", "h1:/nxcosTtar7svq4xjpzMPirzoShNK2+nSZ7AGDL6c3k="},
	{37, "v0.37.2", "h1:sgFtyRZukGkOrsu+QgS7LYnbFFJ5ut3MchdBNduD//E="},
}

// since has the first minor version with the kinds that not all of them have.
var since = map[string]int{"storage.k8s.io/v1/VolumeAttributesClass": 34}

// Every supported version of Kubernetes knows every kind and field of the
// chart: its API server refuses to apply an object with an unknown one.
func TestObjectsMatchSupportedKubernetes(t *testing.T) {
	objects := map[string][]object{}
	for name, values := range variety {
		objects[name] = render(t, release{values: values, apis: apis})
	}
	for _, m := range minors {
		t.Run(fmt.Sprintf("1.%d", m.minor), func(t *testing.T) {
			t.Parallel()
			schema := applySchema(t, m.clientGo, m.check)
			checked := 0
			for name, all := range objects {
				for _, o := range all {
					if kind := o.APIVersion + "/" + o.Kind; o.typed == nil || m.minor < since[kind] {
						continue
					}
					checked++
					kind := schema.Type(o.schemaName())
					if !kind.IsValid() {
						t.Errorf("%s: %v: no %s %s in Kubernetes 1.%d", name, o, o.APIVersion, o.Kind, m.minor)
						continue
					}
					if _, err := kind.FromYAML(typed.YAMLObject(o.text)); err != nil {
						t.Errorf("%s: %v: %v\n%s", name, o, err, o.text)
					}
				}
			}
			if checked == 0 {
				t.Error("no object was compared")
			}
		})
	}
}

// An installation on a version without a kind that it needs is refused with what
// to do.
func TestClassesNeedTheirKubernetes(t *testing.T) {
	for version, want := range map[string]string{
		"1.33.13": "csi.volumeAttributesClasses requires Kubernetes 1.34 or later, whose storage.k8s.io/v1 has the kind; this is v1.33.13",
		"1.34.0":  "",
	} {
		out, err := release{values: controllerMode, apis: apis, kubernetes: version}.helm(t)
		if refused := err != nil; refused != (want != "") || !strings.Contains(out, want) {
			t.Errorf("Kubernetes %s: got error %v, want %q in\n%s", version, err, want, out)
		}
	}
}

// schemaName returns the name of an object's type in the schema:
// io.k8s.api.rbac.v1.Role.
func (o object) schemaName() string {
	group, version, found := strings.Cut(o.APIVersion, "/")
	if !found {
		group, version = "core", o.APIVersion
	}
	group, _, _ = strings.Cut(group, ".")
	return "io.k8s.api." + group + "." + version + "." + o.Kind
}

// applySchema returns the schema in a version of client-go.
func applySchema(t *testing.T, version, sum string) *typed.Parser {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "k8s.io/client-go@"+version)
	download.Dir = t.TempDir() // without a go.mod to change
	out, err := download.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", download, err, out)
	}
	var module struct{ Dir, Sum string }
	testkit.Must(t, json.Unmarshal(out, &module))
	if module.Sum != sum {
		t.Fatalf("k8s.io/client-go %s has the checksum %s, want %s", version, module.Sum, sum)
	}
	file := testkit.Value(parser.ParseFile(token.NewFileSet(), filepath.Join(module.Dir, "applyconfigurations/internal/internal.go"), nil, parser.SkipObjectResolution))(t)
	text := ""
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(literal.Value, "`types:") {
			text = testkit.Value(strconv.Unquote(literal.Value))(t)
		}
		return true
	})
	if text == "" {
		t.Fatalf("no schema in %s", module.Dir)
	}
	return testkit.Value(typed.NewParser(typed.YAMLObject(text)))(t)
}
