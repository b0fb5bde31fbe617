// Package durable changes small files so that they are whole after a crash, and
// on the disk when the call returns.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write creates or replaces a file, which only its owner can read. It creates
// the directory too, not those above it. Concurrent calls for one file are not
// possible.
func Write(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err == nil {
		err = SyncDir(filepath.Dir(dir))
		if err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	unfinished := path + ".new"
	f, err := os.OpenFile(unfinished, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(unfinished, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(unfinished))
	}
	return SyncDir(dir)
}

// Remove removes a file. A missing one is no error.
func Remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir writes a directory's entries to the disk.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
