package store

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// backupEvery is the number of commits between two copies.
const backupEvery = 1000

// BackupPath returns the path of the copy that KeepBackup makes.
func BackupPath(path string) string { return path + ".backup" }

// KeepBackup copies the store to BackupPath, now and after each backupEvery
// commits. Open never reads the copy. A failure, as on a full file system,
// leaves the copy of before, as does a record that cannot be read.
func (s *Store) KeepBackup(ctx context.Context) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	s.commits = 1
	return s.backUp()
}

// backUp is called with the write token, between commits.
func (s *Store) backUp() error {
	path := BackupPath(s.path)
	draft := unfinished(path, "new")
	err := s.db.View(checkRecords)
	var data []byte
	if err == nil {
		data, err = s.used()
	}
	if err == nil {
		err = writeFile(draft, data, int64(len(data)))
	}
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("copy store %s: %w", s.path, err)
	}
	return nil
}

func checkRecords(tx *bbolt.Tx) error {
	return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
		return b.ForEach(func(key, value []byte) error {
			if !json.Valid(value) {
				return fmt.Errorf("%w: record %q of bucket %q", ErrDamaged, key, name)
			}
			return nil
		})
	})
}

// countCommit makes the copy that is due. Its failure does not undo the commit,
// so it is ignored.
func (s *Store) countCommit() {
	if s.commits == 0 { // no copy is kept
		return
	}
	if s.commits++; s.commits > backupEvery {
		s.commits = 1
		_ = s.backUp()
	}
}
