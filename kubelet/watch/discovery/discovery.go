// Package discovery reports sockets that come and go below a directory, at any
// depth. It uses inotify, and compares the tree periodically and after lost
// events.
//
// Symbolic links to sockets count; names below the directory that begin with a
// dot do not. Symbolic links to directories are not followed, except the
// directory itself.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cleatproject/cleat/internal/linux/inotify"
)

// Change is a socket that came or went. A replaced socket is reported as gone,
// then as new.
type Change struct {
	Path string // Options.Dir as given
	Gone bool
}

// Options configure a Finder; Observe is optional.
type Options struct {
	Dir    string // absolute and clean
	Rescan time.Duration
	Logger *slog.Logger
	// Report receives changes in order, in the goroutine of Start and Run.
	// While it blocks, events wait in the kernel.
	Report  func([]Change)
	Observe Observer
}

// Observer has optional functions for metrics.
type Observer struct {
	Scanned    func(cause string) // periodic or overflow
	Overflowed func()
	Unseen     func(directories int) // number not watched
}

// Finder watches one directory.
type Finder struct {
	Options
	watcher *inotify.Watcher
	real    string // symbolic links resolved
	root    *dir   // nil: missing
	watches map[inotify.Watch][]*dir
	anchors map[inotify.Watch]string // parents, with the name to watch in each

	changes  []Change
	problems map[string]error // by directory
	health   atomic.Pointer[error]

	rootUnconfirmed bool // might not be the directory at Dir
	eventsLost      bool
	warned          time.Time
	scanned         time.Time
	took            time.Duration // of the last scan
}

// New returns an idle Finder.
func New(o Options) *Finder {
	return &Finder{Options: o, watches: map[inotify.Watch][]*dir{}, anchors: map[inotify.Watch]string{}, problems: map[string]error{}}
}

// Start creates the directory if missing, watches it, and reports the existing
// sockets. An error means that sockets would be missed.
func (f *Finder) Start() error {
	if err := f.start(); err != nil {
		if f.watcher != nil {
			err = errors.Join(err, f.watcher.Close())
		}
		return err
	}
	return nil
}

func (f *Finder) start() error {
	if err := makeDir(f.Dir); err != nil {
		return err
	}
	var err error
	if f.watcher, err = inotify.New(); err != nil {
		return err
	}
	begun := time.Now()
	f.locate()
	f.scanned = time.Now()
	f.took = f.scanned.Sub(begun)
	if err := f.problems[f.Dir]; err != nil {
		return err
	}
	for _, err := range f.problems {
		if errors.Is(err, inotify.ErrWatches) {
			return err
		}
	}
	f.flush()
	return nil
}

func makeDir(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("create the directory %s: %w", path, err)
	}
	if err := os.Mkdir(path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create the directory: %w", err)
	}
	return nil
}

// Run reports changes until ctx ends, and closes the watcher.
func (f *Finder) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, f.watcher.Close()) }()
	var events []inotify.Event
	for {
		events, err = f.watcher.Read(ctx, f.nextScan(), events[:0])
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			f.rescan()
		case err != nil:
			err = fmt.Errorf("read inotify events: %w", err)
			f.health.Store(&err)
			return err
		}
		for _, e := range events {
			f.handle(e)
		}
		if f.rootUnconfirmed {
			f.check()
		}
		f.flush()
	}
}

// Close closes the watcher if Run is not called.
func (f *Finder) Close() error { return f.watcher.Close() }

// Health returns nil while every directory is watched and readable.
func (f *Finder) Health() error {
	if err := f.health.Load(); err != nil {
		return *err
	}
	return nil
}

// nextScan limits scans to a fixed share of the time, whatever the tree and the
// lost events.
func (f *Finder) nextScan() time.Time {
	if f.eventsLost {
		return f.scanned.Add(4 * f.took)
	}
	return f.scanned.Add(max(f.Rescan, 50*f.took))
}

func (f *Finder) rescan() {
	cause := "periodic"
	if f.eventsLost {
		cause = "overflow"
		f.drain()
	}
	begun := time.Now()
	f.eventsLost, f.rootUnconfirmed = false, false
	if !f.check() {
		f.scan(f.root)
	}
	f.scanned = time.Now()
	f.took = f.scanned.Sub(begun)
	if f.Observe.Scanned != nil {
		f.Observe.Scanned(cause)
	}
}

// drain handles queued events, so that a scan does not anticipate them.
func (f *Finder) drain() {
	for range 100 {
		events, err := f.watcher.Pending(nil)
		if err != nil || len(events) == 0 {
			return
		}
		for _, e := range events {
			f.handle(e)
		}
	}
}

func (f *Finder) handle(e inotify.Event) {
	if e.Mask&inotify.Overflow != 0 {
		f.eventsLost = true
		if now := time.Now(); now.Sub(f.warned) > time.Minute {
			f.warned = now
			f.Logger.Warn("inotify events lost, rescanning", "path", f.Dir,
				"advice", "raise the sysctl fs.inotify.max_queued_events if this happens often")
		}
		if f.Observe.Overflowed != nil {
			f.Observe.Overflowed()
		}
		return
	}
	if name, above := f.anchors[e.Watch]; above && (e.Name == "" || e.Name == name) {
		f.rootUnconfirmed = true
	}
	for _, d := range f.watches[e.Watch] {
		switch {
		case d.dropped:
		case e.Name == "" && d == f.root:
			f.rootUnconfirmed = true
		case e.Name == "" && e.Mask&inotify.Ignored != 0: // unmount, deletion
			d.watch = 0
			f.lookDir(d.parent, d.name, false)
		case e.Name == "" || hidden(e.Name):
		case e.Mask&(inotify.Delete|inotify.MovedFrom) != 0:
			f.removed(d, e.Name)
		case e.Mask&inotify.IsDir != 0:
			f.lookDir(d, e.Name, false)
		default:
			f.look(d, e.Name)
		}
	}
	if e.Mask&inotify.Ignored != 0 {
		delete(f.watches, e.Watch)
		delete(f.anchors, e.Watch)
	}
}

func (f *Finder) flush() {
	if len(f.changes) > 0 {
		f.Report(f.changes)
		f.changes = nil
	}
}

func (f *Finder) problem(path string, err error) {
	before := f.problems[path]
	switch {
	case err == nil && before == nil, err != nil && before != nil && err.Error() == before.Error():
		return
	case err == nil:
		delete(f.problems, path)
		f.Logger.Info("watching directory again", "path", path)
	default:
		f.problems[path] = err
		f.Logger.Error("watching directory failed, rescanning periodically", "path", path,
			"interval", f.Rescan, "err", err)
	}
	f.publish()
}

func (f *Finder) forget(path string) {
	if f.problems[path] != nil {
		delete(f.problems, path)
		f.publish()
	}
}

func (f *Finder) publish() {
	f.health.Store(f.worst())
	if f.Observe.Unseen != nil {
		f.Observe.Unseen(len(f.problems))
	}
}

// worst prefers the root directory's problem.
func (f *Finder) worst() *error {
	var worst error
	for path, err := range f.problems {
		if worst == nil || path == f.Dir {
			worst = err
		}
	}
	switch more := len(f.problems) - 1; {
	case worst == nil:
		return nil
	case more > 0:
		worst = fmt.Errorf("%w (and %d more directories)", worst, more)
	}
	return &worst
}
