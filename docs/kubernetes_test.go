package docs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	tables "github.com/cleatproject/cleat/internal/markdown"
	"github.com/cleatproject/cleat/test/kubernetes/programs"
	"github.com/cleatproject/cleat/test/markdown"
	"github.com/cleatproject/cleat/test/testkit"
)

// kubernetesPages are for cluster users. test/kubernetes checks what needs a
// cluster.
var kubernetesPages = []string{"README.md", "docs/start-local.md", "docs/start-ceph.md", "docs/start-spdk.md", "docs/install.md", "docs/ceph.md", "docs/nvme.md", "docs/spdk.md", "docs/day2.md", "docs/troubleshooting.md", "docs/monitoring.md"}

// ofKubernetes are flags of kubectl, Helm and the sidecars; test/kubernetes
// checks that they exist.
var ofKubernetes = []string{
	"api-versions", "create-namespace", "delete-emptydir-data", "dry-run", "enable-distributed-snapshotting", "field-selector",
	"for", "force", "from-file", "ignore-daemonsets", "kube-api-capacity-qps", "namespace", "previous", "replicas", "reset-then-reuse-values", "reuse-values", "root-dir", "set", "show-labels",
	"timeout", "type", "values", "version", "wait",
}

var separator = regexp.MustCompile(`(?m)^---\n`)

// Objects in the pages have only fields of their kind.
func TestObjects(t *testing.T) {
	kinds := map[string]func() any{
		"v1/PersistentVolumeClaim":       func() any { return new(corev1.PersistentVolumeClaim) },
		"v1/PersistentVolume":            func() any { return new(corev1.PersistentVolume) },
		"v1/Pod":                         func() any { return new(corev1.Pod) },
		"v1/Secret":                      func() any { return new(corev1.Secret) },
		"v1/ConfigMap":                   func() any { return new(corev1.ConfigMap) },
		"apps/v1/Deployment":             func() any { return new(appsv1.Deployment) },
		"storage.k8s.io/v1/StorageClass": func() any { return new(storagev1.StorageClass) },
		// Objects of other projects are checked by the API server in
		// test/kubernetes.
		"snapshot.storage.k8s.io/v1/VolumeSnapshot":         func() any { return new(map[string]any) },
		"snapshot.storage.k8s.io/v1/VolumeSnapshotClass":    func() any { return new(map[string]any) },
		"csiaddons.openshift.io/v1alpha1/NetworkFence":      func() any { return new(map[string]any) },
		"csiaddons.openshift.io/v1alpha1/NetworkFenceClass": func() any { return new(map[string]any) },
	}
	count := 0
	for _, name := range kubernetesPages {
		for _, block := range markdown.Blocks(page(t, name), "yaml") {
			if !strings.Contains(block, "apiVersion:") {
				continue
			}
			for _, part := range separator.Split(block, -1) {
				count++
				var of metav1.TypeMeta
				if err := yaml.Unmarshal([]byte(part), &of); err != nil {
					t.Errorf("%s: %v in\n%s", name, err, part)
					continue
				}
				empty, known := kinds[of.APIVersion+"/"+of.Kind]
				if !known {
					t.Errorf("%s: %s/%s is a kind unknown to this test", name, of.APIVersion, of.Kind)
				} else if err := yaml.UnmarshalStrict([]byte(part), empty()); err != nil {
					t.Errorf("%s: %v in\n%s", name, err, part)
				}
			}
		}
	}
	if count < 10 {
		t.Errorf("only %d objects were found", count)
	}
}

// Values in the pages are values of the chart, which renders with them.
func TestChartValues(t *testing.T) {
	var log bytes.Buffer
	set, err := programs.Build(t.Context(), &log, "helm")
	if err != nil {
		t.Fatalf("%v\n%s", err, log.Bytes())
	}
	count := 0
	for _, name := range kubernetesPages {
		for _, block := range markdown.Blocks(page(t, name), "yaml") {
			if strings.Contains(block, "apiVersion:") || strings.HasPrefix(block, "scrape_configs:") || strings.HasPrefix(block, "machine:") || strings.HasPrefix(block, "targets:") {
				continue // of Prometheus, of Talos, of --spdk-config
			}
			count++
			if out, err := render(t, set, block); err != nil {
				t.Errorf("%s: %v: %s of the values\n%s", name, err, out, block)
			}
		}
	}
	if count < 10 {
		t.Errorf("only %d blocks of values were found", count)
	}
	if out, err := render(t, set, "csi: {pool: {imag: 1GiB}}"); err == nil || !strings.Contains(out, "imag") {
		t.Errorf("a misspelt value: %v: %s", err, out)
	}
}

// render renders the chart for a cluster with all optional APIs.
func render(t *testing.T, set programs.Set, values string) (string, error) {
	t.Helper()
	args := []string{"template", "cleat", "deploy/chart", "--namespace", "cleat-system", "--kube-version", "1.37.0", "--values", "-"}
	for _, api := range []string{"snapshot.storage.k8s.io/v1", "groupsnapshot.storage.k8s.io/v1", "csiaddons.openshift.io/v1alpha1", "monitoring.coreos.com/v1"} {
		args = append(args, "--api-versions="+api)
	}
	cmd := exec.CommandContext(t.Context(), set.Path("helm"), args...)
	cmd.Dir = testkit.Root(t)
	cmd.Env = append(os.Environ(), "GOGC=off", "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	cmd.Stdin = strings.NewReader(values)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return errs.String(), err
	}
	return out.String(), nil
}

