package source

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/internal/linux/inotify"
)

// pollInterval is for changes without an event: behind a symbolic link, on some
// file systems, in a mount point.
const pollInterval = 10 * time.Second

// changes are watched in directories: a ConfigMap update replaces a symbolic
// link, and editors rename.
const changes = inotify.Create | inotify.Delete | inotify.MovedFrom | inotify.MovedTo | inotify.DeleteSelf | inotify.MoveSelf |
	unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | inotify.OnlyDir

// Watch calls changed after events in the file's directory, and every ten
// seconds. It returns the cause of ctx.
func Watch(ctx context.Context, path string, logger *slog.Logger, changed func()) error {
	return watchDirectory(ctx, filepath.Dir(path), logger, func() time.Duration {
		changed()
		return pollInterval
	})
}

// watchDirectory calls look first, after each event, and after the duration
// that look returned. Without inotify it polls.
func watchDirectory(ctx context.Context, dir string, logger *slog.Logger, look func() time.Duration) error {
	w := &directoryWatcher{dir: dir, logger: logger}
	var err error
	if w.inotify, err = inotify.New(); err != nil {
		logger.Warn("inotify unavailable, polling", "path", dir, "err", err)
	}
	defer w.close()
	for ctx.Err() == nil {
		w.arm() // before look, to miss no change
		w.wait(ctx, look())
	}
	return context.Cause(ctx)
}

type directoryWatcher struct {
	dir     string
	logger  *slog.Logger
	inotify *inotify.Watcher
	watch   inotify.Watch
	armed   bool
	events  []inotify.Event
}

// arm watches the directory that the path resolves to.
func (w *directoryWatcher) arm() {
	if w.inotify == nil {
		return
	}
	watch, err := w.inotify.Add(w.dir, changes)
	if w.armed && (err != nil || watch != w.watch) { // resolved to another directory before
		_ = w.inotify.Remove(w.watch)
	}
	if err != nil {
		w.logger.Debug("directory watch failed", "path", w.dir, "err", err)
	}
	w.watch, w.armed = watch, err == nil
}

func (w *directoryWatcher) wait(ctx context.Context, long time.Duration) {
	until := time.Now().Add(long)
	if w.armed {
		var err error
		w.events, err = w.inotify.Read(ctx, until, w.events[:0])
		if err == nil || ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		w.logger.Warn("inotify failed, polling", "path", w.dir, "err", err)
		w.close()
	}
	_ = backoff.Sleep(ctx, time.Until(until))
}

func (w *directoryWatcher) close() {
	if w.inotify != nil {
		_ = w.inotify.Close()
	}
	w.inotify, w.armed = nil, false
}
