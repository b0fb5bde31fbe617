package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

const (
	// maxFile bounds what is read of a file, in bytes; nodestate takes less.
	maxFile = nodestate.MaxSize + 1
	// grace is how long a file may be away, as while an editor replaces it, until
	// that means that nothing is wanted.
	grace = time.Second
)

// File is a source that reads a file with one SriovNetworkNodeState, as YAML or
// JSON. A file that is broken is an Update with Err; one that is not there, or
// away for more than a second, means that there is no node state.
type File struct {
	path   string
	logger *slog.Logger

	told  bool // something was sent
	text  []byte
	last  Update
	since time.Time // when the file was first found missing; zero: it was there
}

// NewFile makes one for a path. A nil logger says nothing.
func NewFile(path string, logger *slog.Logger) *File {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &File{path: filepath.Clean(path), logger: logger}
}

// Run is Source's. One at a time is possible.
func (f *File) Run(ctx context.Context, out chan<- Update) error {
	f.told, f.since = false, time.Time{}
	s := newSentry(filepath.Dir(f.path), f.logger)
	defer s.close()
	for ctx.Err() == nil {
		s.arm()
		update, pause := f.look(time.Now())
		if update == nil {
			s.wait(ctx, pause)
			continue
		}
		select {
		case out <- *update:
			f.sent(*update)
		case <-ctx.Done():
		case <-time.After(rescan): // what it says may be old by then
		}
	}
	return context.Cause(ctx)
}

// Look reads the file once.
func (f *File) Look() Update {
	text, err := read(f.path)
	return f.judge(text, err)
}

// look is what is to be sent, or how long to wait.
func (f *File) look(now time.Time) (*Update, time.Duration) {
	text, err := read(f.path)
	if !errors.Is(err, fs.ErrNotExist) {
		f.since = time.Time{}
	} else if f.since.IsZero() {
		f.since = now
	}
	if left := grace - now.Sub(f.since); !f.since.IsZero() && f.told && !f.last.Gone && left > 0 {
		return nil, left
	}
	if f.told && err == nil && f.last.Err == nil && !f.last.Gone && bytes.Equal(text, f.text) {
		return nil, rescan
	}
	update := f.judge(text, err)
	if f.told && same(update, f.last) {
		return nil, rescan
	}
	if update.Err == nil {
		f.text = text
	}
	return &update, 0
}

func (f *File) judge(text []byte, err error) (u Update) {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		u.Gone = true
	case err != nil:
		u.Err = err
	default:
		if u.State, u.Warnings, err = nodestate.Parse(text); err != nil {
			return Update{Err: fmt.Errorf("%s: %w", f.path, err)}
		}
	}
	return u
}

func (f *File) sent(u Update) { f.told, f.last = true, u }

// same: both say nothing more, or the same error.
func same(a, b Update) bool {
	switch {
	case a.Err != nil || b.Err != nil:
		return a.Err != nil && b.Err != nil && a.Err.Error() == b.Err.Error()
	default:
		return a.Gone && b.Gone
	}
}

// read reads a regular file; anything else, such as a pipe, could block.
func read(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file but %s", path, info.Mode().Type())
	}
	return io.ReadAll(io.LimitReader(file, maxFile))
}
