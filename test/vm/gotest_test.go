package vm

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestGuestTestResults(t *testing.T) {
	got := testkit.Value(testResults(t.Context(), "\x16=== RUN   TestA\n\x16=== RUN   TestA/sub\n    a_test.go:1: said\n\x16--- FAIL: TestA (0.00s)\n    \x16--- SKIP: TestA/sub (0.00s)\n"+
		"\x16=== RUN   TestB\n\x16--- PASS: TestB (0.00s)\n\x16=== RUN   TestC\n"))(t)
	problems := map[string]string{}
	for _, r := range got {
		problems[r.name] = r.problem()
	}
	want := map[string]string{"TestA": "failed", "TestA/sub": "skipped; guest tests must not skip", "TestB": "", "TestC": "did not end"}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if output := strings.Join(got[1].output, ""); !strings.Contains(output, "a_test.go:1: said") {
		t.Errorf("the output of %s is %q", got[1].name, output)
	}
}
