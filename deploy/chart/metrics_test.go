package chart

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/test/markdown"
	"github.com/cleatproject/cleat/test/testkit"
)

// components are the files of alert rules.
var components = []string{"csi", "ceph", "nvme", "spdk", "fence", "takeover", "dpu", "sriov"}

// alert is a Prometheus rule.
type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T, component string) []alert {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alert } }
	testkit.Must(t, yaml.Unmarshal(read(t, "rules/"+component+".yaml"), &file))
	var all []alert
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// An alert has a severity, a summary, a description and a link to the docs.
func TestAlertsHaveRunbooks(t *testing.T) {
	const docs = "https://github.com/cleatproject/cleat/blob/main/docs/"
	for _, component := range components {
		for _, a := range alerts(t, component) {
			if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
				t.Errorf("%s has severity %q", a.Alert, a.Labels["severity"])
			}
			if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
				t.Errorf("%s has no summary or no description: %v", a.Alert, a.Annotations)
			}
			page, anchor, _ := strings.Cut(strings.TrimPrefix(a.Annotations["runbook_url"], docs), "#")
			if !strings.HasPrefix(a.Annotations["runbook_url"], docs) || !hasHeading(t, page, anchor) {
				t.Errorf("%s links to %q, which is not a heading of the docs", a.Alert, a.Annotations["runbook_url"])
			}
		}
	}
}

func hasHeading(t *testing.T, page, anchor string) bool {
	t.Helper()
	for line := range strings.Lines(string(read(t, "../../docs/"+page))) {
		text, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		name := strings.ReplaceAll(strings.ToLower(strings.TrimSpace(text)), " ", "-")
		if ok && strings.HasPrefix(line, "#") && regexp.MustCompile("[^a-z0-9_-]").ReplaceAllString(name, "") == anchor {
			return true
		}
	}
	return false
}

// conditionMetrics are the metrics of the conditions of a section of
// docs/monitoring.md, by the words of its column "of"; "" is for a table without
// that column.
var conditionMetrics = map[string]map[string]string{
	"volumes and pools": {"volume": "cleat_volume_health", "storage": "cleat_pool_health", "node": "cleat_node_storage_health"},
	"Ceph volumes":      {"": "cleat_ceph_health"},
	"NVMe/TCP volumes":  {"": "cleat_volume_health"},
	"SPDK volumes":      {"volume": "cleat_volume_health", "storage": "cleat_spdk_health"},
}

// Each condition in the docs has an alert, for each of its statuses and metrics.
// docs.TestMetricsAndReasons holds the docs to the code.
func TestConditionsHaveAlerts(t *testing.T) {
	silent := map[string]string{"BeingCopied": "progress", "LvolMissing": "of no volume in use, so without a metric"}
	var all []alert
	for _, component := range components {
		all = append(all, alerts(t, component)...)
	}
	count := 0
	for of, metrics := range conditionMetrics {
		_, table, _ := strings.Cut(markdown.Section(string(read(t, "../../docs/monitoring.md")), "Conditions of "+of), "\n| reason | s")
		table, _, _ = strings.Cut(table, "\n\n")
		for _, row := range strings.Split(strings.TrimSpace(table), "\n")[2:] {
			cells := strings.Split(row, "|")
			for _, reason := range regexp.MustCompile("[A-Z][A-Za-z]+").FindAllString(cells[1], -1) {
				for _, status := range regexp.MustCompile("NOTICE|DEGRADED|INACCESSIBLE|DATA_LOSS").FindAllString(cells[2], -1) {
					for word, metric := range metrics {
						if word != "" && !strings.Contains(cells[3], word) {
							continue
						}
						count++
						labels := map[string]string{"reason": reason, "status": status}
						if silent[reason] == "" && !slices.ContainsFunc(all, func(a alert) bool { return a.selects(metric, labels) }) {
							t.Errorf("conditions of %s: %s{reason=%q, status=%q} has no alert", of, metric, reason, status)
						}
					}
				}
			}
		}
	}
	if count < 45 {
		t.Errorf("found only %d series of conditions", count)
	}
}

var (
	selector = regexp.MustCompile(`(cleat_[a-z_]+)\{([^}]*)\}`)
	matcher  = regexp.MustCompile(`(\w+)(=~|!=|=)"([^"]*)"`)
)

// selects reports whether an alert fires for a series of 1.
func (a alert) selects(metric string, labels map[string]string) bool {
	for _, s := range selector.FindAllStringSubmatch(a.Expr, -1) {
		ok := s[1] == metric
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			equal := regexp.MustCompile("^(" + m[3] + ")$").MatchString(labels[m[1]])
			ok = ok && equal == (m[2] != "!=")
		}
		if ok {
			return true
		}
	}
	return false
}

// The alert for a missing driver uses labels that both monitors set.
func TestDriverGoneAlert(t *testing.T) {
	gone := alerts(t, "csi")[0]
	for _, part := range []string{"count by (node)", `up{component=~"csi-.+"} == 0`, `absent(up{component=~"csi-.+"})`} {
		if !strings.Contains(gone.Expr, part) {
			t.Errorf("%s has no %s: %s", gone.Alert, part, gone.Expr)
		}
	}
	want := map[string]string{"node": "__meta_kubernetes_pod_node_name", "component": "__meta_kubernetes_pod_label_app_kubernetes_io_component"}
	for kind, values := range map[string]string{"ServiceMonitor": theOthers, "PodMonitor": accounts} {
		labels := map[string]string{}
		for _, o := range render(t, release{values: values, apis: apis}) {
			if !strings.HasSuffix(o.Kind, "Monitor") {
				continue
			}
			if o.Kind != kind || o.Labels["release"] != "prometheus" {
				t.Errorf("%v has labels %v", o, o.Labels)
			}
			var monitor struct {
				Spec struct{ Endpoints, PodMetricsEndpoints []endpoint }
			}
			testkit.Must(t, yaml.Unmarshal([]byte(o.text), &monitor))
			all := map[string][]endpoint{"ServiceMonitor": monitor.Spec.Endpoints, "PodMonitor": monitor.Spec.PodMetricsEndpoints}[kind]
			for _, r := range all[0].Relabelings {
				labels[r.TargetLabel] = strings.Join(r.SourceLabels, " ")
			}
		}
		if !maps.Equal(labels, want) {
			t.Errorf("the %s sets the labels %v, want %v", kind, labels, want)
		}
	}
}

