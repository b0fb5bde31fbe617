// Package docs checks the user documentation against the code.
package docs

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-addons/spec/lib/go/fence"
	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"sigs.k8s.io/yaml"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/test/markdown"
	"github.com/cleatproject/cleat/test/testkit"
)

func page(t *testing.T, name string) string {
	t.Helper()
	text := testkit.Value(os.ReadFile(filepath.Join(testkit.Root(t), name)))(t)
	return string(text)
}

// quoted reports whether a page contains a word as code.
func quoted(page, word string) bool {
	return regexp.MustCompile("[`" + `\s(,]` + regexp.QuoteMeta(word) + "[`" + `\s),=.;:]`).MatchString(page)
}

// command is a command of the program with its flags, from its help.
type command struct {
	words []string
	flags []string
	help  string
}

var (
	flagLine   = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z][a-z-]*)`)
	subCommand = regexp.MustCompile(`(?m)^  ([a-z][a-z-]*) +\S`)
)

// commands reads the help of a command and all below it.
func commands(t *testing.T, cleat string, words ...string) []command {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), cleat, append(slices.Clone(words), "--help")...).CombinedOutput()
	if err != nil {
		t.Fatalf("cleat %v --help: %v\n%s", words, err, out)
	}
	c := command{words: words, help: string(out)}
	for _, found := range flagLine.FindAllStringSubmatch(c.help, -1) {
		if found[1] != "help" {
			c.flags = append(c.flags, found[1])
		}
	}
	all := []command{c}
	usage, _, _ := strings.Cut(c.help, "\nFlags:")
	_, below, holds := strings.Cut(usage, "Commands:\n")
	if len(words) == 0 { // in groups
		_, below, holds = strings.Cut(usage, "Servers:\n")
	}
	if !holds {
		return all
	}
	for _, found := range subCommand.FindAllStringSubmatch(below, -1) {
		if name := found[1]; name != "help" && name != "completion" {
			all = append(all, commands(t, cleat, append(slices.Clone(words), name)...)...)
		}
	}
	return all
}

// Every command is shown on a page, and every documented flag exists. Those of the
// commands are in docs/flags.md, which cmd/cleat generates.
func TestFlags(t *testing.T) {
	known, text := map[string]bool{}, ""
	for _, name := range pages(t) {
		text += page(t, name)
	}
	all := commands(t, testkit.Build(t, testkit.Cleat))
	if len(all) < 25 {
		t.Fatalf("the help of only %d commands was found", len(all))
	}
	for _, c := range append(all, commands(t, testkit.Build(t, "./demo"))...) {
		if words := strings.Join(c.words, " "); len(words) > 0 && !regexp.MustCompile(`(cleat|kubectl cleat) `+words+"[ `\n]").MatchString(text) {
			t.Errorf("no page shows cleat %s", words)
		}
		for _, name := range c.flags {
			known[name] = true
			if !quoted(text, "--"+name) {
				t.Errorf("no page documents --%s of %v", name, c.words)
			}
		}
	}
	ofOthers := []string{"help", "log-dir", "xattrs", "xattrs-include", "unix-socket", "node-deployment", "target", "admindir", "input", "image", "remote", "acls", "list-images", "node-deployment-base-delay", "kube-api-qps", "sparse", "make-rshared", "one-file-system", "share", "acme-state", "no-install-recommends"}
	for _, name := range pages(t) {
		for _, found := range regexp.MustCompile("[`\\s(]--([a-z][a-z-]*)").FindAllStringSubmatch(page(t, name), -1) {
			if !known[found[1]] && !slices.Contains(ofOthers, found[1]) && !slices.Contains(ofKubernetes, found[1]) {
				t.Errorf("%s names --%s, which no command has", name, found[1])
			}
		}
	}
}

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// Every YAML example parses, and the settings example has only known settings.
func TestExamples(t *testing.T) {
	for _, name := range pages(t) {
		for _, found := range yamlBlock.FindAllStringSubmatch(page(t, name), -1) {
			var document any
			if err := yaml.UnmarshalStrict([]byte(found[1]), &document); err != nil {
				t.Errorf("%s: %v in\n%s", name, err, found[1])
			}
		}
	}
	first := yamlBlock.FindStringSubmatch(page(t, "docs/csi.md"))
	path := filepath.Join(t.TempDir(), "csi.yaml")
	// An invalid setting makes the program read the file and stop.
	testkit.Must(t, os.WriteFile(path, []byte(first[1]+"services: none\n"), 0o600))
	out, err := exec.CommandContext(t.Context(), testkit.Build(t, testkit.Cleat), "csi", "--config", path).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "use all, controller or node") || strings.Contains(string(out), "no setting") {
		t.Errorf("the example of a config file: %v: %s", err, out)
	}
}

