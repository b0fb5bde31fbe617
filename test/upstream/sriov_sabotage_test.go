package upstream

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// replacement is a change of the product's source for one build.
type replacement struct {
	file     string // relative to the root of the tree
	old, new string // must occur once
}

// sriovSabotages are changes that kubelets do not tolerate, a test that must
// detect each, and its failure text.
var sriovSabotages = []struct {
	name    string
	left    []replacement
	test    string
	symptom string
}{
	{
		// A refused call does not harm a kubelet: that guard is omitted too.
		name: "the list is empty at once",
		left: []replacement{{
			file: "sriov/gate/resource_allocate.go",
			old:  "\tif reason != \"\" {\n\t\treturn &End",
			new:  "\tif reason == \"never\" {\n\t\treturn &End",
		}, {
			file: "sriov/gate/resource_list.go",
			old:  "case r.phase == Withdrawing:",
			new:  "case r.now.IsZero():",
		}, {
			file: "sriov/gate/resource_list.go",
			old:  "if len(r.calls) > 0 || e.unhealthySince.IsZero() {\n\t\treturn time.Time{}, false\n\t}",
			new:  "if !r.now.IsZero() {\n\t\treturn r.now, true\n\t}",
		}, {
			file: "sriov/gate/resource_list.go",
			old:  "if len(r.calls) > 0 {\n\t\t\treturn\n\t\t}\n\t\tif at := r.lastCall.Add(QuietPeriod); r.now.Before(at) {",
			new:  "if at := r.lastCall.Add(QuietPeriod); r.now.IsZero() {",
		}},
		test:    "^TestSriovWithdrawalDuringAllocate$/^disabled$",
		symptom: "the kubelet died",
	},
	{
		name: "the server stops for a pause",
		left: []replacement{{
			file: "sriov/gate/resource.go",
			old:  "\tr.phase, r.acknowledgement = Withdrawing, acknowledgement{}\n",
			new:  "\tr.stop()\n",
		}},
		test:    "^TestSriovNothingBeforeEnable$",
		symptom: "capacity 0, allocatable 0: the kubelet has map[example.com/vf:[4 0]]",
	},
}

// The tests detect changes that kubelets do not tolerate.
func TestSriovSabotage(t *testing.T) {
	t.Parallel()
	for _, s := range sriovSabotages {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // it builds a test
			defer cancel()
			cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-ldflags=-s -w", "-count=1", "-overlay", overlay(t, s.left), "-run", s.test, ".")
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), s.symptom) {
				t.Errorf("%s: %v; want a failure with %q in\n%s", s.test, err, s.symptom, out)
			}
		})
	}
}

// overlay writes a build overlay with replacements; the tree is not changed.
func overlay(t *testing.T, left []replacement) string {
	t.Helper()
	texts := map[string]string{}
	for _, r := range left {
		path, err := filepath.Abs(filepath.Join("..", "..", r.file))
		if err != nil {
			t.Fatal(err)
		}
		if texts[path] == "" {
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			texts[path] = string(source)
		}
		if n := strings.Count(texts[path], r.old); n != 1 {
			t.Fatalf("%s contains the text to replace %d times, want once: fix this test", r.file, n)
		}
		texts[path] = strings.Replace(texts[path], r.old, r.new, 1)
	}
	dir, replaced := t.TempDir(), map[string]string{}
	for path, text := range texts {
		replaced[path] = filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(replaced[path], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	description, err := json.Marshal(map[string]map[string]string{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, description, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
