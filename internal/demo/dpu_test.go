package demo

import (
	"slices"
	"strings"
	"testing"
)

func TestChapterOnDPUDevicesTellsWhatItIsAgainst(t *testing.T) {
	for _, c := range []struct {
		name    string
		dpu     DPU
		against string // empty: there is no chapter
		steps   []string
		leftOut string
	}{
		{"double", DPU{Double: "/double"}, "the test double of SNAP", []string{"dpu-start", "dpu-create", "dpu-kill", "dpu-restart", "dpu-delete"}, ""},
		{"socket", DPU{Socket: "/run/snap.sock"}, "the SNAP process on /run/snap.sock", []string{"dpu-start", "dpu-create", "dpu-delete"}, ""},
		{"neither", DPU{LeftOut: "for a reason"}, "", nil, "The chapter on DPU devices is left out: for a reason."},
		{"neither, and not asked for", DPU{}, "", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var names []string
			for i, s := range c.dpu.chapter() {
				names = append(names, s.name)
				if s.against != c.against {
					t.Errorf("step %s is against %q, want %q", s.name, s.against, c.against)
				}
				if s.claim != "" && s.proves() != "against "+c.against+": "+s.claim {
					t.Errorf("step %s proves %q", s.name, s.proves())
				}
				if (i == 0) != (s.chapter != "") || !strings.Contains(s.chapter+c.against, c.against) {
					t.Errorf("step %s is headed %q", s.name, s.chapter)
				}
			}
			if !slices.Equal(names, c.steps) || c.dpu.leftOut() != c.leftOut {
				t.Errorf("steps %q and %q, want %q and %q", names, c.dpu.leftOut(), c.steps, c.leftOut)
			}
		})
	}
	first := DPU{Double: "/double"}.chapter()[0]
	if !strings.Contains(first.chapter, "against the test double") || !strings.Contains(first.chapter, "moves no data") {
		t.Errorf("the first line of the chapter is %q", first.chapter)
	}
}