type endpoint struct {
	Relabelings []struct {
		SourceLabels []string
		TargetLabel  string
	}
}

var metricName = regexp.MustCompile(`\bcleat_[a-z_]*[a-z]`)

// documented returns the metrics in the tables of the docs, with the series of
// histograms.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files := testkit.Value(filepath.Glob("../../docs/*.md"))(t)
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
		t.Fatalf("found only %d metrics in the docs", len(names))
	}
	return names
}

// Rules and dashboard use only documented metrics.
func TestRulesAndDashboardUseDocumentedMetrics(t *testing.T) {
	known := documented(t)
	known["cleat_fence"] = true // the rule group's name, and the nftables table
	files := []string{"dashboards/cleat.json"}
	for _, name := range components {
		files = append(files, "rules/"+name+".yaml")
	}
	for _, file := range files {
		names := metricName.FindAllString(string(read(t, file)), -1)
		if len(names) < 4 {
			t.Errorf("%s uses only %d metrics", file, len(names))
		}
		for _, name := range names {
			if !known[name] {
				t.Errorf("%s uses %s, which the docs do not list", file, name)
			}
		}
	}
}

// panel is a panel of the dashboard.
type panel struct {
	ID      int
	Type    string
	Title   string
	GridPos struct{ H, W, X, Y int }
	Targets []struct{ Expr string }
}

func (p panel) shows(metric string) bool {
	return slices.ContainsFunc(p.Targets, func(q struct{ Expr string }) bool { return strings.HasPrefix(q.Expr, metric+"{") })
}

func TestDashboard(t *testing.T) {
	var d struct {
		Title      string
		UID        string
		Templating struct{ List []struct{ Name string } }
		Panels     []panel
	}
	testkit.Must(t, json.Unmarshal(read(t, "dashboards/cleat.json"), &d))
	var ids []int
	for i, p := range d.Panels {
		if slices.Contains(ids, p.ID) || p.Title == "" {
			t.Errorf("panel %d %q", p.ID, p.Title)
		}
		ids = append(ids, p.ID)
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s has no query", p.Title)
		}
		for _, q := range p.Targets {
			if strings.Count(q.Expr, "(") != strings.Count(q.Expr, ")") || strings.Count(q.Expr, "{") != strings.Count(q.Expr, "}") {
				t.Errorf("%s: %s", p.Title, q.Expr)
			}
		}
		for _, other := range d.Panels[:i] {
			a, b := p.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s overlaps %s", p.Title, other.Title)
			}
		}
	}
	for name := range documented(t) {
		if strings.HasSuffix(name, "_health") && !slices.ContainsFunc(d.Panels, func(p panel) bool { return p.Title == "What is wrong" && p.shows(name) }) {
			t.Errorf("What is wrong does not show %s", name)
		}
		if strings.HasPrefix(name, "cleat_takeover_") && !slices.ContainsFunc(d.Panels, func(p panel) bool {
			return slices.ContainsFunc(p.Targets, func(q struct{ Expr string }) bool { return strings.Contains(q.Expr, name+"{") })
		}) {
			t.Errorf("no panel shows %s", name)
		}
	}
	maps := of[corev1.ConfigMap](render(t, release{values: "metrics: {dashboard: {enabled: true}}", apis: apis}))
	if len(maps) != 1 || !json.Valid([]byte(maps[0].Data["cleat.json"])) || maps[0].Labels["grafana_dashboard"] != "1" {
		t.Errorf("the ConfigMap of the dashboard is %+v", maps)
	}
}

// The PrometheusRule has the rules of the installed components.
func TestPrometheusRule(t *testing.T) {
	for values, want := range map[string][]string{
		"": {"cleat"},
		"fence: {enabled: true, nodeSelector: {kubernetes.io/hostname: b}}": {"cleat", "cleat-fence"},
		theOthers:                          {"cleat", "cleat-dpu", "cleat-fence", "cleat-sriov", "cleat-takeover"},
		cephMode:                           {"cleat", "cleat-ceph", "cleat-fence"},
		variety["ceph, no sidecars"]:       {"cleat", "cleat-ceph"},
		cephFSMode:                         {"cleat", "cleat-ceph", "cleat-fence"},
		noneMode:                           {"cleat", "cleat-nvme"},
		spdkMode:                           {"cleat", "cleat-fence", "cleat-nvme", "cleat-spdk"},
		variety["spdk, nothing published"]: {"cleat", "cleat-nvme", "cleat-spdk"},
		hostCluster:                        {"cleat", "cleat-fence", "cleat-spdk"},
		dpuCluster:                         {"cleat-dpu"},
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
			testkit.Must(t, yaml.Unmarshal([]byte(o.text), &rule))
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
	text := testkit.Value(os.ReadFile(path))(t)
	return text
}
