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
	unfinished := filepath.Join(dir.Name(), "."+filepath.Base(path)+".new")
	if err := os.Remove(unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := fill(unfinished, o); err != nil {
		return errors.Join(err, os.Remove(unfinished))
	}
	if err := os.Rename(unfinished, path); err != nil {
		return errors.Join(err, os.Remove(unfinished))
	}
	return dir.Sync()
}

// fill preallocates before any write, so that a full file system fails here.
func fill(path string, o Options) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := f.Chmod(0o600); err != nil { // regardless of the umask
		return err
	}
	if err := allocate(f, 0, o.Preallocate); err != nil {
		return fmt.Errorf("preallocate %d bytes: %w", o.Preallocate, err)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		return identities().Put(boltTx(tx), identityKey, identity{o.Role, o.Version})
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	// Space beyond the file's size can be freed on close or growth, so the size
	// includes it.
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := f.Truncate(max(info.Size(), o.Preallocate)); err != nil {
		return err
	}
	return f.Sync()
}

// prepare checks role and version, and upgrades the store.
func (s *Store) prepare(ctx context.Context, o Options) error {
	var found identity
	err := s.View(ctx, func(tx *Tx) (err error) {
		found, err = identify(tx, o)
		return err
	})
	if err != nil {
		return err
	}
	if o.ReadOnly {
		return nil
	}
	if err := os.Chmod(s.path, 0o600); err != nil {
		return err
	}
	if s.reserve, err = newReserve(s.path, o.Preallocate); err != nil {
		return err
	}
	if found.Version == o.Version {
		return nil
	}
	return s.Update(ctx, func(tx *Tx) error { return upgrade(tx, o, found.Version) })
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