// The SR-IOV examples pass the strict parsers.
func TestSriovExamples(t *testing.T) {
	text := page(t, "docs/sriov.md")
	configs, nodeStates := 0, 0
	for _, found := range jsonBlock.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(found[1], "resourceList") {
			continue
		}
		configs++
		if _, warnings, err := inventory.ParseConfig([]byte(found[1]), inventory.ParseOptions{Strict: true}); err != nil || len(warnings) > 0 {
			t.Errorf("%v, %v in\n%s", err, warnings, found[1])
		}
	}
	for _, found := range yamlBlock.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(found[1], "kind: "+nodestate.Kind+"\n") {
			continue
		}
		nodeStates++
		s, warnings, err := nodestate.Parse([]byte(found[1]))
		if err = errors.Join(err, s.Spec.Check()); err != nil || len(warnings) > 0 {
			t.Errorf("%v, %v in\n%s", err, warnings, found[1])
		}
	}
	if configs == 0 || nodeStates == 0 {
		t.Errorf("%d examples of a config.json and %d of a node state were found", configs, nodeStates)
	}
}

var jsonBlock = regexp.MustCompile("(?ms)^```json\n(.*?)^```$")

var goBlock = regexp.MustCompile("(?ms)^```go\n(package .*?)^```$")

// Every example of a complete Go file compiles.
func TestGoExamples(t *testing.T) {
	count := 0
	for _, name := range pages(t) {
		for _, found := range goBlock.FindAllStringSubmatch(page(t, name), -1) {
			count++
			file := filepath.Join(t.TempDir(), "example_test.go")
			testkit.Must(t, os.WriteFile(file, []byte(found[1]), 0o600))
			cmd := exec.CommandContext(t.Context(), "go", "vet", file)
			cmd.Dir = testkit.Root(t)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s of\n%s", name, err, out, found[1])
			}
		}
	}
	if count == 0 {
		t.Error("no example was found")
	}
}

// The tutorial shows the program that CI builds and tests.
func TestVendorPage(t *testing.T) {
	found := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(page(t, "docs/vendor.md"), -1)
	for _, block := range found {
		if !strings.Contains(page(t, "examples/engine/main.go"), block[1]) {
			t.Errorf("docs/vendor.md shows what is not in examples/engine/main.go:\n%s", block[1])
		}
	}
	if len(found) == 0 {
		t.Error("the page shows no code")
	}
}

// Every call of the contracts has a row.
func TestCalls(t *testing.T) {
	count := checkCalls(t, "CSI", spec.Identity_ServiceDesc, spec.Controller_ServiceDesc, spec.GroupController_ServiceDesc,
		spec.SnapshotMetadata_ServiceDesc, spec.Node_ServiceDesc)
	if count != 36 {
		t.Errorf("CSI has %d calls, and the table was made for 36", count)
	}
	checkCalls(t, "CSI-Addons", identity.Identity_ServiceDesc, fence.FenceController_ServiceDesc)
	if count := checkCalls(t, "Storage plugins of DPF", storagev1.IdentityService_ServiceDesc, storagev1.StoragePluginService_ServiceDesc); count != 8 {
		t.Errorf("DPF's contract has %d calls, and the table was made for 8", count)
	}
	checkCalls(t, "SR-IOV control and device plugins", controlv1.ControlService_ServiceDesc, v1beta1.DevicePlugin_ServiceDesc)
}

func checkCalls(t *testing.T, section string, services ...grpc.ServiceDesc) (count int) {
	t.Helper()
	text := markdown.Section(page(t, "docs/calls.md"), section)
	for _, service := range services {
		var names []string
		for _, m := range service.Methods {
			names = append(names, m.MethodName)
		}
		for _, s := range service.Streams {
			names = append(names, s.StreamName)
		}
		count += len(names)
		for _, name := range names {
			if !strings.Contains(text, " | "+name+" | ") {
				t.Errorf("the table of calls of %s in docs/calls.md lacks %s", section, name)
			}
		}
	}
	return count
}

