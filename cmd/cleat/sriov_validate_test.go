package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/test/testkit"
)

// sriovFile writes a file and changes to its directory, for a short name.
func sriovFile(t *testing.T, name, text string) {
	t.Helper()
	dir := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	t.Chdir(dir)
}

const wrongSriovConfig = `{
  "resourceList": [
    {"resourceName": "a", "selectors": [{"pfName": ["eth0"]}]},
    {"resourceName": "b", "selectors": {"vendors": ["0x8086"], "pfNames": ["eth0#3-x"]}},
    {"resourceName": "c", "selectors": [{}], "resourceNam": ""}
  ]
}
`

// All mistakes are reported at once, with position and correction.
func TestSriovValidateMistakes(t *testing.T) {
	out, notices, err := runSriov(t, wrongSriovConfig, "validate", "-")
	if err == nil || err.Error() != "standard input: 4 mistakes" || notices != "" {
		t.Errorf("%v, %s", err, notices)
	}
	golden(t, "sriov_validate.txt", out)
}

// A name that the kubelet refuses is a mistake: its resource would be left out.
func TestSriovValidateRefusedName(t *testing.T) {
	out, _, err := runSriov(t, `{"resourceList": [{"resourceName": "bad-", "selectors": [{"vendors": ["8086"]}]}]}`, "validate", "-")
	if err == nil || err.Error() != "standard input: 1 mistake" ||
		!strings.Contains(out, `standard input:1:36: mistake: resourceList[0].resourceName: the kubelet refuses "intel.com/bad-"`) || !strings.Contains(out, "the resource is left out") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// Without ddptool only some drivers report profiles.
func TestSriovValidateDDPProfiles(t *testing.T) {
	const text = `{"resourceList": [{"resourceName": "a", "selectors": [{"ddpProfiles": ["GTP"]}]}]}`
	const says = "warning: resourceList[0].selectors[0].ddpProfiles: the program ddptool is not installed here"
	t.Setenv("PATH", t.TempDir())
	if out, _, err := runSriov(t, text, "validate", "-"); err != nil || !strings.Contains(out, says) {
		t.Errorf("%v:\n%s", err, out)
	}
	putProgram(t, t.TempDir(), "ddptool", "exit 8\n")
	if out, _, err := runSriov(t, text, "validate", "-"); err != nil || strings.Contains(out, "ddptool") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// The argument overrides the environment.
func TestSriovValidateEnvironment(t *testing.T) {
	sriovFile(t, "config.json", sriovTestConfig)
	t.Setenv("CLEAT_CONFIG_FILE", "/nonexistent/config.json")
	if _, _, err := runSriov(t, "", "validate", "config.json"); err != nil {
		t.Error(err)
	}
	if _, _, err := runSriov(t, "", "validate"); err == nil || !strings.Contains(err.Error(), "/nonexistent/config.json") {
		t.Errorf("%v", err)
	}
}

func TestSriovValidateRight(t *testing.T) {
	sriovFile(t, "config.json", sriovTestConfig)
	out, notices, err := runSriov(t, "", "validate", "--config-file", "config.json", "--resource-prefix", "x.org")
	if err != nil || notices != "" {
		t.Errorf("%v, %s", err, notices)
	}
	want := `config.json: no mistake, 0 warnings, 6 resources
RESOURCE           DEVICE TYPE    SELECTORS
x.org/dpdk         netDevice      1
example.com/rdma   netDevice      1
x.org/rest         netDevice      2
x.org/gone         netDevice      1
x.org/sf           auxNetDevice   1
x.org/fec          accelerator    1
`
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSriovValidateDocument(t *testing.T) {
	out, _, err := runSriov(t, wrongSriovConfig, "validate", "-", "-o", "json")
	if err == nil {
		t.Error("mistakes are no error")
	}
	var all []sriovValidation
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 {
		t.Fatalf("%v in %s", err, out)
	}
	v := all[0]
	first := strictjson.Problem{Kind: "unknown-key", Path: "resourceList[0].selectors[0].pfName", Line: 3, Column: 42, Key: "pfName", Nearest: "pfNames",
		Text: `there is no key "pfName"; did you mean "pfNames"? The key is ignored`}
	if diff := cmp.Diff(first, v.Mistakes[0]); diff != "" || len(v.Mistakes) != 4 || v.Valid || v.Source != "standard input" {
		t.Errorf("%+v (-want +got):\n%s", v, diff)
	}
	out, _, err = runSriov(t, `{"resourceList": []}`, "validate", "-", "-o", "json")
	if want := `"mistakes": [],`; err != nil || !strings.Contains(out, want) || !strings.Contains(out, `"resources": []`) || !strings.Contains(out, "nothing-to-do") {
		t.Errorf("%v, no %q in %s", err, want, out)
	}
}

// A ConfigMap's text is checked in its place, so that lines and columns are
// those of the manifest.
func TestSriovValidateConfigMap(t *testing.T) {
	indented := func(by, text string) string {
		return by + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+by) + "\n"
	}
	const head = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: sriovdp-config\ndata:\n"
	const mistake = `resourceList[0].selectors[0].pfName: there is no key "pfName"`
	quoted := fmt.Sprintf("%q", wrongSriovConfig)
	for name, c := range map[string]struct{ text, want string }{
		"block":    {head + "  config.json: |\n" + indented("    ", wrongSriovConfig), "standard input:9:46: mistake: " + mistake},
		"second":   {"kind: Secret\n---\n" + head + "  config.json: |\n" + indented("    ", wrongSriovConfig), "standard input:11:46: mistake: " + mistake},
		"quoted":   {head + "  config.json: " + quoted + "\n", "standard input, key config.json of ConfigMap sriovdp-config:3:42: mistake: " + mistake},
		"JSON":     {`{"kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"config.json": ` + quoted + `}}`, "standard input, key config.json of ConfigMap x:3:42: mistake: " + mistake},
		"by nodes": {head + "  worker-1: |\n" + indented("    ", sriovTestConfig) + "  worker-2: |\n" + indented("    ", wrongSriovConfig), "standard input, key worker-2 of ConfigMap sriovdp-config:18:46: mistake: " + mistake},
		"beside":   {head + "  a: |\n    {\n    }\n  config.json: |\n" + indented("    ", wrongSriovConfig), "standard input:12:46: mistake: " + mistake},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := runSriov(t, c.text, "validate", "-")
			if err == nil || !strings.HasSuffix(err.Error(), "4 mistakes") || !strings.Contains(out, c.want) {
				t.Errorf("%v, no %q in\n%s", err, c.want, out)
			}
		})
	}
}

