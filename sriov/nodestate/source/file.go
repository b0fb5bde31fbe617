package source

import (
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

// grace is how long a file may be missing, as while an editor replaces it, until
// that means that no node state exists.
const grace = time.Second

// File is a source that reads a file with one SriovNetworkNodeState, as YAML or
// JSON. An invalid file is an Update with Err; one that is missing for more than
// a second means that no node state exists.
type File struct {
	path   string
	logger *slog.Logger
}

// NewFile returns a source for a path. A nil logger logs nothing.
func NewFile(path string, logger *slog.Logger) *File {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &File{path: filepath.Clean(path), logger: logger}
}

// Run implements Source.
func (f *File) Run(ctx context.Context, send func(Update)) error {
	var sent *string           // fingerprint of the last Update
	var missingSince time.Time // zero: the file was there
	return watchDirectory(ctx, filepath.Dir(f.path), f.logger, func() (wait time.Duration) {
		text, err := readFile(f.path)
		update, fingerprint := Update{Gone: true}, "missing"
		switch {
		case !errors.Is(err, fs.ErrNotExist):
			missingSince = time.Time{}
			update, fingerprint = f.parse(text, err)
		case missingSince.IsZero():
			missingSince = time.Now()
		}
		if sent != nil && *sent == fingerprint {
			return rescan
		}
		if left := grace - time.Since(missingSince); update.Gone && sent != nil && left > 0 {
			return left
		}
		sent = &fingerprint
		send(update)
		return rescan
	})
}

// parse returns the Update for a file, and a text that is equal for files with
// equal updates.
func (f *File) parse(text []byte, err error) (u Update, fingerprint string) {
	if err != nil {
		return Update{Err: err}, "error " + err.Error()
	}
	if u.State, u.Warnings, err = nodestate.Parse(text); err != nil {
		u = Update{Err: fmt.Errorf("%s: %w", f.path, err)}
	}
	return u, "text " + string(text)
}

// readFile reads a regular file, one byte more than nodestate accepts at most.
// Anything else, such as a pipe, could block.
func readFile(path string) ([]byte, error) {
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
	return io.ReadAll(io.LimitReader(file, nodestate.MaxSize+1))
}
