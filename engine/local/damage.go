package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// damage is a defect of the pool or a file: the error of calls that need it,
// and the condition that health reports.
type damage struct {
	volume.Condition
	what string // the message without the action
	err  error
}

func (d *damage) Error() string { return d.err.Error() }

func (d *damage) Unwrap() error { return d.err }

// damaged has the kind Precondition. remedy and cause are only in the error: the
// condition begins with its reason's action.
func damaged(s volume.Severity, reason, what, remedy string, cause error) error {
	err := errs.Errorf(errs.Precondition, "%s; %s", what, remedy)
	if cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return &damage{volume.NewCondition(s, reason, what), what, err}
}

// unusable: no regular file has the name, so that removal loses no data.
func unusable(err error) bool {
	d, ok := errors.AsType[*damage](err)
	return ok && (d.Reason == volume.ReasonFileMissing || d.Reason == volume.ReasonFileForeign)
}

// conditionOf returns the condition in an error, and other errors unchanged. An
// empty reason means no damage.
func conditionOf(err error) (volume.Condition, error) {
	if d, ok := errors.AsType[*damage](err); ok {
		return d.Condition, nil
	}
	return volume.Condition{}, err
}

// checkPresent checks that the pool's path leads to the open pool, and not to a
// mount over it or the directory below its mount point.
func (p *pool) checkPresent() error {
	held, err := p.identity.Stat()
	var seen fs.FileInfo
	if err == nil {
		seen, err = os.Stat(filepath.Join(p.path, identityName))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), err == nil && !sameFile(held, seen):
		return damaged(volume.Inaccessible, volume.ReasonPoolMissing, fmt.Sprintf(
			"pool %s is not at %s any more (unmounted, mounted over, or without its pool.json)", p.uuid, p.path), "mount it there again", nil)
	case err != nil:
		err = errs.Errorf(errs.Unavailable, "pool %s is not accessible: %w", p.path, err)
		return &damage{volume.NewCondition(volume.Inaccessible, volume.ReasonPoolMissing, err.Error()), err.Error(), err}
	}
	return nil
}

func sameFile(a, b fs.FileInfo) bool {
	x, okX := a.Sys().(*syscall.Stat_t)
	y, okY := b.Sys().(*syscall.Stat_t)
	return okX && okY && x.Dev == y.Dev && x.Ino == y.Ino
}

// inspect accepts a regular file of at least size bytes, without following
// links.
func (p *pool) inspect(name string, size int64) (fs.FileInfo, error) {
	info, err := p.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, damaged(volume.DataLoss, volume.ReasonFileMissing, name+" is missing from the pool", "restore the file, or "+remedy(name), err)
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, damaged(volume.DataLoss, volume.ReasonFileForeign, fmt.Sprintf("%s is a %s instead of a regular file", name, typeName(info.Mode())), "restore the file, or "+remedy(name), nil)
	}
	return info, truncated(name, info.Size(), size)
}

func truncated(name string, have, want int64) error {
	if have >= want {
		return nil
	}
	return damaged(volume.DataLoss, volume.ReasonFileTruncated, fmt.Sprintf("%s was truncated to %d of %d bytes", name, have, want), "restore the whole file, or "+remedy(name), nil)
}

func remedy(name string) string {
	if strings.HasPrefix(name, snapshotsDir+"/") {
		return "delete the snapshot"
	}
	return "delete the volume and restore it from a snapshot or a backup"
}

func typeName(m fs.FileMode) string {
	switch m.Type() {
	case fs.ModeDir:
		return "directory"
	case fs.ModeSymlink:
		return "symbolic link"
	case fs.ModeNamedPipe:
		return "FIFO"
	case fs.ModeSocket:
		return "socket"
	}
	return "device"
}

func (p *pool) openFile(name string, flags int, size int64) (*os.File, error) {
	info, err := p.inspect(name, size)
	if err != nil {
		return nil, err
	}
	f, err := p.root.OpenFile(name, flags, 0)
	if err != nil {
		return nil, err
	}
	if opened, err := f.Stat(); err != nil || !sameFile(info, opened) {
		return nil, errors.Join(errs.Errorf(errs.Busy, "%s is being replaced; retry", name), err, f.Close())
	}
	return f, nil
}