func TestSriovValidateErrors(t *testing.T) {
	sriovFile(t, "config.json", sriovTestConfig)
	for name, c := range map[string]struct {
		stdin string
		args  []string
		want  string
	}{
		"no file":          {"", []string{"nothing.json"}, "nothing.json: no such file or directory (--config-file)"},
		"directory":        {"", []string{"."}, "is a directory"},
		"two":              {"", []string{"config.json", "--config-file", "config.json"}, "mutually exclusive"},
		"another manifest": {"kind: DaemonSet\n", []string{"-"}, "is a manifest of kind DaemonSet, want a config.json or a ConfigMap"},
		"empty ConfigMap":  {"kind: ConfigMap\nmetadata: {name: x}\n", []string{"-"}, `the ConfigMap "x" has no data`},
		"large":            {strings.Repeat(" ", maxSriovManifest+1), []string{"-"}, "has more than 4194304 bytes"},
		"empty":            {"", []string{"-"}, "standard input: 1 mistake"},
	} {
		if _, _, err := runSriov(t, c.stdin, append([]string{"validate"}, c.args...)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// What a file says cannot steer a terminal.
func TestSriovValidateHostile(t *testing.T) {
	sriovFile(t, "c\x1b[31m.json", `{"resourceList": [{"resourceName": "a`+"\u009b"+`31m", "\u001b]0;x\u0007": 1, "selectors": [{"vendors": ["\u001b[2J"]}]}]}`)
	out, _, err := runSriov(t, "", "validate", "c\x1b[31m.json")
	if err == nil || strings.ContainsAny(out+err.Error(), "\x1b\u009b\x07") {
		t.Errorf("%q, %q", err, out)
	}
}
