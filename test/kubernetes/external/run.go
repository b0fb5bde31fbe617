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

// State is the final state of a spec, in Ginkgo's terms.
type State string

const (
	Passed  State = "passed"
	Skipped State = "skipped"  // by the spec itself: not applicable
	LeftOut State = "left out" // by this package
	NotRun  State = "not run"  // but requested
)

// Result is the result of a spec.
type Result struct {
	Spec
	State    State   `json:"state"`
	Seconds  float64 `json:"seconds,omitempty"`
	Message  string  `json:"message,omitempty"`  // why it did not pass
	Location string  `json:"location,omitempty"` // in Kubernetes' source
	// Attempt starts at 1; 0 means 1 too.
	Attempt int `json:"attempt,omitempty"`
}

// Failed reports whether the result needs action.
func (r Result) Failed() bool { return r.State != Passed && !r.Inapplicable() }

// Inapplicable reports whether the spec skipped itself or was left out.
func (r Result) Inapplicable() bool { return r.State == Skipped || r.State == LeftOut }

// cleanup bounds the clean-up of an interrupted run.
const cleanup = time.Minute

// Run runs the specs in some parallel processes with a few specs each, or many
// if these will skip themselves; serial specs run last, one by one. It returns
// one result per spec, in the order of specs. log gets a line for each finished
// spec.
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

// batch runs specs in one process. A spec without a result in the report is
// NotRun.
func (p Program) batch(ctx context.Context, b *board, name string, specs []Spec) {
	var results []Result
	err := ctx.Err()
	if err == nil {
		results, err = p.run(ctx, name, focus(specs), "--ginkgo.timeout="+(time.Duration(len(specs))*specTimeout).String())
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
			r.State, r.Message = NotRun, err.Error() // a failure outside of specs makes their results invalid
		}
		b.put(r)
	}
}

// specTimeout bounds a spec; the suite's own timeouts are shorter.
const specTimeout = 20 * time.Minute

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