// Every key of a volume's context is documented, by all its names.
func TestContextKeys(t *testing.T) {
	text, words := page(t, "docs/dpu.md"), contextKeys(t)
	if len(words) < 50 {
		t.Errorf("only %d keys were found in the source: %v", len(words), words)
	}
	for _, word := range words {
		if !quoted(text, word) {
			t.Errorf("docs/dpu.md does not document the key %s", word)
		}
	}
}

// contextKeys returns the constants key... of package access, and their other
// names in its dialects.
func contextKeys(t *testing.T) (words []string) {
	t.Helper()
	files := testkit.Value(filepath.Glob(filepath.Join(testkit.Root(t), "volume/access/*.go")))(t)
	add := func(e ast.Expr) {
		if text, isText := literal(e); isText {
			words = append(words, text)
		}
	}
	for _, path := range files {
		file := testkit.Value(parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution))(t)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, name := range n.Names {
					if strings.HasPrefix(name.Name, "key") && i < len(n.Values) {
						add(n.Values[i])
					}
				}
			case *ast.KeyValueExpr: // keyPort: {"trsvcid"}
				key, isIdent := n.Key.(*ast.Ident)
				list, isList := n.Value.(*ast.CompositeLit)
				if isIdent && isList && strings.HasPrefix(key.Name, "key") {
					for _, e := range list.Elts {
						add(e)
					}
				}
			}
			return true
		})
	}
	return words
}

// source is the texts in the program's source.
type source struct {
	texts   []string // all string literals
	reasons []string // values of constants called Reason... and reason...
	metrics []string
}

func readSource(t *testing.T) source {
	t.Helper()
	var s source
	root := testkit.Root(t)
	linked := linkedDirectories(t, root)
	testkit.Must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		switch {
		case d.IsDir() && slices.Contains([]string{".git", "test", "tools", "docs", "bin"}, rel):
			return fs.SkipDir
		case d.IsDir(), !linked[filepath.Dir(path)], !strings.HasSuffix(path, ".go"), strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		short := metricPrefixes()[filepath.ToSlash(filepath.Dir(rel))]
		ast.Inspect(file, func(n ast.Node) bool {
			s.readShort(n, short)
			return s.read(n)
		})
		return nil
	}))
	return s
}

// linkedDirectories returns the directories of the packages linked into the
// program, also into that with a Ceph client: metrics of others do not count.
func linkedDirectories(t *testing.T, root string) map[string]bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-tags=ceph,pacific", "-deps", "-f", "{{if not .Standard}}{{.Dir}}{{end}}", "./cmd/cleat")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	linked := map[string]bool{}
	for dir := range strings.Lines(string(out)) {
		linked[strings.TrimSpace(dir)] = true
	}
	return linked
}

func (s *source) read(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BasicLit:
		text, isText := literal(n)
		if isText {
			s.texts = append(s.texts, text)
			if strings.HasPrefix(text, "cleat_") && !strings.HasSuffix(text, "_") {
				s.metrics = append(s.metrics, text)
			}
		}
	case *ast.ValueSpec:
		for i, name := range n.Names {
			if !strings.HasPrefix(strings.ToLower(name.Name), "reason") || i >= len(n.Values) {
				continue
			}
			if text, isText := literal(n.Values[i]); isText {
				s.reasons = append(s.reasons, text)
			}
		}
	}
	return true
}

// metricPrefixes are the metric prefixes of packages, and the function that
// adds them.
func metricPrefixes() map[string][2]string {
	return map[string][2]string{
		"engine/local": {"cleat_pool_", "describe"}, "sriov/plugin": {"cleat_sriov_", "desc"}, "sriov/daemon": {"cleat_sriov_daemon_", "gauge"},
	}
}

