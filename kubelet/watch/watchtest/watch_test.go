package watchtest_test

import (
	"context"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/kubelet/watch/watchtest"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var only = flag.String("case", "", "run only the cases that match this regular expression")

// ours adapts watch.Host to the suite.
type ours struct{ *watch.Host }

func (o ours) Close(ctx context.Context) error { return o.Host.Close(ctx, false) }

// harness has timeouts longer than the kubelet's, to be independent of the load.
func harness(notify time.Duration) watchtest.Harness {
	return watchtest.Harness{Name: "cleat", Quiet: time.Second, New: func(dir string, handlers map[string]watch.Handler) (watchtest.Host, error) {
		h, err := watch.New(watch.Options{
			Dir: dir, Handlers: handlers,
			Timeouts: watch.Timeouts{GetInfo: 5 * time.Second, Notify: notify},
		})
		return ours{h}, err
	}}
}

// Slow cases run together with the kubelet in test/upstream, cases for soak only
// in make soak: with the race detector they take minutes.
func TestConformance(t *testing.T) {
	match := regexp.MustCompile(*only)
	cases := slices.DeleteFunc(watchtest.Cases(), func(c watchtest.Case) bool { return c.Slow || c.Soak && !soak.Enabled || !match.MatchString(c.ID()) })
	if len(cases) == 0 {
		t.Fatalf("no case matches %s", *only)
	}
	isAlone := func(c watchtest.Case) bool { return c.Alone }
	watchtest.Run(t, harness(10*time.Second), slices.DeleteFunc(slices.Clone(cases), isAlone))
	// Of a thousand plugins at once some answer late on a busy machine, and a plugin
	// that does not answer in time is registered again.
	watchtest.Run(t, harness(5*time.Minute), slices.DeleteFunc(cases, func(c watchtest.Case) bool { return !isAlone(c) }))
}

// docs/plugins.md contains the table of differences from the kubelet.
func TestDifferencesMatchDocs(t *testing.T) {
	page := testkit.Value(os.ReadFile("../../../docs/plugins.md"))(t)
	table := watchtest.Differences(watchtest.Cases())
	if !strings.Contains(string(page), "\n\n"+table+"\n") {
		t.Errorf("docs/plugins.md must have this table:\n%s", table)
	}
	for _, c := range watchtest.Cases() {
		if (c.Kubelet == "") != (c.Why == "") {
			t.Errorf("%s: Kubelet and Why must be set together", c.ID())
		}
		if c.Kubelet == c.Want {
			t.Errorf("%s: Want and Kubelet are both %q", c.ID(), c.Want)
		}
	}
}
