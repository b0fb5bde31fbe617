package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	if limit := os.Getenv(victimLimit); limit != "" {
		victim(limit)
	}
	goleak.VerifyTestMain(m)
}

// rig is a finder that runs on a directory, with all reported changes.
type rig struct {
	*Finder
	t   *testing.T
	dir string

	mu      sync.Mutex
	changed chan struct{} // one element after a report
	changes []string      // +a or -a, paths below dir
	there   map[string]bool
	scans   map[string]int
}

// newRig starts a finder on dir/root, which contains only what prepare created.
func newRig(t *testing.T, prepare func(root string)) *rig {
	t.Helper()
	r := makeRig(t, filepath.Join(t.TempDir(), "root"))
	if prepare != nil {
		testkit.Must(t, os.Mkdir(r.dir, 0o750))
		prepare(r.dir)
	}
	testkit.Must(t, r.Start())
	r.run()
	return r
}

func makeRig(t *testing.T, dir string) *rig {
	r := &rig{t: t, dir: dir, changed: make(chan struct{}, 1), there: map[string]bool{}, scans: map[string]int{}}
	r.Finder = New(Options{
		Dir: dir, Rescan: time.Hour, Logger: slog.New(slog.DiscardHandler), Report: r.report,
		Observe: Observer{Scanned: func(cause string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.scans[cause]++
		}},
	})
	return r
}

func (r *rig) run() { r.t.Cleanup(r.begin()) }

func (r *rig) begin() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Errorf("Run: %v", err)
		}
	}
}

func (r *rig) report(changes []Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		rel, below := strings.CutPrefix(c.Path, r.dir+"/")
		switch {
		case !below:
			r.t.Errorf("%s is not below %s", c.Path, r.dir)
		case c.Gone != r.there[rel]:
			r.t.Errorf("%s: gone %t, known %t", rel, c.Gone, r.there[rel])
		case c.Gone:
			delete(r.there, rel)
			r.changes = append(r.changes, "-"+rel)
		default:
			r.there[rel] = true
			r.changes = append(r.changes, "+"+rel)
		}
	}
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *rig) known() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.there))
}

// wait waits until exactly these sockets are known.
func (r *rig) wait(want ...string) {
	r.t.Helper()
	slices.Sort(want)
	r.until(fmt.Sprint("known are ", want), func() bool { return slices.Equal(r.known(), want) })
}

// reported returns the changes so far, after all pending events: a socket that
// is created last at the top level has been reported.
func (r *rig) reported() []string {
	r.t.Helper()
	const last = "zz-last"
	has := func(word string) func() bool {
		return func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.changes) > 0 && r.changes[len(r.changes)-1] == word
		}
	}
	socket(r.t, filepath.Join(r.dir, last))
	r.until("+"+last, has("+"+last))
	testkit.Must(r.t, os.Remove(filepath.Join(r.dir, last)))
	r.until("-"+last, has("-"+last))
	r.mu.Lock()
	defer r.mu.Unlock()
	changes := r.changes[:len(r.changes)-2]
	r.changes = nil
	return changes
}

// until checks a condition after each change.
func (r *rig) until(what string, holds func() bool) {
	r.t.Helper()
	for !holds() {
		testkit.Receive(r.t, fmt.Sprintf("%s; known: %v", what, r.known()), r.changed)
	}
}

// expect compares the changes since the last call.
func (r *rig) expect(want ...string) {
	r.t.Helper()
	testkit.Diff(r.t, "result", strings.Join(want, " "), strings.Join(r.reported(), " "))
}

// socket creates a socket without a server.
func socket(t testing.TB, paths ...string) {
	t.Helper()
	for _, path := range paths {
		testkit.Must(t, unix.Mknod(path, unix.S_IFSOCK|0o600, 0))
	}
}

func mkdir(t testing.TB, paths ...string) {
	t.Helper()
	for _, path := range paths {
		testkit.Must(t, os.MkdirAll(path, 0o750))
	}
}
