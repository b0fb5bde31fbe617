package errs_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cleatproject/cleat/errs"
)

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"":                             `""`,
		"a\x1bb":                       `"a\x1bb"`,
		strings.Repeat("a", 128):       `"` + strings.Repeat("a", 128) + `"`,
		strings.Repeat("a", 129):       `"` + strings.Repeat("a", 128) + `"… (129 bytes)`,
		strings.Repeat("a", 127) + "é": `"` + strings.Repeat("a", 127) + `"… (129 bytes)`,
	} {
		if got := errs.Quote(in); got != want {
			t.Errorf("Quote(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestClip(t *testing.T) {
	for _, c := range []struct {
		in    string
		limit int
		want  string
	}{
		{"short", 5, "short"},
		{"longer", 5, "lo…"},
		{"aéb and more", 5, "a…"},
		{"a\xffb", 10, "a\uFFFDb"},
		{"anything", 2, "…"},
	} {
		if got := errs.Clip(c.in, c.limit); got != c.want || !utf8.ValidString(got) {
			t.Errorf("Clip(%q, %d) = %q, want %q", c.in, c.limit, got, c.want)
		}
	}
}
