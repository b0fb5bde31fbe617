package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/flock"
)

// state is the state directory: the folders volumes, snapshots, groups and
// staging, and locks.
type state struct{ dir string }

func (s state) volumes() folder[*volumeNote] {
	return folder[*volumeNote]{filepath.Join(s.dir, "volumes")}
}

func (s state) snapshots() folder[*snapshotNote] {
	return folder[*snapshotNote]{filepath.Join(s.dir, "snapshots")}
}

func (s state) groups() folder[*groupNote] {
	return folder[*groupNote]{filepath.Join(s.dir, "groups")}
}

// attachments lie beside the staging directories.
func (s state) attachments() folder[*attachment] {
	return folder[*attachment]{filepath.Join(s.dir, "staging")}
}

// lockFiles bounds how many files locks take, however many objects there are;
// two objects that share one wait for each other, no more.
const lockFiles = 64

// lock makes calls for one object wait for each other, also those of other
// processes.
func (s state) lock(ctx context.Context, key string) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err // nothing is written for a caller that has gone
	}
	dir := filepath.Join(s.dir, "locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the directory for the client's locks: %w", err)
	}
	sum := sha256.Sum256([]byte(key))
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("%02d", sum[0]%lockFiles)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock.Lock(ctx, f); err != nil {
		return nil, errors.Join(fmt.Errorf("another command works on it: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil // closing releases the lock; nothing was written
}

// record is what a file holds. Its key is unique for a driver.
type record interface{ id() (driver, key string) }

// folder is a directory with one JSON file for each record of a kind.
type folder[R record] struct{ dir string }

// fileVersion is the version of the files' format.
const fileVersion = 1

type file[R any] struct {
	Version int `json:"version"`
	Record  R   `json:"record"`
}

const extension = ".json"

// path is the file of a record. The name is a hash: keys are anything that a
// driver or a user writes.
func (f folder[R]) path(driver, key string) string {
	sum := sha256.Sum256([]byte(driver + "\x00" + key))
	return filepath.Join(f.dir, hex.EncodeToString(sum[:12])+extension)
}

// put writes a record durably: after a crash the file is the old or the new one.
func (f folder[R]) put(r R) error {
	data, err := json.MarshalIndent(file[R]{fileVersion, r}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return fmt.Errorf("the client's state: %w", err)
	}
	path := f.path(r.id())
	if err := writeFile(path, append(data, '\n')); err != nil {
		return fmt.Errorf("the client's state: %w", err)
	}
	return nil
}

func writeFile(path string, data []byte) error {
	unfinished := path + ".new"
	w, err := os.OpenFile(unfinished, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	err = errors.Join(err, w.Sync(), w.Close())
	if err == nil {
		err = os.Rename(unfinished, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(unfinished))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// drop removes a record's file; one that does not exist is no error.
func (f folder[R]) drop(r R) error {
	err := os.Remove(f.path(r.id()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = syncDir(f.dir)
	}
	return err
}

// get reads a record; ok: it exists.
func (f folder[R]) get(driver, key string) (r R, ok bool, err error) {
	return f.read(f.path(driver, key))
}

func (f folder[R]) read(path string) (r R, ok bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err != nil {
		return r, false, fmt.Errorf("the client's state: %w", err)
	}
	content := file[*R]{}
	switch err := json.Unmarshal(data, &content); {
	case err != nil:
		return r, false, fmt.Errorf("%s is damaged: %w", path, err)
	case content.Version > fileVersion:
		return r, false, fmt.Errorf("%s was written by a newer cleat (version %d, this one reads %d): use that one", path, content.Version, fileVersion)
	case content.Record == nil:
		return r, false, fmt.Errorf("%s is damaged: it has no record", path)
	}
	return *content.Record, true, nil
}

// all returns the records of a driver.
func (f folder[R]) all(driver string) (out []R, err error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the client's state: %w", err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), extension) {
			continue // a staging directory, or an unfinished file
		}
		r, ok, err := f.read(filepath.Join(f.dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if !ok {
			continue // removed meanwhile
		}
		if of, _ := r.id(); of == driver {
			out = append(out, r)
		}
	}
	return out, nil
}
