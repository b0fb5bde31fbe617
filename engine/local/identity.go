package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/durable"
)

// poolRecordName in the state directory records which pool was served from
// which path.
const poolRecordName = "local-pool.json"

type poolRecord struct {
	Path string `json:"path"`
	UUID string `json:"uuid"`
}

// recordedPool returns the UUID of the pool last served from the path, or "".
func recordedPool(stateDir, path string) (string, error) {
	if stateDir == "" {
		return "", nil
	}
	name := filepath.Join(stateDir, poolRecordName)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var n poolRecord
	if err := json.Unmarshal(data, &n); err != nil {
		return "", errs.Errorf(errs.Precondition, "%s cannot be read: %w; remove it if the right disk is mounted", name, err)
	}
	if n.Path != path {
		return "", nil
	}
	return n.UUID, nil
}

// checkPoolNotMissing returns an error if the image or directory of a recorded
// pool would be created.
func checkPoolNotMissing(c Config, path string) error {
	pool, err := realPath(c.Pool)
	if err != nil {
		return err
	}
	expected, err := recordedPool(c.StateDir, pool)
	if err != nil || expected == "" {
		return err
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(filepath.Join(pool, identityName)); err == nil {
		return errs.Errorf(errs.Precondition, "it does not exist, but pool %s is in %s; do not configure an image, or restore the image", expected, pool)
	}
	return fmt.Errorf("it does not exist: %w", missingPoolError(expected))
}

func missingPoolError(uuid string) error {
	return errs.Errorf(errs.Precondition, "pool %s was served from here before and is not here now; mount its disk (or remove %s from the state directory to create a new pool)", uuid, poolRecordName)
}

// realPath resolves the links in a path whose last elements can be missing.
func realPath(path string) (string, error) {
	if path == "" {
		return "", errs.Errorf(errs.Invalid, "the pool directory is not set")
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
	case err != nil: // it does not exist
		return filepath.Join(parent, filepath.Base(path)), nil
	case filepath.IsAbs(target):
		return realPath(target)
	}
	return realPath(filepath.Join(parent, target))
}

// recordPool records the pool. The file is durable before its rename: a power
// loss can lose the record, which costs only a check, but must not leave an
// empty file, which would prevent the pool from opening.
func recordPool(stateDir, path, uuid string) error {
	if stateDir == "" {
		return nil
	}
	if known, err := recordedPool(stateDir, path); err != nil || known == uuid {
		return err
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(poolRecord{Path: path, UUID: uuid})
	if err != nil {
		return err
	}
	name := filepath.Join(stateDir, poolRecordName)
	if err := durable.Write(name, append(data, '\n')); err != nil {
		return fmt.Errorf("record the pool: %w", err)
	}
	return nil
}
