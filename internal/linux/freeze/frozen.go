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
	// guardTimeout is for guard actions that are immediate unless the guard is
	// stopped or starved: it is killed and the parent thaws.
	guardTimeout = 2 * time.Second
	// thawTimeout is for a thaw in the kernel, which writes to the disk.
	thawTimeout = 30 * time.Second
)

// Frozen is a set of frozen file systems.
type Frozen struct {
	mountpoints []string
	roots       []*os.File
	guard       *Guard
	process     *process
	ask         sync.Once
	asked       atomic.Bool
	overdue     atomic.Bool // the guard missed the bound and was killed

	ready chan struct{}
	done  chan struct{} // closed when nothing is frozen
	err   error         // returned by Thaw; set before done is closed

	mu       sync.Mutex // guards the fields below
	progress progress
	over     bool // roots are being closed
}

// Thaw ends the freeze and returns when nothing is frozen; it is idempotent. An
// error means that the snapshot cannot be trusted: the freeze ended early
// (ErrExpired, ErrBroken), or the kernel refused to thaw.
func (f *Frozen) Thaw() error {
	f.release()
	for slow := time.Now().Add(thawTimeout); ; {
		select {
		case <-f.done:
			return f.err
		case <-time.After(guardTimeout):
		}
		if f.isThawing() && time.Now().Before(slow) {
			continue // killing the guard would not speed up the kernel
		}
		f.kill()
		<-f.done
		return f.err
	}
}

func (f *Frozen) isThawing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.progress.thawing >= 0
}

// kill also thaws: a guard's thread can hang in the freeze of a file system
// that is stored on a frozen one, and the guard exits only with its last
// thread.
func (f *Frozen) kill() {
	f.process.cmd.Process.Kill()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := f.progress.frozenSoFar - 1; i >= 0 && !f.over; i-- {
		if !f.progress.thawed[i] && thaw(f.roots[i]) == nil { // rescue reports errors
			f.progress.thawed[i] = true
		}
	}
}

func (f *Frozen) release() {
	f.ask.Do(func() {
		f.asked.Store(true)
		f.process.control.Close()
	})
}

func (g *Guard) begin(roots []*os.File, mountpoints []string, bound time.Duration) (*Frozen, error) {
	p, err := g.request(request{members: len(roots), bound: bound}, roots)
	if err != nil {
		return nil, err
	}
	f := &Frozen{
		guard: g, mountpoints: mountpoints, roots: roots, process: p, progress: newProgress(),
		ready: make(chan struct{}), done: make(chan struct{}),
	}
	go f.watch(bound)
	return f, nil
}

// watch waits for the end of the report pipe: then the guard has exited and
// none of its threads is in a system call. Then it thaws what the guard left
// frozen.
func (f *Frozen) watch(bound time.Duration) {
	reports := f.process.reports
	for lines := bufio.NewScanner(reports); lines.Scan(); {
		f.mu.Lock()
		word := f.progress.handle(lines.Text())
		f.mu.Unlock()
		switch word {
		case reportFreezing:
			late := time.AfterFunc(bound+guardTimeout, func() {
				f.overdue.Store(true)
				f.kill()
			})
			defer late.Stop()
		case reportReady:
			close(f.ready)
		}
	}
	io.Copy(io.Discard, reports) // a program that is not a guard can write long lines
	reports.Close()
	asked := f.asked.Load()
	f.mu.Lock() // a concurrent kill is a no-op from here on
	f.over = true
	f.mu.Unlock()
	lost, stuck := f.rescue()
	f.release()
	f.process.cmd.Wait()
	closeAll(f.roots)
	f.err = f.finalError(asked, lost, stuck, f.process.cmd.ProcessState.String())
	close(f.done)
	_ = f.guard.Prepare() // for the next freeze, which starts its own process if this fails
}

// rescue's result lost means that one of them was no longer frozen; stuck
// contains kernel errors.
func (f *Frozen) rescue() (lost bool, stuck error) {
	for i := len(f.roots) - 1; i >= 0; i-- {
		if !f.progress.maybeFrozen(i) {
			continue
		}
		switch err := thaw(f.roots[i]); err {
		case nil:
		case unix.EINVAL:
			lost = lost || f.progress.frozen(i)
		default:
			stuck = errors.Join(stuck, fmt.Errorf("thaw %s: %w", f.mountpoints[i], err))
		}
	}
	return lost, stuck
}

// finalError derives the result of Freeze or Thaw. asked means that Thaw was
// called before the guard exited.
func (f *Frozen) finalError(asked, lost bool, stuck error, exit string) error {
	s := &f.progress
	switch {
	case stuck != nil:
		return errs.Errorf(errs.Internal, "%q: still frozen, try fsfreeze --unfreeze: %w", f.mountpoints, stuck)
	case s.refused >= 0:
		return refused(f.mountpoints[s.refused], s.errno)
	case s.expired || f.overdue.Load():
		return errs.Errorf(errs.Unavailable, "freeze %q: %w", f.mountpoints, ErrExpired)
	case s.thawedByOthers >= 0:
		return errs.Errorf(errs.Unavailable, "freeze %q: %w: %s was thawed", f.mountpoints, ErrBroken, f.mountpoints[s.thawedByOthers])
	case !s.began && !asked:
		return errs.Errorf(errs.Internal, "freeze %q: the guard %q ended before it froze anything (%s)", f.mountpoints, f.guard.command, exit)
	case !s.ended && (lost || !asked):
		return errs.Errorf(errs.Unavailable, "freeze %q: %w: the guard process died (%s)", f.mountpoints, ErrBroken, exit)
	}
	return nil
}

func (f *Frozen) freezeError() error {
	if f.err != nil {
		return f.err
	}
	return errs.Errorf(errs.Unavailable, "freeze %q: %w", f.mountpoints, ErrBroken)
}
