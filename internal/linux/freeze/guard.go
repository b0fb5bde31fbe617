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

// RunGuard is the body of the guard process: stdin, a UNIX socket, carries the
// order and the mount points to freeze, stdout the reports. It returns when
// nothing is frozen any more, or when the parent ends before it sent an order.
// It is to be called early, and the process to end when it returns. It ignores
// all signals that can be ignored.
func RunGuard(stdin, stdout *os.File) error {
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM,
		unix.SIGPIPE, unix.SIGALRM, unix.SIGUSR1, unix.SIGUSR2)
	control, err := controlOf(stdin)
	if err != nil {
		return errors.New("a freeze guard is started by cleat itself and takes its orders from there; to freeze by hand use fsfreeze")
	}
	o, roots, err := receiveOrder(control)
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

// run freezes, waits for the release or the bound, and thaws.
func (g *guard) run(released <-chan struct{}, bound time.Duration) {
	if !g.writeBack(released) {
		return
	}
	expired := time.NewTimer(bound)
	defer expired.Stop()
	g.reports.say(wordFreezing)
	results, stop := g.freezeAll()
	for next, on := results, true; on; {
		select {
		case r, more := <-next:
			if more {
				on = g.note(r)
			} else { // and none was refused
				next = nil
				g.reports.say(wordReady)
			}
		case <-released:
			on = false
		case <-expired.C:
			g.reports.say(wordExpired)
			on = false
		}
	}
	stop()
	for len(g.held) > 0 {
		g.thawLast()
	}
	// A freeze may still be under way in the kernel; it is the last.
	for r := range results {
		if g.note(r); r.err == nil {
			g.thawLast()
		}
	}
	g.reports.say(wordEnd)
}

// writeBack flushes all members at once while they can still be written to, so
// that the freezes have little left to do. Errors show again when freezing. It
// returns false when the guard was released meanwhile.
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

// freezeAll freezes one member after the other, until one fails or stop is
// called; results is closed then. The channel of results never blocks.
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

// note takes a result in; false means that one was refused.
func (g *guard) note(r result) bool {
	if r.err != nil {
		g.reports.say(wordRefused, r.member, number(r.err))
		return false
	}
	g.held = append(g.held, r.member)
	g.reports.say(wordFrozen, r.member)
	return true
}

func (g *guard) thawLast() {
	last := len(g.held) - 1
	member := g.held[last]
	g.held = g.held[:last]
	g.reports.say(wordThawing, member)
	g.reports.say(wordThawed, member, number(thaw(g.roots[member])))
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

// reporter writes lines without ever making the guard wait: nobody may read.
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

func (r *reporter) say(word string, numbers ...int) {
	line := word
	for _, n := range numbers {
		line = fmt.Sprint(line, " ", n)
	}
	r.lines <- line + "\n"
}

// finish gives the last lines a moment to be read.
func (r *reporter) finish() {
	close(r.lines)
	select {
	case <-r.written:
	case <-time.After(time.Second):
	}
}
