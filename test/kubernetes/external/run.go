package external

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// State is how a spec ended, in Ginkgo's words.
type State string

const (
	Passed  State = "passed"
	Skipped State = "skipped"  // by the spec itself: it does not apply
	LeftOut State = "left out" // by us
	NotRun  State = "not run"  // though it was asked for
)

// Result is what became of a spec.
type Result struct {
	Spec
	State    State   `json:"state"`
	Seconds  float64 `json:"seconds,omitempty"`
	Message  string  `json:"message,omitempty"`  // why it did not pass
	Location string  `json:"location,omitempty"` // in Kubernetes' source
	// Attempt counts from 1; 0 is the first, too.
	Attempt int `json:"attempt,omitempty"`
}

// Failed says whether something has to be done about it.
func (r Result) Failed() bool { return r.State != Passed && !r.Inapplicable() }

// Inapplicable says whether it was left out, by itself or by us.
func (r Result) Inapplicable() bool { return r.State == Skipped || r.State == LeftOut }

// cleanup is how long a run that is told to end may take for it.
const cleanup = time.Minute

// Run runs the specs, some processes of the program side by side with a few
// specs each, and many if they will leave themselves out in no time; those that
// want to be alone come last, one by one. Every spec has
// one result, in the order of the specs. log hears of each that ends.
func (p Program) Run(ctx context.Context, specs []Spec, processes, each int, log io.Writer) []Result {
	b := &board{results: make(map[Spec]Result), total: len(specs), log: log, start: time.Now()}
	var together, alone, foreign []Spec
	for _, s := range specs {
		switch {
		case s.foreign():
			foreign = append(foreign, s)
		case s.Serial():
			alone = append(alone, s)
		default:
			together = append(together, s)
		}
	}
	batches := slices.Collect(slices.Chunk(together, each))
	for many := range slices.Chunk(foreign, 40) {
		batches = append(batches, many)
	}
	work := make(chan int)
	var running sync.WaitGroup
	for range processes {
		running.Go(func() {
			for i := range work {
				p.batch(ctx, b, fmt.Sprintf("batch-%03d", i), batches[i])
			}
		})
	}
	for i := range batches {
		work <- i
	}
	close(work)
	running.Wait()
	for i, s := range alone {
		p.batch(ctx, b, fmt.Sprintf("alone-%03d", i), []Spec{s})
	}
	results := make([]Result, len(specs))
	for i, s := range specs {
		results[i] = b.results[s]
	}
	return results
}

// batch runs specs in one process; a spec of which its report knows nothing has
// not been run.
func (p Program) batch(ctx context.Context, b *board, name string, specs []Spec) {
	var results []Result
	err := ctx.Err()
	if err == nil {
		results, err = p.run(ctx, name, focus(specs), "--ginkgo.timeout="+(time.Duration(len(specs))*most).String())
	}
	for _, s := range specs {
		r := Result{Spec: s, State: NotRun}
		found := 0
		for _, candidate := range results {
			if candidate.Spec == s {
				r = candidate
				found++
			}
		}
		switch {
		case found == 0:
			r.Message = cmp.Or(errorText(err), "the report has no result of it")
		case found > 1:
			r.State, r.Message = NotRun, fmt.Sprintf("%d specs have this name", found)
		case err != nil && !r.Failed():
			r.State, r.Message = NotRun, err.Error() // what goes wrong beside the specs is none of theirs, and not nothing
		}
		b.put(r)
	}
}

// most is how long a spec may take; the suite's own timeouts are shorter.
const most = 20 * time.Minute

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// board collects results.
type board struct {
	mu      sync.Mutex
	results map[Spec]Result
	total   int
	log     io.Writer
	start   time.Time
}

func (b *board) put(r Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.results[r.Spec] = r
	line := fmt.Sprintf("%7s %3d/%d %-8s %5.1fs %s: %s", time.Since(b.start).Round(time.Second), len(b.results), b.total, r.State, r.Seconds, r.Driver, r.Name)
	if r.State != Passed {
		line += ": " + firstLine(r.Message)
	}
	fmt.Fprintln(b.log, line)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
