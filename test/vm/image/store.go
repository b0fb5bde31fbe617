// Package image builds test guests from Debian packages that are downloaded and
// unpacked, but not installed: kernels with modules, file system tools with
// libraries, and a QEMU newer than the host's. All results are created
// atomically, once, in a cache outside the source tree.
package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cleatproject/cleat/internal/linux/flock"
)

// Store is the cache of images.
type Store struct {
	dir string
	log func(format string, args ...any)
}

// Open opens or creates the cache in dir. log reports slow steps.
func Open(dir string, log func(format string, args ...any)) (*Store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cache of test guests: %w", err)
	}
	return &Store{dir: dir, log: log}, nil
}

// DefaultDir is the default directory of the cache: CLEAT_VM_CACHE, else
// cleat/vm in the user's cache directory.
func DefaultDir() (string, error) {
	if dir := os.Getenv("CLEAT_VM_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for the cache of test guests (set CLEAT_VM_CACHE): %w", err)
	}
	return filepath.Join(dir, "cleat", "vm"), nil
}

// locked runs f with the cache locked against other processes.
func (s *Store) locked(ctx context.Context, f func() error) error {
	lock, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("cache of test guests: %w", err)
	}
	defer lock.Close()
	if err := flock.Lock(ctx, lock); err != nil {
		return fmt.Errorf("cache of test guests: %w", err)
	}
	return f()
}

// once returns the directory kind/key, created with fill if needed. The caller
// holds the lock.
func (s *Store) once(kind, key string, fill func(dir string) error) (string, error) {
	dir := filepath.Join(s.dir, kind, key)
	now := time.Now()
	switch err := os.Chtimes(dir, now, now); { // time of the last use
	case err == nil:
		return dir, nil
	case !errors.Is(err, os.ErrNotExist):
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	half := dir + unfinished
	if err := os.RemoveAll(half); err != nil { // left over from a killed run
		return "", err
	}
	if err := os.Mkdir(half, 0o755); err != nil {
		return "", err
	}
	if err := fill(half); err != nil {
		return "", errors.Join(err, os.RemoveAll(half))
	}
	return dir, os.Rename(half, dir)
}

const (
	unfinished = ".unfinished"
	// keep is how long unused entries stay in the cache.
	keep = 14 * 24 * time.Hour
)

// Agent is the path of the agent binary of a source tree. Each tree has its
// own.
func (s *Store) Agent(root string) (string, error) {
	dir := filepath.Join(s.dir, agentsDir, hashOf(root))
	now := time.Now()
	return filepath.Join(dir, "agent"), errors.Join(os.MkdirAll(dir, 0o755), os.Chtimes(dir, now, now))
}

// expire removes unused entries. The caller holds the lock.
func (s *Store) expire(now time.Time) error {
	for _, kind := range []string{packagesDir, guestsDir, agentsDir} {
		entries, err := os.ReadDir(filepath.Join(s.dir, kind))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || now.Sub(info.ModTime()) < keep {
				continue
			}
			if err := os.RemoveAll(filepath.Join(s.dir, kind, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