// Quoted messages of driver and chart exist in their texts.
func TestMessagesOnKubernetes(t *testing.T) {
	says := map[string][]string{"driver": readSource(t).texts}
	templates := testkit.Value(filepath.Glob(filepath.Join(testkit.Root(t), "deploy/chart/templates/*")))(t)
	for _, path := range templates {
		text := testkit.Value(os.ReadFile(path))(t)
		says["chart"] = append(says["chart"], string(text))
	}
	count := map[string]int{}
	for _, row := range tables.Rows(page(t, "docs/troubleshooting.md")) {
		texts := says[row["who"]]
		if texts == nil {
			continue
		}
		for _, message := range tables.Spans(row["message"]) {
			for _, part := range tables.Parts(message) {
				count[row["who"]]++
				if !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, part) }) {
					t.Errorf("the %s does not contain %q, of the message %q", row["who"], part, message)
				}
			}
		}
	}
	if count["driver"] < 20 || count["chart"] < 3 {
		t.Errorf("only these messages were found: %v", count)
	}
}

// Every alert of the chart is documented, and every documented alert exists.
func TestAlerts(t *testing.T) {
	var alerts []string
	files := testkit.Value(filepath.Glob(filepath.Join(testkit.Root(t), "deploy/chart/rules/*.yaml")))(t)
	for _, path := range files {
		text := testkit.Value(os.ReadFile(path))(t)
		var rules struct {
			Groups []struct{ Rules []struct{ Alert string } }
		}
		testkit.Must(t, yaml.Unmarshal(text, &rules))
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				alerts = append(alerts, r.Alert)
			}
		}
	}
	var documented []string
	for _, row := range tables.Rows(page(t, "docs/monitoring.md")) {
		if row["alert"] != "" {
			documented = append(documented, strings.Trim(row["alert"], "`"))
		}
	}
	slices.Sort(alerts)
	slices.Sort(documented)
	if !slices.Equal(alerts, documented) {
		t.Errorf("the rules have %v, the page %v", alerts, documented)
	}
}

// docs/install.md lists all manifests.
func TestManifestsAreListed(t *testing.T) {
	files := testkit.Value(filepath.Glob(filepath.Join(testkit.Root(t), "deploy/manifests/*.yaml")))(t)
	text := markdown.Section(page(t, "docs/install.md"), "Install")
	for _, path := range files {
		if name := filepath.Base(path); !strings.HasSuffix(name, ".values.yaml") && !strings.Contains(text, "`"+name+"`") {
			t.Errorf("docs/install.md does not list %s", name)
		}
	}
}

// Braces, brackets and quotes of the job files are balanced. Nomad parses the
// HCL itself.
func TestHCL(t *testing.T) {
	blocks := markdown.Blocks(page(t, "docs/nomad.md"), "hcl")
	if len(blocks) < 4 {
		t.Fatalf("only %d blocks were found", len(blocks))
	}
	for _, block := range blocks {
		var open []rune
		closes := map[rune]rune{'}': '{', ']': '[', ')': '('}
		for line := range strings.Lines(block) {
			line, _, _ = strings.Cut(line, "# ")
			if strings.Count(line, `"`)%2 != 0 {
				t.Errorf("a quote is left open: %s", line)
			}
			for _, r := range line {
				switch opened := closes[r]; {
				case strings.ContainsRune("{[(", r):
					open = append(open, r)
				case opened != 0 && (len(open) == 0 || open[len(open)-1] != opened):
					t.Fatalf("%c closes nothing in %s of\n%s", r, line, block)
				case opened != 0:
					open = open[:len(open)-1]
				}
			}
		}
		if len(open) > 0 {
			t.Errorf("%c is left open in\n%s", open[len(open)-1], block)
		}
	}
}

var (
	upgrade  = regexp.MustCompile("helm upgrade cleat [^`\n]*")
	modprobe = regexp.MustCompile("modprobe ([^`|;\n]*)")
)

// Upgrades use --reset-then-reuse-values: --reuse-values omits the defaults of
// new values, and without a flag the user's values are lost.
func TestUpgradesKeepValues(t *testing.T) {
	count := 0
	for _, name := range append(slices.Clone(kubernetesPages), "docs/upgrade.md", "deploy/chart/README.md") {
		for _, line := range upgrade.FindAllString(page(t, name), -1) {
			count++
			if !strings.Contains(line, " --reset-then-reuse-values") {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
	if count < 4 {
		t.Errorf("only %d calls were found", count)
	}
}

// Without -a modprobe treats all words but the first as module parameters.
func TestModules(t *testing.T) {
	count := 0
	for _, name := range pages(t) {
		for _, found := range modprobe.FindAllStringSubmatch(page(t, name), -1) {
			words := strings.Fields(found[1])
			modules := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return strings.HasPrefix(w, "-") })
			if count++; len(modules) > 1 && !slices.Contains(words, "-a") {
				t.Errorf("%s: modprobe %s asks for %s alone", name, found[1], modules[0])
			}
		}
	}
	if count == 0 {
		t.Error("no page names modprobe")
	}
}
