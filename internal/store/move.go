package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cleatproject/cleat/internal/crashpoint"
)

// Move moves a store, possibly to another file system, unless one exists at to;
// moved: this call did. At any time a complete store is at one of the paths: an
// interrupted Move is completed by the next one. The store must not be open.
// Errors: as Open.
func Move(ctx context.Context, from, to string, o Options) (moved bool, err error) {
	if _, err := os.Lstat(from); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return false, err
	}
	o.ReadOnly = true
	s, err := Open(ctx, from, o) // its lock excludes writers
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	data, err := os.ReadFile(from)
	if err != nil {
		return false, err
	}
	switch existing, err := os.ReadFile(to); {
	case err == nil && !bytes.Equal(existing, data): // already in use
		return false, nil
	case errors.Is(err, fs.ErrNotExist):
		if err := replace(to, data); err != nil {
			return false, fmt.Errorf("move store %s to %s: %w", from, to, err)
		}
	case err != nil:
		return false, err
	default: // an earlier call renamed it, and can have failed to sync
		if err := syncDir(filepath.Dir(to)); err != nil {
			return false, err
		}
	}
	crashpoint.Hit("store-move.renamed")
	if err := os.Remove(from); err != nil {
		return false, err
	}
	return true, syncDir(filepath.Dir(from))
}

func replace(path string, data []byte) error {
	moved := unfinished(path, "moved")
	if err := writeFile(moved, data, int64(len(data))); err != nil {
		return err
	}
	crashpoint.Hit("store-move.copied")
	if err := os.Rename(moved, path); err != nil {
		return errors.Join(err, os.Remove(moved))
	}
	return syncDir(filepath.Dir(path))
}
