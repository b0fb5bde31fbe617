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

type call struct {
	when time.Time
	// Relative to the plugins directory.
	plugin, what string
	byHandler    bool
}

// journal records a host's calls in order.
type journal struct {
	mu      sync.Mutex
	calls   []call
	counts  map[string]int
	held    map[string]bool // with the handler
	changed chan struct{}   // closed with each call
}

func newJournal() *journal {
	return &journal{counts: map[string]int{}, held: map[string]bool{}, changed: make(chan struct{})}
}

// write returns the number of such calls for the plugin.
func (j *journal) write(c call) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	c.when = time.Now()
	j.calls = append(j.calls, c)
	j.track(c)
	close(j.changed)
	j.changed = make(chan struct{})
	kind := counted(c.plugin, c.what)
	j.counts[kind]++
	return j.counts[kind]
}

// Arguments do not matter.
func counted(plugin, what string) string {
	kind, _, _ := strings.Cut(what, "(")
	return kind + " of " + plugin
}

func (j *journal) read() []call {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.calls)
}

// await returns false after timeout.
func (j *journal) await(ctx context.Context, timeout time.Duration, enough func([]call) bool) bool {
	return j.until(ctx, timeout, func() bool { return enough(j.calls) })
}

// beat is the unit of timeouts: a stalled machine loses beats, so timeouts grow
// with load.
const beat = 10 * time.Millisecond

// until calls enough with the lock held, at first and after each call.
func (j *journal) until(ctx context.Context, timeout time.Duration, enough func() bool) bool {
	beats := time.NewTicker(beat)
	defer beats.Stop()
	for left := timeout; left > 0; {
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

// waitIdle waits for idle without calls, or until done, which it calls with the
// lock held, at most timeout.
func (j *journal) waitIdle(ctx context.Context, idle, timeout time.Duration, done func() bool) {
	beats := time.NewTicker(beat)
	defer beats.Stop()
	for quiet, left := idle, timeout; quiet > 0 && left > 0; {
		j.mu.Lock()
		ended, changed := done(), j.changed
		j.mu.Unlock()
		if ended {
			return
		}
		select {
		case <-beats.C:
			select {
			case <-changed: // at the same moment
				quiet = idle
			default:
				quiet -= beat
			}
			left -= beat
		case <-changed:
			quiet = idle
		case <-ctx.Done():
			return
		}
	}
}

func never() bool { return false }

// Example: "a.sock: Validate, Register; b.sock: ...".
func render(calls []call) string {
	of := map[string][]string{}
	for _, c := range calls {
		of[c.plugin] = append(of[c.plugin], c.what)
	}
	if len(of) == 0 {
		return "nothing"
	}
	var lines []string
	for _, plugin := range slices.Sorted(maps.Keys(of)) {
		lines = append(lines, plugin+": "+fold(of[plugin]))
	}
	return strings.Join(lines, "; ")
}

// fold writes repetitions as "GetInfo ×3".
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

// track, with the lock held, follows the handler's plugins.
func (j *journal) track(c call) {
	switch {
	case !c.byHandler:
	case strings.HasPrefix(c.what, "Register"):
		j.held[c.plugin] = true
	case strings.HasPrefix(c.what, "DeRegister"):
		delete(j.held, c.plugin)
	}
}

func (j *journal) registered() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Sorted(maps.Keys(j.held))
}

func (j *journal) awaitRegistered(ctx context.Context, n int, timeout time.Duration) bool {
	return j.until(ctx, timeout, func() bool { return len(j.held) == n })
}
