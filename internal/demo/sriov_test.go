package demo

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestChapterOnSRIOVFunctionsTellsWhatItIsAgainst(t *testing.T) {
	all := SRIOV{Double: "/double"}.chapter()
	for i, s := range all {
		if s.against != sriovAgainst || s.claim == "" || s.proves() != "against a machine of files and a double of the kubelet: "+s.claim {
			t.Errorf("step %s is against %q and proves %q", s.name, s.against, s.proves())
		}
		if (i == 0) != (s.chapter != "") || !strings.HasPrefix(s.name, "sriov-") {
			t.Errorf("step %s is headed %q", s.name, s.chapter)
		}
	}
	if first := all[0].chapter; !strings.Contains(first, sriovAgainst) || !strings.Contains(first, "no function and no pod is") {
		t.Errorf("the first line of the chapter is %q", first)
	}
}

func TestChaptersThatAreLeftOut(t *testing.T) {
	for want, c := range map[string]Config{
		"": {},
		"The chapter on SR-IOV functions is left out: for a reason.":                                              {DPU: DPU{Double: "/double"}, SRIOV: SRIOV{LeftOut: "for a reason"}},
		"The chapter on DPU devices is left out: one.\nThe chapter on SR-IOV functions is left out: for another.": {DPU: DPU{LeftOut: "one"}, SRIOV: SRIOV{LeftOut: "for another"}},
		"The chapter on DPU devices is left out: one.":                                                            {DPU: DPU{LeftOut: "one"}, SRIOV: SRIOV{Double: "/double"}},
	} {
		if got := c.leftOut(); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
		if n := len(c.SRIOV.chapter()); (n > 0) != (c.SRIOV.Double != "") {
			t.Errorf("%+v: %d steps", c, n)
		}
	}
}

func TestNodeStateIsWhole(t *testing.T) {
	w := &walk{dir: t.TempDir()}
	if err := os.Mkdir(w.sriovPath(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.wantFunctions(2, 6); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(w.nodeState())
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Metadata struct{ Generation int }
		Spec     struct {
			Interfaces []struct {
				PCIAddress string
				NumVFs     int
				VFGroups   []struct{ VFRange string }
			}
		}
	}
	if err := yaml.Unmarshal(text, &s); err != nil || s.Metadata.Generation != 2 || len(s.Spec.Interfaces) != 1 {
		t.Fatalf("%v: %+v\n%s", err, s, text)
	}
	if i := s.Spec.Interfaces[0]; i.PCIAddress != sriovPF || i.NumVFs != 6 || len(i.VFGroups) != 1 || i.VFGroups[0].VFRange != "0-5" {
		t.Errorf("%+v", i)
	}
}

func TestCheckChanges(t *testing.T) {
	a := nodeAnswer{Functions: make([]string, 6), Changes: []nodeChange{{NumVFs: 0}, {NumVFs: 8}, {NumVFs: 0, Capacity: 8}, {NumVFs: 6}}}
	offered := a
	offered.Changes = []nodeChange{{NumVFs: 0, Offered: 1}}
	for _, c := range []struct {
		name   string
		answer nodeAnswer
		since  int
		want   []int
		err    string
	}{
		{"all", a, 0, []int{0, 8, 0, 6}, ""},
		{"the last ones", a, 2, []int{0, 6}, ""},
		{"none since", a, 4, nil, ""},
		{"one too many", a, 1, []int{0, 6}, "was told to have 8, 0, 6"},
		{"one too few", a, 2, []int{0, 6, 0}, "was told to have 0, 6"},
		{"functions that stay", nodeAnswer{Functions: make([]string, 4), Changes: a.Changes}, 2, []int{0, 6}, "has 4"},
		{"offered meanwhile", offered, 0, []int{0}, "offered 1 functions"},
	} {
		err := checkChanges(c.answer, c.since, c.want...)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
	}
}
