// Package durable changes small files so that they are whole after a crash, and
// on the disk when the call returns. After an error the call can be repeated: a
// repeat writes a new file, whose blocks no write has failed on, and changes or
// syncs the directory again. A file system with a journal (ext4, XFS, btrfs)
// whose directory could not be written stops: the repeat fails too.
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
		if err := SyncDir(filepath.Dir(dir)); err != nil {
			return errors.Join(err, os.Remove(dir)) // a repeat would not sync
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	unfinished := path + ".new"
	if err := os.Remove(unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(unfinished, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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

// Remove removes a file. A missing one is no error, but its directory is synced:
// an earlier call can have failed to.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := SyncDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// SyncDir writes a directory's entries to the disk.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
