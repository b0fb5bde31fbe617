// Package upstream tests against the kubelet's own code: its plugin manager,
// and its handlers with our plugins.
package upstream

import (
	"context"
	"flag"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/kubelet/watch/watchtest"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/upstream/kubelet"
)

func TestMain(m *testing.M) {
	kubelet.Silence()
	code := m.Run()
	removePrograms()
	os.Exit(code)
}

var only = flag.String("case", "", "run only the cases that match this")

// ours is this project's host in the suite.
type ours struct{ *watch.Host }

func (o ours) Close(ctx context.Context) error { return o.Host.Close(ctx, false) }

var (
	kubeletHarness = watchtest.Harness{Name: "kubelet", Quiet: kubelet.Quiet, New: func(dir string, handlers map[string]watch.Handler) (watchtest.Host, error) {
		return kubelet.New(dir, handlers), nil
	}}
	ourHarness = watchtest.Harness{Name: "here", Quiet: time.Second, New: func(dir string, handlers map[string]watch.Handler) (watchtest.Host, error) {
		h, err := watch.New(watch.Options{
			Dir: dir, Handlers: handlers,
			Timeouts: watch.Timeouts{GetInfo: 5 * time.Second, Notify: 10 * time.Second}, // the kubelet's are too short under load
		})
		return ours{h}, err
	}}
)

// cases returns the selected cases.
func cases(play func(watchtest.Case) bool) []watchtest.Case {
	match := regexp.MustCompile(*only)
	return slices.DeleteFunc(watchtest.Cases(), func(c watchtest.Case) bool { return !play(c) || !match.MatchString(c.ID()) })
}

// observeKubelet repeats cases with another outcome, twice at most: the kubelet's
// timeout of a second for a plugin's answer is too short on a busy machine.
func observeKubelet(ctx context.Context, all []watchtest.Case) []watchtest.Result {
	results := watchtest.Observe(ctx, kubeletHarness, all)
	differs := func(r watchtest.Result) bool { return r.Err != nil || r.Got != r.Expected(true) }
	for range 2 {
		var again []watchtest.Case
		for _, r := range results {
			if differs(r) {
				again = append(again, r.Case)
			}
		}
		results = append(slices.DeleteFunc(results, differs), watchtest.Observe(ctx, kubeletHarness, again)...)
	}
	return results
}

// The kubelet's manager passes the cases. In CI our host runs only the slow
// ones here, and all others in the test of watchtest.
func TestConformance(t *testing.T) {
	t.Parallel()
	t.Run(kubeletHarness.Name, func(t *testing.T) {
		t.Parallel()
		all := cases(func(c watchtest.Case) bool { return !c.Alone })
		watchtest.Check(t, observeKubelet(t.Context(), all), true)
	})
	t.Run(ourHarness.Name, func(t *testing.T) {
		t.Parallel()
		all := cases(func(c watchtest.Case) bool { return !c.Alone && (c.Slow || soak.Enabled) })
		watchtest.Check(t, watchtest.Observe(t.Context(), ourHarness, all), false)
	})
}

// The cases that must not run in parallel with other tests; those of our host are
// in the test of watchtest.
func TestConformanceAlone(t *testing.T) {
	t.Run(kubeletHarness.Name, func(t *testing.T) {
		all := cases(func(c watchtest.Case) bool { return c.Alone && (!c.Soak || soak.Enabled) })
		watchtest.Check(t, observeKubelet(t.Context(), all), true)
	})
}
