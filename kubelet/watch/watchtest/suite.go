// Package watchtest is the conformance suite for hosts of kubelet plugins. It
// compares a host's calls with the required ones. Where the kubelet's plugin
// manager differs, the case has its behaviour and the reason.
package watchtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/kubelet/watch"
)

// Host is a host under test.
type Host interface {
	// Start returns once the directory is watched.
	Start(ctx context.Context) error
	Handle(kind string, h watch.Handler) error
	// Close does not deregister plugins.
	Close(ctx context.Context) error
}

// Harness creates hosts.
type Harness struct {
	Name string
	New  func(dir string, handlers map[string]watch.Handler) (Host, error)
	// Quiet is the longest time until such a host acts: after it, no further
	// call is expected.
	Quiet time.Duration
}

// Case is a scenario.
type Case struct {
	Group, Name string
	// Run returns the outcome, usually Stage.Handled or Stage.Calls.
	Run func(s *Stage) string
	// The required outcome. Kubelet, if set, is that of kubelet 1.37, and Why
	// the reason for the difference.
	Want, Kubelet, Why string
	// No other case can run at the same time.
	Alone bool
	// More than half a minute.
	Slow bool
	// Only in make soak; a shorter case shows the same.
	Soak bool
}

// ID returns the group and name.
func (c Case) ID() string { return c.Group + "/" + c.Name }

// Expected returns the required outcome, or that of the kubelet.
func (c Case) Expected(kubelet bool) string {
	if kubelet && c.Kubelet != "" {
		return c.Kubelet
	}
	return c.Want
}

// Result is a case's outcome.
type Result struct {
	Case
	Got  string
	Err  error // of the environment
	Took time.Duration
}

// Cases returns all cases of the suite.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{
		discovery(), names(), changes(), outcomes(), pauses(), instances(), life(), load(),
	} {
		all = append(all, group...)
	}
	return all
}

// maxParallel: too many busy cases would keep plugins from answering within a
// second.
const maxParallel = 16

// Observe runs cases and returns their results in order.
func Observe(ctx context.Context, h Harness, cases []Case) []Result {
	results := make([]Result, len(cases))
	slots := make(chan struct{}, maxParallel)
	var running sync.WaitGroup
	for _, slow := range []bool{true, false} {
		for i, c := range cases {
			if c.Alone || c.Slow != slow {
				continue
			}
			slots <- struct{}{}
			running.Go(func() {
				defer func() { <-slots }()
				results[i] = runCase(ctx, h, c)
			})
		}
	}
	running.Wait()
	for i, c := range cases {
		if c.Alone {
			results[i] = runCase(ctx, h, c)
		}
	}
	return results
}

func runCase(ctx context.Context, h Harness, c Case) (r Result) {
	r = Result{Case: c}
	began := time.Now()
	s, err := newStage(ctx, h)
	if err != nil {
		r.Err = err
		return r
	}
	defer func() {
		if v := recover(); v != nil {
			failed, isFailure := v.(failure)
			if !isFailure {
				panic(v)
			}
			r.Err = failed.error
		}
		if err := s.end(); err != nil && r.Err == nil {
			r.Err = err
		}
		r.Took = time.Since(began)
	}()
	r.Got = c.Run(s)
	return r
}

// Run runs cases and checks the required outcomes.
func Run(t *testing.T, h Harness, cases []Case) {
	if os.Geteuid() != 0 {
		t.Fatal("the suite must run as root: some cases lower an inotify limit for a moment")
	}
	Check(t, Observe(t.Context(), h, cases), false)
}

// Check compares results with the required or the kubelet's outcomes.
func Check(t *testing.T, results []Result, kubelet bool) {
	for _, r := range results {
		t.Run(r.ID(), func(t *testing.T) {
			switch want := r.Expected(kubelet); {
			case r.Err != nil:
				t.Error(r.Err)
			case r.Got != want:
				t.Errorf("got\n\t%s\nwant\n\t%s", r.Got, want)
			}
			if testing.Verbose() {
				fmt.Printf("%-60s %5.1fs  %s\n", r.ID(), r.Took.Seconds(), r.Got)
			}
		})
	}
}
