package watchtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// call is one call that a host made.
type call struct {
	when time.Time
	// whom names the plugin by its socket below the plugins directory.
	whom, what string
	ofHandler  bool
}

// journal is what a host did, in order.
type journal struct {
	mu      sync.Mutex
	calls   []call
	counts  map[string]int
	held    map[string]bool // by the handler
	changed chan struct{}   // closed and renewed with each call
}

func newJournal() *journal {
	return &journal{counts: map[string]int{}, held: map[string]bool{}, changed: make(chan struct{})}
}

// write adds a call and returns how many of the kind this plugin has had.
func (j *journal) write(c call) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	c.when = time.Now()
	j.calls = append(j.calls, c)
	j.keep(c)
	close(j.changed)
	j.changed = make(chan struct{})
	kind := counted(c.whom, c.what)
	j.counts[kind]++
	return j.counts[kind]
}

// counted names a kind of call for a plugin: of a result told to it, the text
// does not matter.
func counted(whom, what string) string {
	kind, _, _ := strings.Cut(what, "(")
	return kind + " of " + whom
}

// read returns what is written.
func (j *journal) read() []call {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.calls)
}

// await returns once enough holds of the calls, or false after the patience.
func (j *journal) await(ctx context.Context, patience time.Duration, enough func([]call) bool) bool {
	return j.until(ctx, patience, func() bool { return enough(j.calls) })
}

// beat is the unit in which silence and patience are counted: a machine that
// stalls loses beats, and so waits longer for what is slow on it as well.
const beat = 10 * time.Millisecond

// until asks, with the lock held, after each call.
func (j *journal) until(ctx context.Context, patience time.Duration, enough func() bool) bool {
	beats := time.NewTicker(beat)
	defer beats.Stop()
	for left := patience; left > 0; {
		j.mu.Lock()
		done, changed := enough(), j.changed
		j.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-changed:
		case <-beats.C:
			left -= beat
		case <-ctx.Done():
			return false
		}
	}
	return false
}

// settle returns after so much silence, or after the patience.
func (j *journal) settle(ctx context.Context, silence, patience time.Duration) {
	beats := time.NewTicker(beat)
	defer beats.Stop()
	for quiet, left := silence, patience; quiet > 0 && left > 0; {
		j.mu.Lock()
		changed := j.changed
		j.mu.Unlock()
		select {
		case <-beats.C:
			select {
			case <-changed: // at the same moment
				quiet = silence
			default:
				quiet -= beat
			}
			left -= beat
		case <-changed:
			quiet = silence
		case <-ctx.Done():
			return
		}
	}
}

// render groups calls by plugin: "a.sock: Validate, Register; b.sock: ...".
func render(calls []call) string {
	of := map[string][]string{}
	for _, c := range calls {
		of[c.whom] = append(of[c.whom], c.what)
	}
	if len(of) == 0 {
		return "nothing"
	}
	var lines []string
	for _, whom := range slices.Sorted(maps.Keys(of)) {
		lines = append(lines, whom+": "+fold(of[whom]))
	}
	return strings.Join(lines, "; ")
}

// fold writes "GetInfo ×3" for three in a row.
func fold(words []string) string {
	var out []string
	for i := 0; i < len(words); {
		n := 1
		for i+n < len(words) && words[i+n] == words[i] {
			n++
		}
		if n == 1 {
			out = append(out, words[i])
		} else {
			out = append(out, fmt.Sprintf("%s ×%d", words[i], n))
		}
		i += n
	}
	return strings.Join(out, ", ")
}

// keep remembers which plugins have Register as their last word from the
// handler. It is called with the lock held.
func (j *journal) keep(c call) {
	switch {
	case !c.ofHandler:
	case strings.HasPrefix(c.what, "Register"):
		j.held[c.whom] = true
	case strings.HasPrefix(c.what, "DeRegister"):
		delete(j.held, c.whom)
	}
}

// registered are the plugins that the handler holds.
func (j *journal) registered() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Sorted(maps.Keys(j.held))
}

// awaitRegistered returns once the handler holds so many plugins.
func (j *journal) awaitRegistered(ctx context.Context, n int, patience time.Duration) bool {
	return j.until(ctx, patience, func() bool { return len(j.held) == n })
}
