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

// rescan is how long a change may go unseen that no event tells: behind a
// symbolic link that leads to another directory, on a file system without
// events, in a file that was mounted by itself.
const rescan = 10 * time.Second

// changes is whatever may change what a name in a directory leads to.
// Directories are watched, not files: a ConfigMap changes by a symbolic link
// beside the name, editors rename over it.
const changes = inotify.Create | inotify.Delete | inotify.MovedFrom | inotify.MovedTo | inotify.DeleteSelf | inotify.MoveSelf |
	unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | inotify.OnlyDir

// sentry tells soon when something happened in a directory. It only saves
// time: whatever it misses is seen at the next look.
type sentry struct {
	dir     string
	logger  *slog.Logger
	watcher *inotify.Watcher // nil: there is none to be had
	watch   inotify.Watch
	armed   bool
	events  []inotify.Event
}

func newSentry(dir string, logger *slog.Logger) *sentry {
	s := &sentry{dir: dir, logger: logger}
	var err error
	if s.watcher, err = inotify.New(); err != nil {
		logger.Warn("a directory is not watched, only looked at now and then", "directory", dir, "error", err)
	}
	return s
}

// arm watches whatever directory the path leads to. It comes before a look, so
// that nothing can happen between the two.
func (s *sentry) arm() {
	if s.watcher == nil {
		return
	}
	watch, err := s.watcher.Add(s.dir, changes)
	if s.armed && (err != nil || watch != s.watch) { // of a directory that is elsewhere
		_ = s.watcher.Remove(s.watch)
	}
	if err != nil {
		s.logger.Debug("a directory cannot be watched", "directory", s.dir, "error", err)
	}
	s.watch, s.armed = watch, err == nil
}

// wait returns when something has happened, when the time is over, or when ctx
// ends.
func (s *sentry) wait(ctx context.Context, long time.Duration) {
	until := time.Now().Add(long)
	if s.armed {
		var err error
		s.events, err = s.watcher.Read(ctx, until, s.events[:0])
		if err == nil || ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		s.logger.Warn("a directory is no longer watched, only looked at now and then", "directory", s.dir, "error", err)
		s.close()
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (s *sentry) close() {
	if s.watcher != nil {
		_ = s.watcher.Close()
	}
	s.watcher, s.armed = nil, false
}

// Watch calls kick whenever something happened in the directory of a file, and
// now and then besides. It returns the context's cause when that ends.
func Watch(ctx context.Context, path string, logger *slog.Logger, kick func()) error {
	s := newSentry(filepath.Dir(path), logger)
	defer s.close()
	for ctx.Err() == nil {
		s.arm()
		kick()
		s.wait(ctx, rescan)
	}
	return context.Cause(ctx)
}
