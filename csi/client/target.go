package client

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cleatproject/cleat/errs"
)

// target is a place where a volume is, or is about to be, published. The
// driver makes what lies there and removes it again; Was remembers a directory
// that was there before, so that detaching gives it back.
type target struct {
	Path      string     `json:"path"`
	ReadOnly  bool       `json:"readOnly,omitempty"`
	Published bool       `json:"published,omitempty"`
	Was       *directory `json:"was,omitempty"`
}

type directory struct {
	Mode fs.FileMode `json:"mode"`
	UID  uint32      `json:"uid"`
	GID  uint32      `json:"gid"`
}

// newTarget looks at the place before the driver gets it.
func newTarget(path string, block, readOnly bool) (target, error) {
	t := target{Path: path, ReadOnly: readOnly}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" || strings.ContainsRune(path, 0) {
		return t, errs.Errorf(errs.Invalid, "target %q: give an absolute, clean path", path)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return t, nil
	case err != nil:
		return t, fmt.Errorf("target: %w", err)
	case block:
		return t, errs.Errorf(errs.Invalid, "target %s exists: a block volume appears as a file of its own, name one that does not exist", path)
	case !info.IsDir():
		return t, errs.Errorf(errs.Invalid, "target %s is no directory; name an empty or a new one (or --block for a device)", path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return t, fmt.Errorf("target: %w", err)
	}
	if len(entries) > 0 {
		return t, errs.Errorf(errs.Invalid, "target %s is not empty, the volume would hide what is in it; name an empty or a new directory", path)
	}
	t.Was = &directory{Mode: info.Mode().Perm()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		t.Was.UID, t.Was.GID = s.Uid, s.Gid
	}
	return t, nil
}

// prepare makes the parent, which is the orchestrator's to make.
func (t target) prepare() error {
	if err := os.MkdirAll(filepath.Dir(t.Path), 0o755); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	return nil
}

// restore puts back the directory that was there before.
func (t target) restore() error {
	if t.Was == nil {
		return nil
	}
	err := os.Mkdir(t.Path, t.Was.Mode)
	if errors.Is(err, fs.ErrExist) {
		return nil // the driver left it in place
	}
	if err == nil {
		err = errors.Join(os.Chmod(t.Path, t.Was.Mode), os.Chown(t.Path, int(t.Was.UID), int(t.Was.GID)))
	}
	if err != nil {
		return fmt.Errorf("giving back the directory that was at the target: %w", err)
	}
	return nil
}
