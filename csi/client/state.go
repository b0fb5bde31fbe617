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

	"github.com/cleatproject/cleat/internal/durable"
	"github.com/cleatproject/cleat/internal/linux/flock"
)

// state is a directory with a folder for each kind of record, and locks.
type state struct{ dir string }

// record is the content of a file. The key is unique for driver and folder.
// Methods of a nil record work.
type record interface {
	folder() string
	id() (driver, key string)
}

func (*volumeRecord) folder() string   { return "volumes" }
func (*snapshotRecord) folder() string { return "snapshots" }
func (*groupRecord) folder() string    { return "groups" }
func (*attachment) folder() string     { return "staging" } // beside the staging directories

// lockFiles bounds how many files locks take, however many objects there are;
// two objects that share one wait for each other, no more.
const lockFiles = 64

// lock serializes calls for one object, also those of other processes.
func (s state) lock(ctx context.Context, r record) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err // the caller has gone
	}
	dir := filepath.Join(s.dir, "locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(s.path(r)))
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("%02d", sum[0]%lockFiles)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock.Lock(ctx, f); err != nil {
		return nil, errors.Join(fmt.Errorf("another command works on it: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil // releases the lock
}

const fileVersion = 1

type file[R any] struct {
	Version int `json:"version"`
	Record  R   `json:"record"`
}

const extension = ".json"

// path is the file of a record. The name is a hash: keys are anything that a
// driver or a user writes.
func (s state) path(r record) string {
	driver, key := r.id()
	sum := sha256.Sum256([]byte(driver + "\x00" + key))
	return filepath.Join(s.dir, r.folder(), hex.EncodeToString(sum[:12])+extension)
}

// put is atomic and durable.
func (s state) put(r record) error {
	data, err := json.MarshalIndent(file[record]{fileVersion, r}, "", "  ")
	if err != nil {
		return err
	}
	return durable.Write(s.path(r), append(data, '\n'))
}

// drop ignores a missing record.
func (s state) drop(r record) error { return durable.Remove(s.path(r)) }

// stored returns the file's version of a record; known: it exists.
func stored[R record](s state, r R) (found R, known bool, err error) {
	return read[R](s.path(r))
}

func storedAll[R record](s state, driver string) (out []R, err error) {
	var none R
	dir := filepath.Join(s.dir, none.folder())
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), extension) {
			continue // a staging directory, or an unfinished file
		}
		r, exists, err := read[R](filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if !exists {
			continue // removed meanwhile
		}
		if of, _ := r.id(); of == driver {
			out = append(out, r)
		}
	}
	return out, nil
}

func read[R record](path string) (r R, exists bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err != nil {
		return r, false, err
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
