// Package discovery reports which sockets come and go below a directory, at any
// depth: from the kernel's events, and by comparing the whole tree after lost
// events and periodically.
//
// UNIX sockets and symbolic links to them count, unless a name in their path
// below the directory begins with a dot. Symbolic links to directories are not
// followed, except the directory itself.
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

// Change is one socket that came or went. A socket that was replaced by another
// at the same path goes, then comes.
type Change struct {
	Path string // below Options.Dir as it was given
	Gone bool
}

// Options are those of a Finder; all but Observe are needed.
type Options struct {
	Dir    string // absolute and clean
	Rescan time.Duration
	Logger *slog.Logger
	// Report receives changes, in order, in the goroutine of Start and Run. While
	// it blocks, events wait in the kernel.
	Report  func([]Change)
	Observe Observer
}

// Observer is called for metrics; nil functions are left out.
type Observer struct {
	Scanned    func(cause string) // periodic or overflow
	Overflowed func()
	Unseen     func(directories int) // the new number of directories that are not watched
}

// Finder watches one directory.
type Finder struct {
	Options
	watcher *inotify.Watcher
	real    string // the directory without symbolic links
	root    *dir   // nil: it does not exist
	watches map[inotify.Watch][]*dir
	anchors map[inotify.Watch]string // directories above, and the name that matters in each, if any

	changes  []Change
	problems map[string]error // by directory
	health   atomic.Pointer[error]

	rootUnconfirmed bool // root might no longer be the directory at that path
	eventsLost      bool
	warned          time.Time
	scanned         time.Time
	took            time.Duration // the last scan
}

// New returns a Finder; it does nothing before Start.
func New(o Options) *Finder {
	return &Finder{Options: o, watches: map[inotify.Watch][]*dir{}, anchors: map[inotify.Watch]string{}, problems: map[string]error{}}
}

// Start creates the directory when it is missing, watches it, and reports the
// sockets that exist. An error means that sockets would be missed.
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
		return fmt.Errorf("make the directory %s: %w", path, err)
	}
	if err := os.Mkdir(path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the directory: %w", err)
	}
	return nil
}

// Run reports changes until ctx ends, and closes the watcher. An error means
// that it ended before.
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
			err = fmt.Errorf("events cannot be read any more: %w", err)
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

// Close closes the watcher, when Run is not called.
func (f *Finder) Close() error { return f.watcher.Close() }

// Health is nil while every directory is watched and read. It can be called at
// any time.
func (f *Finder) Health() error {
	if err := f.health.Load(); err != nil {
		return *err
	}
	return nil
}

// nextScan is when the whole tree is compared. Scans take a fixed part of the
// time at most, however large the tree, and however many events are lost.
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

// drain handles queued events, so that a scan does not see what they report
// before they do.
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
			f.Logger.Warn("the kernel dropped events, the whole directory is compared", "directory", f.Dir,
				"advice", "raise the sysctl fs.inotify.max_queued_events when this comes often")
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
		case e.Name == "" && e.Mask&inotify.Ignored != 0: // unmounted, or gone
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

// problem records why a directory is not seen; nil: it is seen.
func (f *Finder) problem(path string, err error) {
	before := f.problems[path]
	switch {
	case err == nil && before == nil, err != nil && before != nil && err.Error() == before.Error():
		return
	case err == nil:
		delete(f.problems, path)
		f.Logger.Info("the directory is seen again", "directory", path)
	default:
		f.problems[path] = err
		f.Logger.Error("a directory is not watched, it is compared periodically", "directory", path,
			"every", f.Rescan, "error", err)
	}
	f.publish()
}

// forget drops the problem of a directory that is gone.
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

// worst is the problem that Health reports: that of the root, or any.
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
