package freeze

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

const (
	// patience is how long a guard may take for what it does at once unless it is
	// stopped or starved; then it is killed and the parent thaws.
	patience = 2 * time.Second
	// slowThaw is how long the kernel may take for a thaw, which writes to the
	// disk, before the guard that asked for it is taken for one that is stopped.
	slowThaw = 30 * time.Second
)

// Frozen is a set of frozen file systems.
type Frozen struct {
	mountpoints []string
	roots       []*os.File
	guard       *Guard
	process     *process
	ask         sync.Once
	asked       atomic.Bool // the guard was told to thaw
	overdue     atomic.Bool // the guard missed the bound and was killed

	ready chan struct{} // closed when all are frozen
	done  chan struct{} // closed when nothing is frozen any more
	err   error         // what Thaw returns, once done

	mu    sync.Mutex // until done
	story story      // what the guard said
	over  bool       // roots are being closed
}

// Thaw ends the freeze, and returns when nothing is frozen any more. An error
// means that what was cut cannot be trusted: the freeze did not last until
// Thaw was called (ErrExpired, ErrBroken), or the kernel would not thaw.
// A second call returns the same.
func (f *Frozen) Thaw() error {
	f.release()
	for slow := time.Now().Add(slowThaw); ; {
		select {
		case <-f.done:
			return f.err
		case <-time.After(patience):
		}
		if f.isThawing() && time.Now().Before(slow) {
			continue // the kernel is at it, and nobody could hasten that
		}
		f.kill()
		<-f.done
		return f.err
	}
}

func (f *Frozen) isThawing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.story.thawing >= 0
}

// kill ends the guard, and thaws what it has said to be frozen. A thread of it
// may hang in the freeze of a file system that lies on one of those, and the
// guard is gone only with its last thread.
func (f *Frozen) kill() {
	f.process.cmd.Process.Kill()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := f.story.frozenSoFar - 1; i >= 0 && !f.over; i-- {
		if !f.story.thawed[i] && thaw(f.roots[i]) == nil { // rescue tells of errors
			f.story.thawed[i] = true
		}
	}
}

// release tells the guard to thaw.
func (f *Frozen) release() {
	f.ask.Do(func() {
		f.asked.Store(true)
		f.process.control.Close()
	})
}

// begin gives a guard its order and starts the goroutine that watches the guard
// until it is gone.
func (g *Guard) begin(roots []*os.File, mountpoints []string, bound time.Duration) (*Frozen, error) {
	p, err := g.order(order{members: len(roots), bound: bound}, roots)
	if err != nil {
		return nil, err
	}
	f := &Frozen{
		guard: g, mountpoints: mountpoints, roots: roots, process: p, story: newStory(),
		ready: make(chan struct{}), done: make(chan struct{}),
	}
	go f.watch(bound)
	return f, nil
}

// watch follows the guard to its end. It cannot miss it: the reports end when
// the guard is gone and has no thread left in a call of the kernel. What the
// guard may have left frozen is thawed here.
func (f *Frozen) watch(bound time.Duration) {
	reports := f.process.reports
	for lines := bufio.NewScanner(reports); lines.Scan(); {
		f.mu.Lock()
		word := f.story.hear(lines.Text())
		f.mu.Unlock()
		switch word {
		case wordFreezing:
			late := time.AfterFunc(bound+patience, func() {
				f.overdue.Store(true)
				f.kill()
			})
			defer late.Stop()
		case wordReady:
			close(f.ready)
		}
	}
	io.Copy(io.Discard, reports) // something that is no guard may write long lines
	reports.Close()
	asked := f.asked.Load()
	f.mu.Lock() // whoever kills now comes too late
	f.over = true
	f.mu.Unlock()
	lost, stuck := f.rescue()
	f.release()
	f.process.cmd.Wait()
	closeAll(f.roots)
	f.err = f.verdict(asked, lost, stuck, f.process.cmd.ProcessState.String())
	close(f.done)
	_ = f.guard.Prepare() // for the next freeze, which starts a process itself when this fails
}

// rescue thaws what the guard has not said to have thawed. Lost tells that one
// of those was not frozen any more; stuck are errors of the kernel.
func (f *Frozen) rescue() (lost bool, stuck error) {
	for i := len(f.roots) - 1; i >= 0; i-- {
		if !f.story.maybeFrozen(i) {
			continue
		}
		switch err := thaw(f.roots[i]); err {
		case nil:
		case unix.EINVAL:
			lost = lost || f.story.frozen(i)
		default:
			stuck = errors.Join(stuck, fmt.Errorf("thaw %s: %w", f.mountpoints[i], err))
		}
	}
	return lost, stuck
}

// verdict turns the story into what Freeze or Thaw return. Asked says that the
// parent called Thaw before the story ended.
func (f *Frozen) verdict(asked, lost bool, stuck error, exit string) error {
	s := &f.story
	switch {
	case stuck != nil:
		return errs.Errorf(errs.Internal, "%q: still frozen, fsfreeze --unfreeze may help: %w", f.mountpoints, stuck)
	case s.refused >= 0:
		return refused(f.mountpoints[s.refused], s.errno)
	case s.expired || f.overdue.Load():
		return errs.Errorf(errs.Unavailable, "freeze %q: %w", f.mountpoints, ErrExpired)
	case s.foreign >= 0:
		return errs.Errorf(errs.Unavailable, "freeze %q: %w: somebody else thawed %s", f.mountpoints, ErrBroken, f.mountpoints[s.foreign])
	case !s.began && !asked:
		return errs.Errorf(errs.Internal, "freeze %q: the guard %q ended before it froze anything (%s)", f.mountpoints, f.guard.command, exit)
	case !s.ended && (lost || !asked):
		return errs.Errorf(errs.Unavailable, "freeze %q: %w: the guard process died (%s)", f.mountpoints, ErrBroken, exit)
	}
	return nil
}

// whyNot is the error of a Freeze that came to nothing.
func (f *Frozen) whyNot() error {
	if f.err != nil {
		return f.err
	}
	return errs.Errorf(errs.Unavailable, "freeze %q: %w", f.mountpoints, ErrBroken)
}
