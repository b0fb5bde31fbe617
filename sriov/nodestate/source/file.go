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

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// grace is how long a file can be missing or open for writing, as while an editor
// replaces it.
const grace = time.Second

// A part of a file can be valid: the desired state of fewer interfaces.
var errBeingWritten = errors.New("open for writing")

// File reads a SriovNetworkNodeState from a YAML or JSON file. An invalid file
// is an Err, and one open for writing for over a second; one missing for over a
// second is Gone.
type File struct {
	path   string
	logger *slog.Logger
}

// NewFile returns a File source. logger can be nil.
func NewFile(path string, logger *slog.Logger) *File {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &File{path: filepath.Clean(path), logger: logger}
}

// Run implements Source.
func (f *File) Run(ctx context.Context, send func(Update)) error {
	var sent *Update
	var absentSince time.Time
	return watchDirectory(ctx, filepath.Dir(f.path), f.logger, func() (wait time.Duration) {
		update := f.read()
		absent := update.Gone || errors.Is(update.Err, errBeingWritten)
		switch {
		case !absent:
			absentSince = time.Time{}
		case absentSince.IsZero():
			absentSince = time.Now()
		}
		if sent != nil && equal(update, *sent) {
			return pollInterval
		}
		if left := grace - time.Since(absentSince); absent && sent != nil && left > 0 {
			return left
		}
		sent = &update
		send(update)
		return pollInterval
	})
}

func (f *File) read() Update {
	text, err := ReadFile(f.path, nodestate.MaxSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Update{Gone: true}
	case err != nil:
		return Update{Err: err}
	}
	state, warnings, err := nodestate.Parse(text)
	if err != nil {
		return Update{Err: fmt.Errorf("%s: %w", f.path, err)}
	}
	return Update{State: state, Warnings: warnings}
}

// ReadFile reads a regular file of at most limit bytes that no process writes.
// Reading other file types can block.
func ReadFile(path string, limit int) ([]byte, error) {
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
		return nil, fmt.Errorf("%s is not a regular file but %s", path, info.Mode().Type())
	}
	if err := keepUnwritten(file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	text, err := io.ReadAll(io.LimitReader(file, int64(limit)+1))
	if err == nil && len(text) > limit {
		err = fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return text, err
}

// keepUnwritten makes processes that open the file for writing wait until it is closed.
func keepUnwritten(file *os.File) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &fs); err != nil {
		return err
	}
	switch fs.Type {
	case unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC:
		return nil // EAGAIN there is the server's
	}
	// Other errors: the file system or the user has no leases.
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK); errors.Is(err, unix.EAGAIN) {
		return errBeingWritten
	}
	return nil
}
