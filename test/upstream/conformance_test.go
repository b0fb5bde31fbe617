// Package upstream meets the kubelet's own code: its plugin manager beside
// ours, and its handlers above our plugins.
package upstream

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/kubelet/watch/watchtest"
	"github.com/cleatproject/cleat/test/upstream/kubelet"
)

func TestMain(m *testing.M) {
	kubelet.Silence()
	code := m.Run()
	removePrograms()
	os.Exit(code)
}

var only = flag.String("case", "", "play only the cases that match this")

// ours is a host of this project in the suite.
type ours struct{ *watch.Host }

func (o ours) Close(ctx context.Context) error { return o.Host.Close(ctx, false) }

// Both hosts play the whole suite; where they differ, the suite must know and
// say why.
func TestConformance(t *testing.T) {
	match := regexp.MustCompile(*only)
	all := slices.DeleteFunc(watchtest.Cases(), func(c watchtest.Case) bool { return !match.MatchString(c.ID()) })
	if len(all) == 0 {
		t.Fatalf("no case matches %s", *only)
	}
	hosts := []watchtest.Harness{
		{Name: "here", Quiet: time.Second, New: func(dir string, handlers map[string]watch.Handler) (watchtest.Host, error) {
			h, err := watch.New(watch.Options{
				Dir: dir, Handlers: handlers,
				Timeouts: watch.Timeouts{GetInfo: 5 * time.Second, Notify: 10 * time.Second}, // a kubelet's are too short for a slow machine
			})
			return ours{h}, err
		}},
		{Name: "kubelet", Quiet: kubelet.Quiet, New: func(dir string, handlers map[string]watch.Handler) (watchtest.Host, error) {
			return kubelet.New(dir, handlers), nil
		}},
	}
	// Those that need the machine for themselves come at the end, in turn.
	alone := func(c watchtest.Case) bool { return c.Alone }
	together := slices.DeleteFunc(slices.Clone(all), alone)
	single := slices.DeleteFunc(slices.Clone(all), func(c watchtest.Case) bool { return !alone(c) })
	results := make([][]watchtest.Result, len(hosts))
	var playing sync.WaitGroup
	for i, h := range hosts {
		playing.Go(func() { results[i] = watchtest.Observe(t.Context(), h, together) })
	}
	playing.Wait()
	for i, h := range hosts {
		results[i] = append(results[i], watchtest.Observe(t.Context(), h, single)...)
	}
	for i, h := range hosts {
		t.Run(h.Name, func(t *testing.T) { watchtest.Check(t, results[i], h.Name == "kubelet") })
	}
	if err := watchtest.Compare(results[0], results[1]); err != nil {
		t.Error(err)
	}
	fmt.Printf("%d cases, of which these differ:\n\n%s", len(all), watchtest.Differences(all))
}
