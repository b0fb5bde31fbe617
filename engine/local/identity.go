package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cleatproject/cleat/errs"
)

// noteName is the file in the state directory that remembers which pool was
// served from which path.
const noteName = "local-pool.json"

// note is its content.
type note struct {
	Path string `json:"path"`
	UUID string `json:"uuid"`
}

// remembered returns the UUID of the pool that was last served from the path;
// empty when none was.
func remembered(stateDir, path string) (string, error) {
	if stateDir == "" {
		return "", nil
	}
	name := filepath.Join(stateDir, noteName)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var n note
	if err := json.Unmarshal(data, &n); err != nil {
		return "", errs.Errorf(errs.Precondition, "%s cannot be read: %w; remove it if the right disk is mounted", name, err)
	}
	if n.Path != path {
		return "", nil
	}
	return n.UUID, nil
}

// checkNotLost refuses to create the image or the directory, at path, of a pool
// that was served from here before.
func checkNotLost(c Config, path string) error {
	pool, err := realPath(c.Pool)
	if err != nil {
		return err
	}
	expected, err := remembered(c.StateDir, pool)
	if err != nil || expected == "" {
		return err
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(filepath.Join(pool, identityName)); err == nil {
		return errs.Errorf(errs.Precondition, "it does not exist, and pool %s is at %s without it; leave the image out, or put it back", expected, pool)
	}
	return fmt.Errorf("it does not exist: %w", lostPool(expected))
}

func lostPool(uuid string) error {
	return errs.Errorf(errs.Precondition, "pool %s was served from here before and is not here now; mount its disk (or remove %s from the state directory to begin a new pool)", uuid, noteName)
}

// realPath resolves the links in a path whose last elements need not exist.
func realPath(path string) (string, error) {
	if path == "" {
		return "", errs.Errorf(errs.Invalid, "no pool directory is given")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return real, err
	}
	parent, err := realPath(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	target, err := os.Readlink(path)
	switch {
	case err != nil: // it does not exist, or went just now
		return filepath.Join(parent, filepath.Base(path)), nil
	case filepath.IsAbs(target):
		return realPath(target)
	}
	return realPath(filepath.Join(parent, target))
}

// remember notes the pool. The file is durable before it gets its name: a
// power cut may lose the note, which costs a check, but must not leave an empty
// one, which would keep the pool closed.
func remember(stateDir, path, uuid string) error {
	if stateDir == "" {
		return nil
	}
	if known, err := remembered(stateDir, path); err != nil || known == uuid {
		return err
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(note{Path: path, UUID: uuid})
	if err != nil {
		return err
	}
	name := filepath.Join(stateDir, noteName)
	if err := replaceFile(name, append(data, '\n')); err != nil {
		return fmt.Errorf("note the pool: %w", err)
	}
	return nil
}

// replaceFile writes a file: after a crash or a power loss it is the old or the new
// one.
func replaceFile(path string, data []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}
