package register

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cleatproject/cleat/internal/linux/inotify"
)

// sentry tells at once when something happens to the socket's name. It only
// saves time: whatever it misses is seen at the next look.
type sentry struct {
	dir, name string
	logger    *slog.Logger
	watcher   *inotify.Watcher // nil: there is none to be had
	watch     inotify.Watch
	armed     bool
	events    []inotify.Event
}

const goings = inotify.Delete | inotify.MovedFrom | inotify.MovedTo | inotify.DeleteSelf | inotify.MoveSelf | inotify.OnlyDir

func newSentry(socket string, logger *slog.Logger) *sentry {
	s := &sentry{dir: filepath.Dir(socket), name: filepath.Base(socket), logger: logger}
	var err error
	if s.watcher, err = inotify.New(); err != nil {
		logger.Warn("the registration socket is not watched, only looked at now and then", "error", err)
	}
	return s
}

// arm watches whatever directory the path leads to now. It comes before a look,
// so that nothing can happen between the two.
func (s *sentry) arm() {
	if s.watcher == nil {
		return
	}
	watch, err := s.watcher.Add(s.dir, goings)
	if s.armed && (err != nil || watch != s.watch) { // of a directory that is elsewhere now
		_ = s.watcher.Remove(s.watch)
	}
	if err != nil {
		s.logger.Debug("the directory of the registration socket cannot be watched", "error", err)
	}
	s.watch, s.armed = watch, err == nil
}

// wait returns when something has happened to the name, when the time is over,
// or when ctx ends.
func (s *sentry) wait(ctx context.Context, long time.Duration) {
	until := time.Now().Add(long)
	for s.armed {
		var err error
		s.events, err = s.watcher.Read(ctx, until, s.events[:0])
		switch {
		case ctx.Err() != nil, errors.Is(err, os.ErrDeadlineExceeded), slices.ContainsFunc(s.events, s.concerns):
			return
		case err != nil:
			s.logger.Warn("the registration socket is no longer watched, only looked at now and then", "error", err)
			s.close()
		}
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// concerns leaves out other plugins' sockets, and the directory that a watch
// was just taken from.
func (s *sentry) concerns(e inotify.Event) bool {
	return e.Mask&inotify.Overflow != 0 || e.Watch == s.watch && (e.Name == s.name || e.Name == "")
}

func (s *sentry) close() {
	if s.watcher != nil {
		_ = s.watcher.Close()
	}
	s.watcher, s.armed = nil, false
}
