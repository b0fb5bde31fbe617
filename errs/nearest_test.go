package errs_test

import (
	"testing"

	"github.com/cleatproject/cleat/errs"
)

func TestNearest(t *testing.T) {
	candidates := []string{"endpoint", "engine", "pool", "pool-image", "log-format"}
	for word, want := range map[string]string{
		"endpiont": "endpoint", "enpoint": "endpoint", "pool_image": "pool-image", "poool": "pool", "logformat": "log-format",
		"engine": "engine", "xyzzy": "", "": "", "größe": "",
	} {
		if got := errs.Nearest(word, candidates); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
	if got := errs.Nearest("x", nil); got != "" {
		t.Errorf("without candidates: %q", got)
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"é", "e", 1}, {"nqn", "qnn", 1}} {
		if got := errs.Distance(c.a, c.b); got != c.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
