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

// RunGuard is the main function of the guard process: stdin, a UNIX socket,
// carries the request and the mount points, and stdout the reports. It returns
// when nothing is frozen, or if the parent ends before it sends a request. Call
// it early in main and exit when it returns. It ignores all signals that can be
// ignored.
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

// run freezes all members, waits for the release or the bound, and thaws.
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
			} else { // all succeeded
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
	// One freeze can still be running in the kernel.
	for r := range results {
		if g.note(r); r.err == nil {
			g.thawLast()
		}
	}
	g.reports.report(reportEnd)
}

// writeBack flushes all members concurrently while they are writable, so that
// freezing them is short. Errors are ignored, as the freeze reports them again.
// It returns false if the guard was released meanwhile.
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

// freezeAll freezes one member after the other until one fails or stop is
// called; results is closed then. Sends to results never block.
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

// note records a result; false means that the freeze was refused.
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

// reporter writes lines without blocking the guard if the parent does not read.
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

// finish waits briefly until the last lines are written.
func (r *reporter) finish() {
	close(r.lines)
	select {
	case <-r.written:
	case <-time.After(time.Second):
	}
}
