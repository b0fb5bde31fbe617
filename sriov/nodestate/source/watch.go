package source

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/inotify"
)

// rescan is how long a change without an event can stay unseen: through a
// symbolic link to another directory, on a file system without events, in a file
// that is a mount of its own.
const rescan = 10 * time.Second

// changes are the events that may change what a name in a directory leads to.
// Directories are watched, not files: a ConfigMap changes by a symbolic link
// beside the name, editors rename over it.
const changes = inotify.Create | inotify.Delete | inotify.MovedFrom | inotify.MovedTo | inotify.DeleteSelf | inotify.MoveSelf |
	unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | inotify.OnlyDir

// Watch calls changed after each event in the directory of a file, and every ten
// seconds besides. It returns the cause of the end of ctx.
func Watch(ctx context.Context, path string, logger *slog.Logger, changed func()) error {
	return watchDirectory(ctx, filepath.Dir(path), logger, func() time.Duration {
		changed()
		return rescan
	})
}

// watchDirectory calls look at first and after each event in a directory, and
// when the time that look returned has passed. Events only save time: without
// inotify it polls.
func watchDirectory(ctx context.Context, dir string, logger *slog.Logger, look func() time.Duration) error {
	w := &directoryWatcher{dir: dir, logger: logger}
	var err error
	if w.inotify, err = inotify.New(); err != nil {
		logger.Warn("directory is polled, not watched", "directory", dir, "err", err)
	}
	defer w.close()
	for ctx.Err() == nil {
		w.arm() // first, so that no change falls between look and wait
		w.wait(ctx, look())
	}
	return context.Cause(ctx)
}

// directoryWatcher waits for events of a directory.
type directoryWatcher struct {
	dir     string
	logger  *slog.Logger
	inotify *inotify.Watcher // nil: not available
	watch   inotify.Watch
	armed   bool // watch is set
	events  []inotify.Event
}

// arm watches the directory that the path leads to now.
func (w *directoryWatcher) arm() {
	if w.inotify == nil {
		return
	}
	watch, err := w.inotify.Add(w.dir, changes)
	if w.armed && (err != nil || watch != w.watch) { // the path led to another directory before
		_ = w.inotify.Remove(w.watch)
	}
	if err != nil {
		w.logger.Debug("directory cannot be watched", "directory", w.dir, "err", err)
	}
	w.watch, w.armed = watch, err == nil
}

// wait returns after an event, after that time, or when ctx ends.
func (w *directoryWatcher) wait(ctx context.Context, long time.Duration) {
	until := time.Now().Add(long)
	if w.armed {
		var err error
		w.events, err = w.inotify.Read(ctx, until, w.events[:0])
		if err == nil || ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		w.logger.Warn("directory is no longer watched, only polled", "directory", w.dir, "err", err)
		w.close()
	}
	sleep(ctx, time.Until(until))
}

func (w *directoryWatcher) close() {
	if w.inotify != nil {
		_ = w.inotify.Close()
	}
	w.inotify, w.armed = nil, false
}

// sleep returns after that time, or when ctx ends.
func sleep(ctx context.Context, long time.Duration) {
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
