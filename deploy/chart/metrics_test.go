package chart

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// pages are the docs with the rules of each component.
var pages = map[string]string{"csi": "operations.md", "fence": "fencing.md", "dpu": "dpu.md", "sriov": "sriov.md"}

var rulesBlock = regexp.MustCompile("(?s)```yaml\n(groups:\n.*?)```")

// The rules of the chart are those of the docs, to the letter.
func TestRulesAreThoseOfTheDocs(t *testing.T) {
	for name, page := range pages {
		text := read(t, "../../docs/"+page)
		blocks := rulesBlock.FindAllSubmatch(text, -1)
		if len(blocks) != 1 {
			t.Errorf("%s has %d blocks of rules, want one", page, len(blocks))
			continue
		}
		if !bytes.Equal(blocks[0][1], read(t, "rules/"+name+".yaml")) {
			t.Errorf("rules/%s.yaml is not what stands in docs/%s", name, page)
		}
	}
}

var metricName = regexp.MustCompile(`\bcleat_[a-z_]*[a-z]`)

// documented are the metrics of the tables in the docs, with the series of histograms.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		for line := range strings.Lines(string(read(t, file))) {
			if !strings.HasPrefix(line, "| `cleat_") {
				continue
			}
			first, _, _ := strings.Cut(line[1:], "|")
			for _, name := range metricName.FindAllString(first, -1) {
				names[name] = true
				if strings.HasSuffix(name, "_seconds") {
					names[name+"_bucket"] = true
				}
			}
		}
	}
	if len(names) < 50 {
		t.Fatalf("the docs have only %d metrics: the tables are not read", len(names))
	}
	return names
}

// Rules and dashboard ask only for what the docs list.
func TestMetricsAreReal(t *testing.T) {
	known := documented(t)
	known["cleat_fence"] = true // the group's name, and the nftables table
	files := []string{"dashboards/cleat.json"}
	for name := range pages {
		files = append(files, "rules/"+name+".yaml")
	}
	for _, file := range files {
		names := metricName.FindAllString(string(read(t, file)), -1)
		if len(names) < 4 {
			t.Errorf("%s has only %d metrics", file, len(names))
		}
		for _, name := range names {
			if !known[name] {
				t.Errorf("%s asks for %s, which the docs do not list", file, name)
			}
		}
	}
}

func TestDashboard(t *testing.T) {
	var d struct {
		Title      string
		UID        string
		Templating struct{ List []struct{ Name string } }
		Panels     []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ H, W, X, Y int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(read(t, "dashboards/cleat.json"), &d); err != nil {
		t.Fatal(err)
	}
	var ids []int
	for i, p := range d.Panels {
		if slices.Contains(ids, p.ID) || p.Title == "" {
			t.Errorf("panel %d %q", p.ID, p.Title)
		}
		ids = append(ids, p.ID)
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
		for _, q := range p.Targets {
			if strings.Count(q.Expr, "(") != strings.Count(q.Expr, ")") || strings.Count(q.Expr, "{") != strings.Count(q.Expr, "}") {
				t.Errorf("%s: %s", p.Title, q.Expr)
			}
		}
		for _, other := range d.Panels[:i] {
			a, b := p.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s lies on %s", p.Title, other.Title)
			}
		}
	}
	maps := of[corev1.ConfigMap](render(t, release{values: "metrics: {dashboard: {enabled: true}}", apis: apis}))
	if len(maps) != 1 || !json.Valid([]byte(maps[0].Data["cleat.json"])) || maps[0].Labels["grafana_dashboard"] != "1" {
		t.Errorf("the ConfigMap of the dashboard is %+v", maps)
	}
}

// The PrometheusRule has the rules of what is installed.
func TestPrometheusRule(t *testing.T) {
	for values, want := range map[string][]string{
		"": {"cleat"},
		"fence: {enabled: true, nodeSelector: {kubernetes.io/hostname: b}}": {"cleat", "cleat-fence"},
		theOthers: {"cleat", "cleat-dpu", "cleat-fence", "cleat-sriov"},
		"csi: {enabled: false}\nsriov: {daemon: {enabled: true}}": {"cleat-sriov"},
	} {
		values = strings.Replace(values, "prometheusRule: {enabled: true}", "prometheusRule: {enabled: true, labels: {a: b}}", 1)
		if !strings.Contains(values, "metrics:") {
			values += "\nmetrics: {prometheusRule: {enabled: true}}"
		}
		var got []string
		for _, o := range render(t, release{values: values, apis: apis}) {
			if o.Kind != "PrometheusRule" {
				continue
			}
			var rule struct {
				Spec struct {
					Groups []struct {
						Name  string
						Rules []struct{ Alert, Expr string }
					}
				}
			}
			if err := yaml.Unmarshal([]byte(o.text), &rule); err != nil {
				t.Fatal(err)
			}
			for _, g := range rule.Spec.Groups {
				got = append(got, g.Name)
				for _, r := range g.Rules {
					if r.Alert == "" || r.Expr == "" {
						t.Errorf("%s: %+v", g.Name, r)
					}
				}
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("groups %v, want %v, with\n%s", got, want, values)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
