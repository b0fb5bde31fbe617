package freeze

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// RunGuard is the guard process: stdin, a UNIX socket, carries the request and
// the mount points, stdout the reports. Call it early in main and exit when it
// returns: nothing is frozen then. It ignores all signals that can be ignored.
func RunGuard(stdin, stdout *os.File) error {
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM,
		unix.SIGPIPE, unix.SIGALRM, unix.SIGUSR1, unix.SIGUSR2)
	control, err := controlOf(stdin)
	if err != nil {
		return errors.New("the freeze guard is an internal process that cleat starts itself; use fsfreeze to freeze a file system manually")
	}
	o, roots, err := receiveRequest(control)
	if errors.Is(err, io.EOF) {
		return nil // the parent ended
	}
	if err != nil {
		return fmt.Errorf("freeze guard: %w", err)
	}
	released := make(chan struct{})
	go func() {
		io.Copy(io.Discard, control)
		close(released)
	}()
	g := &guard{roots: roots, reports: newReporter(stdout, o.members)}
	g.run(released, o.bound)
	g.reports.finish()
	return nil
}

type guard struct {
	roots   []*os.File
	reports *reporter
	held    []int // frozen members, in the order of freezing
}

func (g *guard) run(released <-chan struct{}, bound time.Duration) {
	if !g.writeBack(released) {
		return
	}
	expired := time.NewTimer(bound)
	defer expired.Stop()
	g.reports.report(reportFreezing)
	results, stop := g.freezeAll()
	for next, on := results, true; on; {
		select {
		case r, more := <-next:
			if more {
				on = g.note(r)
			} else {
				next = nil
				g.reports.report(reportReady)
			}
		case <-released:
			on = false
		case <-expired.C:
			g.reports.report(reportExpired)
			on = false
		}
	}
	stop()
	for len(g.held) > 0 {
		g.thawLast()
	}
	// One freeze can still run in the kernel.
	for r := range results {
		if g.note(r); r.err == nil {
			g.thawLast()
		}
	}
	g.reports.report(reportEnd)
}

// writeBack flushes all members while they are writable, so that the freeze is
// short and reports errors itself. False means released meanwhile.
func (g *guard) writeBack(released <-chan struct{}) bool {
	var all sync.WaitGroup
	for _, root := range g.roots {
		all.Go(func() { unix.Syncfs(int(root.Fd())) })
	}
	flushed := make(chan struct{})
	go func() {
		all.Wait()
		close(flushed)
	}()
	select {
	case <-flushed:
		return true
	case <-released:
		return false
	}
}

type result struct {
	member int
	err    error
}

// freezeAll stops at the first failure, or if stop is called, and then closes
// results. Sends to results never block.
func (g *guard) freezeAll() (results <-chan result, stop func()) {
	out := make(chan result, len(g.roots))
	var stopped atomic.Bool
	go func() {
		defer close(out)
		for i, root := range g.roots {
			if stopped.Load() {
				return
			}
			err := freeze(root)
			out <- result{i, err}
			if err != nil {
				return
			}
		}
	}()
	return out, func() { stopped.Store(true) }
}

// note returns false for a refused freeze.
func (g *guard) note(r result) bool {
	if r.err != nil {
		g.reports.report(reportRefused, r.member, number(r.err))
		return false
	}
	g.held = append(g.held, r.member)
	g.reports.report(reportFrozen, r.member)
	return true
}

func (g *guard) thawLast() {
	last := len(g.held) - 1
	member := g.held[last]
	g.held = g.held[:last]
	g.reports.report(reportThawing, member)
	g.reports.report(reportThawed, member, number(thaw(g.roots[member])))
}

func number(err error) int {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return int(errno)
	}
	if err != nil {
		return int(unix.EIO)
	}
	return 0
}

// reporter never blocks the guard, even if the parent does not read.
type reporter struct {
	lines   chan string
	written chan struct{}
}

func newReporter(to io.Writer, members int) *reporter {
	r := &reporter{lines: make(chan string, 3*members+8), written: make(chan struct{})}
	go func() {
		defer close(r.written)
		for line := range r.lines {
			io.WriteString(to, line)
		}
	}()
	return r
}

func (r *reporter) report(word string, numbers ...int) {
	line := word
	for _, n := range numbers {
		line = fmt.Sprint(line, " ", n)
	}
	r.lines <- line + "\n"
}

func (r *reporter) finish() {
	close(r.lines)
	select {
	case <-r.written:
	case <-time.After(time.Second):
	}
}
