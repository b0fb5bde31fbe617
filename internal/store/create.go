package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/flock"
)

// identity is the record with the role and version of a store.
type identity struct {
	Role    string `json:"role"`
	Version int    `json:"version"`
}

const identityKey = "store"

func identities() Bucket[identity] { return Bucket[identity]{Name: "cleat"} }

// create renames a complete temporary file, so that a crash leaves either no
// store or a complete one. The directory's lock serializes creators: a
// temporary file found under it is left over.
func create(ctx context.Context, path string, o Options) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := flock.Lock(ctx, dir); err != nil {
		return fmt.Errorf("lock the directory, in which another process creates a store: %w", err)
	}
	defer func() { _ = flock.Unlock(dir) }()
	if _, err := os.Lstat(path); err == nil {
		return nil // created concurrently
	}
	if err := fill(unfinished(path, "new"), o); err != nil {
		return err
	}
	if err := os.Rename(unfinished(path, "new"), path); err != nil {
		return errors.Join(err, os.Remove(unfinished(path, "new")))
	}
	return dir.Sync()
}

// fill writes a file with an empty database.
func fill(path string, o Options) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		return identities().Put(boltTx(tx), identityKey, identity{o.Role, o.Version})
	})
	data, readErr := os.ReadFile(path)
	if err := errors.Join(err, db.Close(), readErr); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return writeFile(path, data, max(int64(len(data)), o.Preallocate))
}

// prepare checks role and version, makes the file safe for commits, and
// upgrades the store.
func (s *Store) prepare(ctx context.Context, o Options) error {
	var found identity
	err := s.db.View(func(tx *bbolt.Tx) (err error) {
		found, err = identify(boltTx(tx), o)
		return err
	})
	if err != nil || o.ReadOnly {
		return err
	}
	if err := s.renew(ctx, o.Preallocate); err != nil {
		return fmt.Errorf("move to a new file: %w", err)
	}
	if err := errors.Join(s.writeNewest(), syncDir(filepath.Dir(s.path))); err != nil {
		return err
	}
	if err := os.Chmod(s.path, 0o600); err != nil {
		return err
	}
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	s.reserve = reserve{step: o.Preallocate, end: info.Size()}
	if found.Version == o.Version {
		return nil
	}
	return s.Update(ctx, func(tx *Tx) error { return upgrade(tx, o, found.Version) })
}

// renew moves the store to a new file, unless its file is safe for commits. A
// full file system is not an error: the next Open tries again.
func (s *Store) renew(ctx context.Context, size int64) error {
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	written, err1 := isWritten(ctx, s.file)
	copies, err2 := copiesOnWrite(s.file)
	if err := errors.Join(err1, err2); err != nil || written && !copies && info.Size() >= size {
		return err
	}
	data, err := s.used()
	if err != nil {
		return err
	}
	err = writeFile(unfinished(s.path, "new"), data, max(size, info.Size()))
	if isFull(err) && copies {
		// What follows the used pages is no reserve where it is copied on write.
		err = punchHole(s.file, int64(len(data)), info.Size())
		if err == nil {
			err = writeFile(unfinished(s.path, "new"), data, max(size/2, int64(len(data))))
		}
	}
	if isFull(err) {
		return nil
	}
	if err == nil {
		err = os.Rename(unfinished(s.path, "new"), s.path)
	}
	// The lock ends with the old file: openFile compares the file that it has
	// locked with the path.
	if err = errors.Join(err, s.db.Close()); err != nil {
		return err
	}
	fresh, err := openFile(ctx, s.path, false)
	if err == nil {
		s.db, s.file, s.loaded = fresh.db, fresh.file, fresh.loaded
	}
	return err
}

// used returns the pages of the newest transaction.
func (s *Store) used() (data []byte, err error) {
	err = s.db.View(func(tx *bbolt.Tx) (err error) {
		data = make([]byte, tx.Size())
		_, err = s.file.ReadAt(data, 0)
		return err
	})
	return data, err
}

// identify returns the identity of a database that o can open.
func identify(tx *Tx, o Options) (found identity, err error) {
	found, ok, err := identities().Get(tx, identityKey)
	switch {
	case err != nil:
	case !ok:
		err = fmt.Errorf("%w: the database was not created by cleat", ErrRole)
	case found.Role != o.Role:
		err = fmt.Errorf("%w %q, expected %q: check where it is stored", ErrRole, found.Role, o.Role)
	case found.Version > o.Version:
		err = fmt.Errorf("%w: it has version %d, but this program supports %d; use a newer cleat", ErrVersion, found.Version, o.Version)
	case found.Version < o.Version && (o.Upgrade == nil || o.ReadOnly):
		err = fmt.Errorf("%w: it has version %d, but this program supports only %d", ErrVersion, found.Version, o.Version)
	}
	return found, err
}

func upgrade(tx *Tx, o Options, from int) error {
	if err := o.Upgrade(tx, from); err != nil {
		return fmt.Errorf("upgrade from version %d to %d: %w", from, o.Version, err)
	}
	return identities().Put(tx, identityKey, identity{o.Role, o.Version})
}

// holder returns the process that locks the file, if /proc/locks shows it.
func holder(path string) string {
	var st unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Stat(path, &st) != nil {
		return ""
	}
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK ADVISORY WRITE 4711 fe:00:131 0 EOF
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[4] == "-1" || fields[4] == "0" {
			continue
		}
		if fields[5] == fmt.Sprintf("%02x:%02x:%s", unix.Major(st.Dev), unix.Minor(st.Dev), strconv.FormatUint(st.Ino, 10)) {
			return " (process " + fields[4] + ")"
		}
	}
	return ""
}
