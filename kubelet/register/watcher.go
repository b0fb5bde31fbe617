package register

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/internal/linux/inotify"
)

// socketWatcher wakes the loop when the socket file changes. It only saves
// time: the periodic check finds all changes.
type socketWatcher struct {
	dir, name string
	logger    *slog.Logger
	watcher   *inotify.Watcher // nil: not available
	watch     inotify.Watch
	watching  bool
	events    []inotify.Event
}

const watchMask = inotify.Delete | inotify.MovedFrom | inotify.MovedTo | inotify.DeleteSelf | inotify.MoveSelf | inotify.OnlyDir

func newSocketWatcher(socket string, logger *slog.Logger) *socketWatcher {
	s := &socketWatcher{dir: filepath.Dir(socket), name: filepath.Base(socket), logger: logger}
	var err error
	if s.watcher, err = inotify.New(); err != nil {
		logger.Warn("watching registration socket failed, checking periodically", "err", err)
	}
	return s
}

// arm watches the directory before a check, so that no change in between is
// missed.
func (s *socketWatcher) arm() {
	if s.watcher == nil {
		return
	}
	watch, err := s.watcher.Add(s.dir, watchMask)
	if s.watching && (err != nil || watch != s.watch) { // another directory
		_ = s.watcher.Remove(s.watch)
	}
	if err != nil {
		s.logger.Debug("watching registration directory failed", "err", err)
	}
	s.watch, s.watching = watch, err == nil
}

func (s *socketWatcher) wait(ctx context.Context, d time.Duration) {
	until := time.Now().Add(d)
	for s.watching {
		var err error
		s.events, err = s.watcher.Read(ctx, until, s.events[:0])
		switch {
		case ctx.Err() != nil, errors.Is(err, os.ErrDeadlineExceeded), slices.ContainsFunc(s.events, s.isRelevant):
			return
		case err != nil:
			s.logger.Warn("watching registration socket failed, checking periodically", "err", err)
			s.close()
		}
	}
	_ = backoff.Sleep(ctx, time.Until(until))
}

// Irrelevant are other sockets, and a directory that is no longer watched.
func (s *socketWatcher) isRelevant(e inotify.Event) bool {
	return e.Mask&inotify.Overflow != 0 || e.Watch == s.watch && (e.Name == s.name || e.Name == "")
}

func (s *socketWatcher) close() {
	if s.watcher != nil {
		_ = s.watcher.Close()
	}
	s.watcher, s.watching = nil, false
}
