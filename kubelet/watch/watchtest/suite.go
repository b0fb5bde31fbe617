// Package watchtest is the conformance suite for hosts of kubelet plugins. It
// plays the plugins and the handlers, writes down who was called and in which
// order, and holds that against what every host must do; where the kubelet's
// own plugin manager does otherwise, the case says what and why.
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

// Host is what the suite needs of a host.
type Host interface {
	// Start returns once the directory is watched, or says why it cannot be.
	Start(ctx context.Context) error
	Handle(kind string, h watch.Handler) error
	// Close ends the host and deregisters nothing.
	Close(ctx context.Context) error
}

// Harness makes hosts of one kind.
type Harness struct {
	Name string
	New  func(dir string, handlers map[string]watch.Handler) (Host, error)
	// Quiet is how long such a host may take to begin something that it will
	// do: after so much silence nothing more is to come.
	Quiet time.Duration
}

// Case is one thing that can happen to a host.
type Case struct {
	Group, Name string
	// Run makes it happen and says what came of it, mostly as Stage.Handled or
	// Stage.Calls.
	Run func(s *Stage) string
	// Want is what must come of it; Kubelet, when set, what comes of it in the
	// kubelet's plugin manager 1.36, and Why the reason for the difference.
	Want, Kubelet, Why string
	// Alone keeps other cases away: this one needs the machine for itself.
	Alone bool
	// Slow cases take more than half a minute.
	Slow bool
	// Soak: the kubelet plays it in make soak only; a case that takes it less
	// time shows the same of it.
	Soak bool
}

// ID names the case.
func (c Case) ID() string { return c.Group + "/" + c.Name }

// Expected is what the case comes to in the kubelet.
func (c Case) Expected(kubelet bool) string {
	if kubelet && c.Kubelet != "" {
		return c.Kubelet
	}
	return c.Want
}

// Result is what came of a case.
type Result struct {
	Case
	Got  string
	Err  error // the case could not be played
	Took time.Duration
}

// Cases are all of the suite.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{
		discovery(), names(), changes(), outcomes(), pauses(), instances(), life(), load(),
	} {
		all = append(all, group...)
	}
	return all
}

// atOnce bounds the cases played at the same time: they mostly wait, but those
// that do not must not keep a plugin from answering within a second.
const atOnce = 16

// Observe plays cases in hosts of one kind and returns their results in the
// order of the cases.
func Observe(ctx context.Context, h Harness, cases []Case) []Result {
	results := make([]Result, len(cases))
	slots := make(chan struct{}, atOnce)
	var playing sync.WaitGroup
	for _, slow := range []bool{true, false} { // the long ones first
		for i, c := range cases {
			if c.Alone || c.Slow != slow {
				continue
			}
			slots <- struct{}{}
			playing.Go(func() {
				defer func() { <-slots }()
				results[i] = play(ctx, h, c)
			})
		}
	}
	playing.Wait()
	for i, c := range cases {
		if c.Alone {
			results[i] = play(ctx, h, c)
		}
	}
	return results
}

func play(ctx context.Context, h Harness, c Case) (r Result) {
	r = Result{Case: c}
	began := time.Now()
	s, err := newStage(ctx, h)
	if err != nil {
		r.Err = err
		return r
	}
	defer func() {
		if p := recover(); p != nil {
			failed, ours := p.(failure)
			if !ours {
				panic(p)
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

// Run plays every case in hosts of one kind and holds them to what is wanted.
func Run(t *testing.T, h Harness, cases []Case) {
	if os.Geteuid() != 0 {
		t.Fatal("run it as root: some cases change a limit of inotify for a moment")
	}
	Check(t, Observe(t.Context(), h, cases), false)
}

// Check holds results to what is wanted, or to what is known of the kubelet.
func Check(t *testing.T, results []Result, kubelet bool) {
	for _, r := range results {
		t.Run(r.ID(), func(t *testing.T) {
			switch want := r.Expected(kubelet); {
			case r.Err != nil:
				t.Error(r.Err)
			case r.Got != want:
				t.Errorf("came to\n\t%s\nwant\n\t%s", r.Got, want)
			}
			if testing.Verbose() {
				fmt.Printf("%-60s %5.1fs  %s\n", r.ID(), r.Took.Seconds(), r.Got)
			}
		})
	}
}