// readShort finds metrics of a package that adds a prefix, by its function or
// with a plus.
func (s *source) readShort(n ast.Node, short [2]string) {
	prefix, function := short[0], short[1]
	var name ast.Expr
	switch n := n.(type) {
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); ok && f.Name == function && len(n.Args) > 1 {
			name = n.Args[0]
		}
	case *ast.BinaryExpr:
		if x, ok := n.X.(*ast.Ident); ok && x.Name == "namespace" && prefix != "" {
			name = n.Y
		}
	}
	if text, isText := literal(name); isText {
		s.metrics = append(s.metrics, prefix+text)
	}
}

func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// Every metric and every condition reason has a row, and every documented one
// exists.
func TestMetricsAndReasons(t *testing.T) {
	s, text := readSource(t), page(t, "docs/monitoring.md")+page(t, "docs/takeover.md")
	for what, words := range map[string][]string{"metric": s.metrics, "reason": s.reasons} {
		if len(words) < 10 {
			t.Errorf("only %d words of kind %s were found in the source: %v", len(words), what, words)
		}
		for _, word := range words {
			if word != "cleat_fence" && !strings.Contains(text, "`"+word+"`") { // the name of the packet filter's table
				t.Errorf("neither docs/monitoring.md nor docs/takeover.md documents the %s %s", what, word)
			}
		}
	}
	for _, name := range pages(t) {
		for _, word := range regexp.MustCompile(`\bcleat_[a-z_]+[a-z]\b`).FindAllString(page(t, name), -1) {
			if !slices.Contains(s.metrics, word) {
				t.Errorf("%s names the metric %s, which does not exist", name, word)
			}
		}
	}
}

// The messages in the troubleshooting tables are the program's: each part
// between two ellipses occurs in one of its texts.
func TestMessages(t *testing.T) {
	s := readSource(t)
	var rows [][]string
	for of, least := range map[string]int{
		"the driver and the plugin host": 20, "fencing": 10, "Ceph volumes": 12, "NVMe/TCP volumes": 12, "DPU devices": 12, "SR-IOV functions": 25,
	} {
		table := markdown.Section(page(t, "docs/errors.md"), "Messages of "+of)
		found := regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(table, -1)
		if len(found) < least {
			t.Fatalf("only %d messages of %s were found", len(found), of)
		}
		rows = append(rows, found...)
	}
	for _, row := range rows {
		for _, message := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			for part := range strings.SplitSeq(message[1], "…") {
				part = strings.TrimSpace(part)
				if !slices.ContainsFunc(s.texts, func(text string) bool { return strings.Contains(text, part) }) {
					t.Errorf("no text of the program contains %q, of the message %q", part, message[1])
				}
			}
		}
	}
}

// TestPagesLinkToConcepts checks that a reader of any page finds the terms.
func TestPagesLinkToConcepts(t *testing.T) {
	for _, path := range testkit.Value(filepath.Glob("*.md"))(t) {
		if path != "concepts.md" && !strings.Contains(page(t, "docs/"+path), "](concepts.md") {
			t.Errorf("%s does not link to concepts.md", path)
		}
	}
}

// pages returns the pages for users: those of the root directory and of docs.
func pages(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		for _, path := range testkit.Value(filepath.Glob(filepath.Join(testkit.Root(t), pattern)))(t) {
			names = append(names, testkit.Value(filepath.Rel(testkit.Root(t), path))(t))
		}
	}
	return names
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	block   = regexp.MustCompile("(?ms)^```.*?^```$")
)

// Relative links lead to an existing file and heading.
func TestLinks(t *testing.T) {
	for _, name := range pages(t) {
		for _, found := range link.FindAllStringSubmatch(page(t, name), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			to, anchor, _ := strings.Cut(found[1], "#")
			target := name
			if to != "" {
				target = filepath.Join(filepath.Dir(name), to)
			}
			if _, err := os.Stat(filepath.Join(testkit.Root(t), target)); err != nil {
				t.Errorf("%s links to %s: %v", name, found[1], err)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(page(t, target)), anchor) {
				t.Errorf("%s links to %s, and there is no such heading", name, found[1])
			}
		}
	}
}

// anchors returns the anchors of headings on the usual forges.
func anchors(page string) []string {
	var all []string
	for _, found := range heading.FindAllStringSubmatch(block.ReplaceAllString(page, ""), -1) {
		name := strings.ReplaceAll(strings.ToLower(found[1]), " ", "-")
		all = append(all, regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(name, ""))
	}
	return all
}
