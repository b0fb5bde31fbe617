package freeze

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseRequest(t *testing.T) {
	want := request{members: 3, bound: 1500 * time.Millisecond}
	got, err := parseRequest(want.String())
	if err != nil || got != want {
		t.Errorf("parseRequest(%q) = %+v, %v", want, got, err)
	}
	for _, line := range []string{"", "\n", "freeze\n", "freeze 0 for 5 ms\n", "freeze -1 for 5 ms\n", "freeze 1 for 0 ms\n",
		"freeze 1 for 99999999999 ms\n", "freeze 99999999 for 5 ms\n", "freeze 1 for 5 s\n", strings.Repeat("x", 1000)} {
		if o, err := parseRequest(line); err == nil {
			t.Errorf("parseRequest(%.40q) = %+v, want an error", line, o)
		}
	}
}

func TestMaybeFrozenFromReports(t *testing.T) {
	for _, c := range []struct {
		lines string
		want  []int // of three members
	}{
		{"", nil}, // writing back: nothing is frozen yet
		{"freezing", []int{0}},
		{"freezing|frozen 0", []int{0, 1}},
		{"freezing|frozen 0|refused 1 16", []int{0}}, // a foreign freeze of 1 is not ended
		{"freezing|frozen 0|refused 1 16|thawed 0 0", nil},
		{"freezing|frozen 0|frozen 1|frozen 2|ready", []int{0, 1, 2}},
		{"freezing|frozen 0|frozen 1|frozen 2|ready|thawed 2 0", []int{0, 1}},
		{"freezing|frozen 0|frozen 1|frozen 2|ready|thawed 2 5", []int{0, 1, 2}}, // the kernel would not
		{"freezing|frozen 0|frozen 1|frozen 2|ready|thawed 2 22|thawed 1 0|thawed 0 0|end", nil},
		{"freezing|end", nil},
		{"nonsense|frozen x|frozen 1|freezing", []int{0}},
	} {
		s := newProgress()
		for line := range strings.SplitSeq(c.lines, "|") {
			s.handle(line)
		}
		var got []int
		for i := range 3 {
			if s.maybeFrozen(i) {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("after %q: maybe frozen %v, want %v", c.lines, got, c.want)
		}
	}
}

func TestReportsGiveTheCause(t *testing.T) {
	s := newProgress()
	for _, line := range []string{"freezing", "frozen 0", "refused 1 95", "thawed 0 22", "expired", "end"} {
		s.handle(line)
	}
	if s.refused != 1 || s.errno != unix.EOPNOTSUPP || s.thawedByOthers != 0 || !s.expired || !s.ended {
		t.Errorf("progress %+v", s)
	}
	if word := s.handle("ready now"); word != "ready" {
		t.Errorf("handled %q", word)
	}
	if word := s.handle("ready"); word != "" {
		t.Errorf("a second ready was handled as %q", word)
	}
}
